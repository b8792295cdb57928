"""A variable of TensorFlow of which each rank holds a part.

The variable stays the object that the script has, and its handle. While it lies in parts, its own memory holds next to
nothing: no element, of a shape that goes with no other, so that an op that reads or assigns it past this module fails.
A compiled step reads and assigns the rank's part instead (`part`). What Python reads of it is whole: the ranks gather
it, all of them at the same time. What else touches its handle makes it whole again, until a step next needs parts.

Relies on (TensorFlow 2.13 to 2.21, private): `BaseResourceVariable._handle`, set once in `__init__` and read by all
that uses the variable, in C too; `_read_variable_op`, by which Python reads it; `record.could_possibly_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops

from matex_tf.core import world
from matex_tf.core.mismatch import checksum
from matex_tf.errors import MatexError
from matex_tf.patches.partition import shards
from matex_tf.patches.shards import pending
from matex_tf.patches.shards.drawn import Drawn
from matex_tf.patches.shards.layout import Layout
from matex_tf.patches.shards.serving import Parts
from matex_tf.state import notes, run_state

#: No element; sizes that no other shape goes with.
_NOWHERE = (0, 1009, 1013)
_WHAT = "gather a variable that lies in parts"


class Part(notes.Inside):
    """What this rank has of a variable.

    Attributes:
        variable: of TensorFlow, its class changed.
        own: a variable of this rank's part, flat.
        copies: the parts of other ranks of which this one keeps a copy, flat, in the order of `Layout.held`.
        is_split: whether it lies in parts now.
        assigned: a checksum of what the script has assigned to it in parts: ranks compare it before a `fit`.
    """

    def __init__(self, variable: Any, name: str):
        """Args: variable: whole. name: for messages."""
        self._name, self._handle = name, variable.__dict__["_handle"]
        self.variable, self.dtype, self.shape = variable, variable.dtype, tuple(variable.shape)
        self._size = int(np.prod(self.shape))
        self.is_split, self.assigned = False, 0
        self._number = -1  # see `Parts.numbered`
        later = pending.of(variable)
        self._make(run_state.current().part(Parts).layout(), None if later is None else later.drawn)
        if later is not None:
            later.end()
        notes.put(variable, self)
        kind: Any = type(variable)
        variable.__class__ = pending.class_with(_InParts, kind)
        if later is not None:
            self._hold(tf.zeros(_NOWHERE, self.dtype))
            self.is_split = True
            self._number = run_state.current().part(Parts).numbered(self, -1)

    def _make(self, layout: Layout, drawn: Drawn | None = None) -> None:
        """Have parts for a layout: zeros, or those of a value that is not there yet."""
        self.layout: Layout = layout
        spans = [shards.span(self._size, rank, layout.size) for rank in layout.held]
        self.copies: list[np.ndarray] = [] if drawn is None else [_as_array(drawn.part(*one)) for one in spans[1:]]
        low, high = spans[0]
        with tf.init_scope(), tf.device("CPU:0"):
            self.own = resource_variable_ops.ResourceVariable(
                tf.zeros([high - low], self.dtype) if drawn is None else drawn.part(low, high),
                trainable=False,
                dtype=self.dtype,
            )

    def is_current(self) -> bool:
        """Whether its parts are for the ranks that there are."""
        return self.layout is run_state.current().part(Parts).layout()

    def renew(self) -> None:
        """Have parts for the ranks that there are, if some have died since. All ranks come here."""
        if not self.is_current():
            whole = self._gathered() if self.is_split else None
            self._make(run_state.current().part(Parts).layout())
            if whole is not None:
                self._put(tf.constant(whole, self.dtype))

    def split(self) -> None:
        """Keep the rank's part alone."""
        if not self.is_split:
            self._number = run_state.current().part(Parts).numbered(self, self._number)
            whole = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self.dtype)
            self._put(whole)
            del whole
            self._hold(tf.zeros(_NOWHERE, self.dtype))
            self.is_split = True

    def join(self) -> None:
        """Have it whole again, on every rank. Every rank must call."""
        if self.is_split:
            self._tell(True)
            self.take_part(whole=True)

    def take_part(self, whole: bool) -> Any:
        """Gather its value; every rank comes here. Args: whole: whether it stays whole."""
        value = self._gathered()
        if whole:
            self._hold(tf.constant(value, self.dtype))
            self.is_split = False
        return value

    def value(self) -> tf.Tensor:
        """Its whole value. Every rank must call."""
        self._tell(False)
        return tf.constant(self._gathered(), self.dtype)

    def assign(self, value: Any) -> None:
        """Keep this rank's part of a whole value, the same on every rank."""
        value = tf.convert_to_tensor(value, self.dtype)
        if tuple(value.shape) != self.shape:
            raise ValueError(f"{self._name} has the shape {self.shape}, and the value {tuple(value.shape)}")
        self.assigned = checksum(value.numpy(), self.assigned)
        self._put(value)

    def _put(self, whole: tf.Tensor) -> None:
        own, *copies = (
            tf.raw_ops.DeepCopy(x=shards.part(whole, rank, self.layout.size))  # a slice would keep the whole's memory
            for rank in self.layout.held
        )
        self.own.assign(own)
        self.copies = [_as_array(copy) for copy in copies]

    def array(self) -> np.ndarray:
        """This rank's part, copied, as a dtype that MPI knows."""
        return _as_array(self.own)

    @property
    def array_dtype(self) -> np.dtype:
        """The dtype of such arrays."""
        return np.dtype(np.uint16 if self.dtype == tf.bfloat16 else self.dtype.as_numpy_dtype)

    def bytes_of(self, rank: int) -> int:
        """Bytes of the part of a rank of the layout."""
        return shards.lengths(self._size, self.layout.size)[rank] * self.array_dtype.itemsize

    def kept(self) -> Callable[[], None]:
        """What lets everything be as it is now; values are held, not copied."""
        layout, own, copies, is_split, assigned = self.layout, self.own, self.copies, self.is_split, self.assigned
        mine = tf.raw_ops.ReadVariableOp(resource=own.handle, dtype=self.dtype)
        whole = None if is_split else tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self.dtype)

        def put_back() -> None:
            self.layout, self.own, self.copies, self.is_split, self.assigned = layout, own, copies, is_split, assigned
            own.assign(mine)
            self._hold(tf.zeros(_NOWHERE, self.dtype) if whole is None else whole)

        return put_back

    def _hold(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def _gathered(self) -> np.ndarray:
        joined = world.of_job().run_atomically(self._gather)
        return joined.view(self.dtype.as_numpy_dtype).reshape(self.shape)

    def _gather(self) -> np.ndarray:
        ranks, held = world.of_job(), self.layout.held
        givers = self.layout.givers()
        has = dict(zip(held, [self.array(), *self.copies], strict=False))
        given = [has[rank] for rank in givers[ranks.rank]]
        mine = given[0] if len(given) == 1 else np.concatenate(given)
        joined = ranks.allgather_rows(mine, f"{_WHAT}: {self._name} {self.dtype.name} {self.shape}")
        order = [rank for some in givers for rank in some]
        lengths = shards.lengths(self._size, self.layout.size)
        pieces = np.split(joined, np.cumsum([lengths[rank] for rank in order])[:-1])
        return joined if order == sorted(order) else np.concatenate([pieces[rank] for rank in np.argsort(order)])

    def _tell(self, whole: bool) -> None:
        ask = run_state.current().part(Parts).ask
        if ask is not None:
            ask(self._number, whole)


def _as_array(value: Any) -> np.ndarray:
    array: np.ndarray = value.numpy()  # MPI does not know bfloat16
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


class _InParts:
    """What a variable does differently while it lies in parts; before its own class in the order of resolution."""

    @property
    def _handle(self) -> Any:
        part = notes.of(self, Part)
        if part.is_split:
            if tf.executing_eagerly():
                if not run_state.current().part(Parts).early:
                    part.join()
            elif not world.is_alone():  # what traces a step, to be partitioned, is alone
                raise MatexError(
                    f"--shard: {part._name} lies in parts on the ranks, and a compiled function of the script's "
                    "own would read or change it whole. Run with --shard none, and without layouts that divide it."
                )
        return self.__dict__["_handle"]

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self.__dict__["_handle"] = handle

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> Any:
        part = notes.of(self, Part)
        if part.is_split and tf.executing_eagerly() and not record.could_possibly_record():
            return part.value()
        return super()._read_variable_op(*args, **kwargs)  # type: ignore[misc]

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Give it a value, or each rank its part of it."""
        part = notes.of(self, Part)
        if part.is_split and tf.executing_eagerly():
            part.assign(value)
            return self
        return super().assign(value, *args, **kwargs)  # type: ignore[misc]


def of(variable: Any) -> Part | None:
    """What this rank has of a variable of TensorFlow or Keras; None if it was never in parts."""
    inner = variable if isinstance(variable, tf.Variable) else getattr(variable, "_value", None)
    return notes.found(inner, Part)


def is_split(variable: Any) -> bool:
    """Whether a variable of TensorFlow or Keras lies in parts now."""
    part = of(variable)
    return part is not None and part.is_split


def join(variables: Iterable[Any]) -> None:
    """Have variables of TensorFlow whole, those that lie in parts. All ranks come here."""
    for part in filter(None, map(of, variables)):
        part.join()


def bytes_held(variable: Any) -> int:
    """Bytes of a variable of TensorFlow or Keras in the memory of this rank."""
    part = of(variable)
    if part is not None and part.is_split:
        return int(part.own.shape.num_elements() * part.dtype.size) + sum(copy.nbytes for copy in part.copies)
    return int(np.prod(variable.shape)) * int(tf.as_dtype(variable.dtype).size)
