"""What one exchange moves: its tensors, their buckets, and where the results lie."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core.mismatch import checksum
from matex_tf.errors import MatexError
from matex_tf.exchange.bucket import Bucket, pack
from matex_tf.exchange.network.compressed_ring import CompressionState
from matex_tf.exchange.node.reduction import SUMMED_AS

MEGABYTE = 1 << 20


class BucketPlan:
    """An exchange that is repeated: the same tensors, step after step.

    Attributes:
        what: the purpose, see `World.barrier`.
        described: each tensor's label, dtype and shape; what ranks must have in common.
        shapes: of the tensors.
        buckets: see `bucket.pack`; offsets: where each starts in the result, in bytes; nbytes: all together.
        codings: for each bucket, how it is encoded between nodes; None where it is not.
    """

    def __init__(
        self,
        what: str,
        labels: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[np.dtype],
        limit: int,
        codec: str = "none",
        feedback: bool = False,
    ):
        """Args: limit: bytes of a bucket. codec, feedback: for buckets of floats, between nodes (`compressed_ring`)."""
        self.what = what
        self.what_sum = checksum(what)
        self.shapes = [tuple(shape) for shape in shapes]
        self.described = [
            f"{label} {np.dtype(dtype).name} {shape}"
            for label, dtype, shape in zip(labels, dtypes, self.shapes, strict=True)
        ]
        self._joined = "\0".join(self.described).encode()
        self._detail_sum = checksum(self._joined)
        self.buckets: list[Bucket] = pack(self.shapes, dtypes, limit)
        self.codings = [
            CompressionState(codec, feedback)
            if codec != "none" and SUMMED_AS[bucket.dtype.name].startswith("float")
            else None
            for bucket in self.buckets
        ]
        self.offsets = [0]
        for bucket in self.buckets:
            self.offsets.append(self.offsets[-1] + bucket.nbytes)
        self.nbytes = self.offsets.pop()
        self._parts = [
            [
                (start, start + size, self.shapes[member])
                for member, start, size in zip(bucket.members, bucket.starts, bucket.sizes, strict=True)
            ]
            for bucket in self.buckets
        ]
        self._titles = [
            f"bucket {number} of {what}: {self.described[bucket.members[0]]}"
            + (f" and {len(bucket.members) - 1} more" if len(bucket.members) > 1 else "")
            + f", {bucket.nbytes} bytes"
            for number, bucket in enumerate(self.buckets)
        ]
        self.root: np.ndarray | None = None  # memory of the results of the exchange that is going on
        self.chosen = False

    def title(self, number: int) -> str:
        """A bucket's name in the timeline."""
        return self._titles[number]

    def place(self, number: int) -> np.ndarray | None:
        """Shared memory for the result of a bucket; None where there is none."""
        if self.root is None:
            return None
        return self.root[self.offsets[number] : self.offsets[number] + self.buckets[number].nbytes]

    def results(self, number: int, total: np.ndarray) -> list[np.ndarray]:
        """The tensors of a bucket, as read-only views of its sums.

        Args:
            number: of the bucket.
            total: its sums, flat, as the bucket lays its tensors out. It becomes read-only.
        """
        total.setflags(write=False)
        if len(self._parts[number]) == 1:
            ((start, stop, shape),) = self._parts[number]
            return [total[start:stop].reshape(shape)]
        return [total[start:stop].reshape(shape) for start, stop, shape in self._parts[number]]

    @classmethod
    def of(
        cls, what: str, labels: Sequence[str], arrays: Sequence[Any], coded: bool = False, at_once: bool = False
    ) -> BucketPlan:
        """The plan for these arrays or TensorFlow tensors, with buckets as the settings say.

        Args:
            coded: whether they may be encoded, where the settings have a codec: gradients, and nothing else.
            at_once: whether all of them are there at the same time, and so in one bucket of each dtype: where a bucket
                ends, the wire is idle until the next has begun.
        """
        chosen = settings.current()
        limit = sys.maxsize if at_once else chosen.bucket_mb * MEGABYTE
        coding = (chosen.codec, chosen.error_feedback) if coded else ()
        dtypes = [np.dtype(getattr(array.dtype, "as_numpy_dtype", array.dtype)) for array in arrays]
        return cls(what, labels, [tuple(map(int, array.shape)) for array in arrays], dtypes, limit, *coding)

    def detail_sum(self, expected: Sequence[str]) -> int:
        """The checksum of what ranks must have in common, after what the world expects already."""
        if not expected:
            return self._detail_sum
        return checksum(self._joined, checksum("\0".join(expected) + "\0"))


def check_dtypes(dtypes: Sequence[str], labels: Sequence[str]) -> None:
    """Raise MatexError, naming the tensor, for a dtype that ranks cannot add up.

    Args:
        dtypes: by name, one of each tensor.
        labels: what messages call the tensors.
    """
    for dtype, label in zip(dtypes, labels, strict=True):
        if dtype not in SUMMED_AS:
            raise MatexError(
                f"{label} is {dtype}, which cannot be summed over ranks; it can be {', '.join(sorted(SUMMED_AS))}."
            )
