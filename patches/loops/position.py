"""Which part of which batch a loop of the script works on now.

A loop may be eager, be compiled whole, or call a compiled step; a step may be traced with one batch and run with
another. So the position is kept in a TensorFlow variable, which is read when a step runs and not when it is traced.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import graph_ops, world
from matex_tf.patches.common import batch_share, wrapping
from matex_tf.state import notes

#: What a position is: outside of any loop, at a batch that every rank has whole, or at this rank's rows of one.
OUTSIDE, WHOLE, SPLIT = 0, 1, 2

Position = tuple[int, int, int, int, int]  # kind, rows, total, taken, first
BEGINNING: Position = OUTSIDE, 1, 1, 1, 0


class _Sharing:
    """Of a graph: that batches are shared out in it."""


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
        """float64 scalar, how much this rank's gradient counts."""
        return tf.where(self.kind == SPLIT, super().weight, tf.constant(1 / world.current().size, tf.float64))

    @property
    def weight_in_mean(self) -> tf.Tensor:
        """float64 scalar, how much a mean over rows counts in a metric: a whole batch is counted on one rank alone."""
        return tf.where(self.kind == SPLIT, super().weight, tf.constant(1, tf.float64))

    @property
    def shared_out(self) -> tf.Tensor:
        """Boolean scalar, whether each rank sees other rows of the batch."""
        return self.kind == SPLIT

    @property
    def alive(self) -> tf.Tensor:
        """float64 scalar, 1 where the rank has rows."""
        return tf.cast((self.rows > 0) | (self.kind != SPLIT), tf.float64)

    @property
    def draws_by_row(self) -> bool:
        """Whether random draws are this rank's part of those for the whole batch: at a batch of a loop."""
        return settings.current().shares_loops and in_shared_loop()

    def seen_rows(self) -> int | None:
        """The rows that the step sees, as a number, where that is known."""
        return self.seen or None

    @property
    def counts(self) -> tf.Tensor:
        """Boolean scalar, whether what this rank adds to a metric counts in the sum over ranks."""
        if not settings.current().shares_loops:
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
    ranks = world.current()
    return (
        not (ranks.is_single and ranks.guard is None)
        and not batch_share.in_keras()
        and not wrapping.is_aside()
        and tf.compat.v1.executing_eagerly_outside_functions()
    )


def part() -> LoopPart | None:
    """The part of a batch that the script's loop works on; None inside Keras' loops. For `batch_share.look_also`."""
    if not active():
        return None
    kind, rows, total, taken, first = tf.unstack(_here().variable.read_value())
    now, _, _, seen, _ = read()
    return LoopPart(rows, total, taken, first, kind, seen=0 if now == OUTSIDE else seen)


def read() -> Position:
    """The position as numbers; that of the loop around a compiled function, while that is traced."""
    with tf.init_scope():
        kind, rows, total, taken, first = (int(number) for number in _here().variable.numpy())
    return kind, rows, total, taken, first


def enter(kind: int, rows: int, total: int, taken: int, first: int, owner: object = None) -> None:
    """Be at a part of a batch, now; see `batch_share.StepShare`."""
    here = _here()
    here.owner, here.whole_gradients = owner, False
    with tf.init_scope():
        here.variable.assign(np.array([kind, rows, total, taken, first], np.int32))


def given(rows: int, total: int, first: int) -> None:
    """A `DataSet` has given the script `rows` rows of a batch of `total`, from `first` on. For
    `row_partition.listen`."""
    if active():
        enter(SPLIT, rows, max(total, 1), rows, first)


def leave(owner: object, before: Position) -> bool:
    """Go back to where one was before, if a loop is the one that entered last, or only compiled functions did.

    Args:
        owner: the loop. before: the position when it entered.

    Returns:
        Whether that is so: a loop that was left in the middle is closed when Python collects it, which may be in the
        middle of another one, and on each rank in another step.
    """
    last = _here().owner
    if last is owner or last is None:
        enter(*before)
        return True
    return False


def reset() -> None:
    """Be outside of any loop, as a process is that has just begun."""
    if _here.cache_info().currsize:
        enter(*BEGINNING)


def given_batch() -> Any:
    """What the loop that entered last has noted on the batch that it gave; see `first_step.GivenBatch`."""
    return getattr(_here().owner, "given", None) if _here.cache_info().currsize else None


def enter_in_graph(rows: tf.Tensor, total: tf.Tensor, taken: tf.Tensor, first: tf.Tensor) -> None:
    """Be at this rank's rows of a batch, in a compiled function, and in those that it is traced within.

    Args:
        rows, total, taken, first: int32 scalars, see `batch_share.StepShare`.
    """
    for graph in graph_ops.within(tf.compat.v1.get_default_graph()):
        notes.of(graph, _Sharing)
    _here().variable.assign(tf.stack([tf.constant(SPLIT), rows, total, taken, first]))


def read_in_graph() -> tf.Tensor:
    """The position as int32 of shape (5,), in a compiled function; for `leave_in_graph`."""
    return _here().variable.read_value()


def leave_in_graph(before: tf.Tensor) -> None:
    """Go back to where one was before, in a compiled function."""
    _here().variable.assign(before)


def in_shared_loop() -> bool:
    """Whether what runs or is traced now is at a batch of a loop that is shared out, or will be."""
    if read()[0] != OUTSIDE or not settings.current().shares_loops:
        return True
    return any(notes.has(graph, _Sharing) for graph in graph_ops.within(tf.compat.v1.get_default_graph()))


def touch() -> None:
    """Note that gradients or metrics were computed; also in a compiled function, whenever it runs."""
    _here().touches.assign_add(1)


def touch_eagerly() -> None:
    """Note that the script takes gradients now, if it does so outside of compiled functions."""
    if tf.executing_eagerly():
        _here().gradients += 1


def eager_gradients() -> int:
    """How often it did."""
    return _here().gradients


def give_whole_gradients() -> None:
    """Note that a compiled function has given the gradients of the whole batch that the script is at."""
    _here().whole_gradients = True


def has_whole_gradients() -> bool:
    """Whether one has: then what eager code makes of them is the same on every rank."""
    return tf.executing_eagerly() and _here().whole_gradients


def touches() -> int:
    """How often `touch` was called, or ran."""
    with tf.init_scope():
        return int(_here().touches.numpy())


class _Position:
    """Where the loops of this process are.

    Attributes:
        variable: int32 of shape (5,): kind, rows, total, taken, first.
        touches: int64 scalar.
        owner: the loop that entered last; None where only compiled functions did.
        gradients: how often eager code has taken gradients.
        whole_gradients: whether a compiled function has given those of the whole batch.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self.variable = tf.Variable(BEGINNING, trainable=False, dtype=tf.int32, name="matex_tf_position")
            self.touches = tf.Variable(0, trainable=False, dtype=tf.int64, name="matex_tf_touches")
        self.owner: object = None
        self.gradients, self.whole_gradients = 0, False


@functools.cache  # one for all loops: any of them may call a compiled step, which reads what it was traced with
def _here() -> _Position:
    return _Position()
