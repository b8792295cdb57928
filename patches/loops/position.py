"""Which part of which batch a loop of the script works on now.

A loop may be eager, be compiled whole, or call a compiled step; a step may be traced with one batch and run with
another. So the position is kept in a TensorFlow variable, which is read when a step runs and not when it is traced.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import batch_share, wrapping

#: What a position is: outside of any loop, at a batch that every rank has whole, or at this rank's rows of one.
OUTSIDE, WHOLE, SPLIT = 0, 1, 2

_variable: Any = None  # int32 of shape (4,): kind, rows, total, taken
_touches: Any = None  # int64 scalar
_owner: object = None
_graphs: weakref.WeakSet[Any] = weakref.WeakSet()  # in which batches are shared out


@dataclasses.dataclass(frozen=True)
class LoopPart(batch_share.StepShare):
    """The part of a batch that a loop works on; see `batch_share.StepShare`.

    Outside of loops, and for a batch that every rank has whole, the ranks count alike: 1 / ranks each.

    Attributes:
        kind: int32 scalar, one of OUTSIDE, WHOLE, SPLIT.
        seen: the rows that the step sees, as a number; 0 outside of loops, where that is not known.
    """

    kind: tf.Tensor
    seen: int = 0

    @property
    def weight(self) -> tf.Tensor:
        """float32 scalar, how much this rank's gradient counts."""
        return tf.where(self.kind == SPLIT, super().weight, 1.0 / world.current().size)

    @property
    def weight_in_mean(self) -> tf.Tensor:
        """float32 scalar, how much a mean over rows counts in a metric: a whole batch is counted on one rank alone."""
        return tf.where(self.kind == SPLIT, super().weight, 1.0)

    @property
    def shared_out(self) -> tf.Tensor:
        """Boolean scalar, whether each rank sees other rows of the batch."""
        return self.kind == SPLIT

    @property
    def alive(self) -> tf.Tensor:
        """float32 scalar, 1 where the rank has rows."""
        return tf.cast((self.rows > 0) | (self.kind != SPLIT), tf.float32)

    @property
    def counts(self) -> tf.Tensor:
        """Boolean scalar, whether what this rank adds to a metric counts in the sum over ranks."""
        if not settings.current().shard_loops:
            return tf.constant(True)
        return tf.where(self.kind == SPLIT, self.rows > 0, world.current().rank == 0)

    def has_rows(self, values: Any) -> bool:
        """Whether the first axis of `values` runs over rows of the batch."""
        shape = getattr(values, "shape", None)
        if shape is None or len(shape) == 0:
            return False
        return shape[0] is None or self.seen in (0, int(shape[0]))


def active() -> bool:
    """Whether code that runs now, outside of Keras' own loops, is a script's that shall be shared among ranks."""
    return (
        not world.current().is_single
        and not batch_share.in_keras()
        and not wrapping.is_aside()
        and tf.compat.v1.executing_eagerly_outside_functions()
    )


def part() -> LoopPart | None:
    """The part of a batch that the script's loop works on; None inside Keras' loops. For `batch_share.look_also`."""
    if not active():
        return None
    kind, rows, total, taken = tf.unstack(_state().read_value())
    now, *_, seen = read()
    return LoopPart(rows, total, taken, kind, seen=0 if now == OUTSIDE else seen)


def read() -> tuple[int, int, int, int]:
    """Kind, rows, total, taken, as numbers; those of the loop around a compiled function, while that is traced."""
    with tf.init_scope():
        kind, rows, total, taken = (int(number) for number in _state().numpy())
    return kind, rows, total, taken


def enter(kind: int, rows: int, total: int, taken: int, owner: object = None) -> None:
    """Be at a part of a batch, now; see `batch_share.StepShare`."""
    global _owner
    _owner = owner
    with tf.init_scope():
        _state().assign(np.array([kind, rows, total, taken], np.int32))


def given(rows: int, total: int) -> None:
    """A `DataSet` has given the script this rank's rows of a batch. For `row_partition.listen`."""
    if active():
        enter(SPLIT, rows, max(total, 1), rows)


def leave(owner: object, before: tuple[int, int, int, int]) -> None:
    """Go back to where one was before, if `owner` is the loop that entered last, or only compiled functions did."""
    if _owner is owner or _owner is None:
        enter(*before)


def enter_in_graph(rows: tf.Tensor, total: tf.Tensor, taken: tf.Tensor) -> None:
    """Be at this rank's rows of a batch, in a compiled function."""
    _graphs.add(tf.compat.v1.get_default_graph())
    _state().assign(tf.stack([tf.constant(SPLIT), rows, total, taken]))


def leave_in_graph() -> None:
    """Be outside of any loop, in a compiled function."""
    _state().assign(tf.constant([OUTSIDE, 1, 1, 1]))


def in_shared_loop() -> bool:
    """Whether what runs or is traced now is at a batch of a loop that is shared out, or will be."""
    if read()[0] != OUTSIDE or not settings.current().shard_loops:
        return True
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph not in _graphs:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def touch() -> None:
    """Note that gradients or metrics were computed; also in a compiled function, whenever it runs."""
    _counter().assign_add(1)


def touches() -> int:
    """How often `touch` was called, or ran."""
    with tf.init_scope():
        return int(_counter().numpy())


def _state() -> Any:
    global _variable
    if _variable is None:
        with tf.init_scope(), tf.device("CPU:0"):
            _variable = tf.Variable([OUTSIDE, 1, 1, 1], trainable=False, dtype=tf.int32, name="matex_tf_position")
    return _variable


def _counter() -> Any:
    global _touches
    if _touches is None:
        with tf.init_scope(), tf.device("CPU:0"):
            _touches = tf.Variable(0, trainable=False, dtype=tf.int64, name="matex_tf_touches")
    return _touches
