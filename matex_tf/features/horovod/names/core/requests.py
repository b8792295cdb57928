"""What a rank asks of the others: a collective, with all that the ranks must agree on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.node.reduction import SUMMED_AS

#: Beginning of every purpose (see `World.barrier`) of these names.
PREFIX = "hvd."

#: Collectives in which the first dimension of a tensor may differ between ranks.
RAGGED = ("allgather", "alltoall")


@dataclasses.dataclass(frozen=True)
class Request:
    """One collective, as one rank sees it.

    Attributes:
        kind: "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", …
        name: given by the script; empty for none.
        how: of a reduction, see `Collectives.reduce`.
        root: of a broadcast.
        details: what all ranks must have in common, in words.
        shapes, dtypes: of the rank's tensors.
        fault: what is wrong with the rank's arguments; empty where nothing is.
    """

    kind: str
    name: str = ""
    how: str = "sum"
    root: int = 0
    details: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    fault: str = ""

    @property
    def key(self) -> str:
        """What ranks find one another by."""
        return self.name or self.kind

    @property
    def what(self) -> str:
        """The purpose, see `World.barrier`."""
        return f"{PREFIX}{self.kind} {self.name}".rstrip()

    def twice(self) -> Request:
        """This request, to be refused: the rank has begun one of this name, and has not ended it."""
        called = f"of the name {self.name}" if self.name else "without a name"
        fault = f"two collectives {called} at a time: give each a name of its own, the same on every rank"
        return dataclasses.replace(self, details=(f"refused: {fault}",), fault=fault)


class Call:
    """A collective that may be repeated: makes the request for the tensors of the moment, and remembers the last one.

    Args:
        kind, name, how, root: see `Request`.
        params: more that ranks must have in common, in words.
        labels: a name for each tensor, for messages.
        check: from the tensors and the number of ranks, what is wrong with them; empty where nothing is.
    """

    def __init__(
        self,
        kind: str,
        name: str | None = None,
        how: str = "sum",
        root: int = 0,
        params: str = "",
        labels: Sequence[str] | None = None,
        check: Callable[[Sequence[np.ndarray], int], str] | None = None,
    ):
        self.kind, self.name, self.how, self.root = kind, name or "", how, root
        self._params, self._labels, self._check = params, labels, check
        self._last: tuple[Any, tuple[Request, BucketPlan | None]] | None = (
            None  # one reference: threads may share a call
        )

    def of(self, arrays: Sequence[np.ndarray], size: int) -> tuple[Request, BucketPlan | None]:
        """The request for these tensors, and the plan of a sum that the exchange can do.

        Args:
            size: the number of ranks.
        """
        key = tuple((array.shape, array.dtype) for array in arrays), size
        last = self._last
        if last is None or key != last[0] or self._check is not None:
            last = self._last = key, self._make(arrays, size)
        return last[1]

    def _make(self, arrays: Sequence[np.ndarray], size: int) -> tuple[Request, BucketPlan | None]:
        shapes = tuple(array.shape for array in arrays)
        dtypes = tuple(array.dtype.name for array in arrays)
        labels = list(self._labels or (["tensor"] if len(arrays) == 1 else map("tensor {}".format, range(len(arrays)))))
        if labels and self._params:
            labels[0] = f"{self._params}, {labels[0]}"
        if self.kind == "allreduce" and self.how == "sum" and arrays and all(name in SUMMED_AS for name in dtypes):
            request = Request(self.kind, self.name)
            plan: BucketPlan | None = BucketPlan.of(request.what, labels, arrays)
            assert plan is not None
            details = tuple(plan.described)
        else:
            plan = None
            shown = [(shape[1:] if self.kind in RAGGED else shape) for shape in shapes]
            described = [f"{label} {dtype} {shape}" for label, dtype, shape in zip(labels, dtypes, shown, strict=True)]
            details = tuple(described) or (self._params,)
        fault = self._check(arrays, size) if self._check else ""
        if fault:
            details = (f"refused: {fault}",)
        return Request(self.kind, self.name, self.how, self.root, details, shapes, dtypes, fault), plan


def has_rows(arrays: Sequence[np.ndarray], size: int) -> str:
    """What is wrong with tensors that are joined or split by rows; empty where nothing is.

    Args:
        arrays: of any shapes.
        size: the number of ranks; not needed.
    """
    return "a scalar has no rows" if any(array.ndim == 0 for array in arrays) else ""


def divides(arrays: Sequence[np.ndarray], size: int) -> str:
    """What is wrong with rows that all ranks get evenly; empty where nothing is.

    Args:
        arrays: one, of the rows.
        size: the number of ranks.
    """
    if arrays[0].ndim == 0:
        return "a scalar has no rows"
    rows = len(arrays[0])
    return f"{rows} rows cannot be divided evenly among {size} ranks: give splits" if rows % size else ""


def splits_fit(arrays: Sequence[np.ndarray], size: int) -> str:
    """What is wrong with rows and how many of them each rank gets; empty where nothing is.

    Args:
        arrays: two, of the rows and (ranks,) of how many each rank gets.
        size: the number of ranks.
    """
    values, splits = arrays
    if values.ndim == 0:
        return "a scalar has no rows"
    if splits.dtype.kind not in "iu":
        return f"splits are {splits.dtype.name}, and must be integers"
    if splits.shape != (size,):
        return f"splits have shape {splits.shape}, and must have one entry for each of {size} ranks"
    if (splits < 0).any() or int(splits.sum()) != len(values):
        return f"splits are {splits.tolist()}, and the tensor has {len(values)} rows"
    return ""
