"""Which part of a batch the step that runs now, or is traced now, works on.

The step enters a `StepShare`; the patches of the optimizer, of losses and of metrics find it here. The tensors of a
part belong to the graph of the step, so that a part is right for every execution of that graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from matex_tf.patches.common.active_flag import ActiveFlag


@dataclasses.dataclass(frozen=True)
class StepShare:
    """This rank's part of one batch.

    Attributes:
        rows: int32 scalar, rows of the batch that count for this rank; 0 where it only takes part as a ghost.
        total: int32 scalar, rows of the whole batch, over all ranks.
        taken: int32 scalar, rows that the step sees: `rows`, or 1 for a ghost.
        gathered: what `gathered_batch` has gathered in this step, so that it does so once.
        apart: whether this rank applies its gradients by itself, so that they are those of its own rows alone.
    """

    rows: tf.Tensor
    total: tf.Tensor
    taken: tf.Tensor
    apart: bool = dataclasses.field(default=False, kw_only=True)
    gathered: dict[Any, Any] = dataclasses.field(default_factory=dict, kw_only=True, compare=False, repr=False)

    @property
    def weight(self) -> tf.Tensor:
        """float32 scalar, rows / total: how much this rank's mean counts in the mean of the batch."""
        return tf.cast(self.rows, tf.float32) / tf.cast(self.total, tf.float32)

    @property
    def weight_in_mean(self) -> tf.Tensor:
        """float32 scalar, how much a mean over the rows that the step sees counts in a metric's sum over ranks."""
        return self.weight

    @property
    def shared_out(self) -> tf.Tensor:
        """Boolean scalar, whether each rank sees other rows of the batch."""
        return tf.constant(True)

    @property
    def alive(self) -> tf.Tensor:
        """float32 scalar, 1 where the rank has rows, 0 for a ghost."""
        return tf.cast(self.rows > 0, tf.float32)

    def has_rows(self, values: Any) -> bool:
        """Whether the first axis of `values` runs over rows of the batch, and not over something else."""
        shape = getattr(values, "shape", None)
        if shape is None or len(shape) == 0:
            return False
        if shape[0] is None:
            return True
        if tf.executing_eagerly():
            return int(shape[0]) == int(self.taken)
        return False


_parts: list[StepShare | None] = []
#: While a loop of Keras is at work, callbacks included: it shares out its batches by itself.
keras_runs = ActiveFlag()

_outside: list[Callable[[], StepShare | None]] = []  # this module knows nothing of the script's own loops


@contextlib.contextmanager
def within(part: StepShare) -> Iterator[StepShare]:
    """Let `part` be the current one inside a `with` block."""
    _parts.append(part)
    try:
        yield part
    finally:
        _parts.pop()


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Let there be no part inside a `with` block: what runs there has the rows of the whole batch."""
    _parts.append(None)
    try:
        yield
    finally:
        _parts.pop()


def look_also(look: Callable[[], StepShare | None]) -> None:
    """Outside of steps of Keras, ask `look` for the part of a batch that a loop of the script's own works on."""
    _outside.append(look)


def current() -> StepShare | None:
    """The part of the step that runs or is traced now; None outside of steps and of loops that share out batches."""
    if _parts:
        return _parts[-1]
    return next((part for look in _outside if (part := look()) is not None), None)


def of_step() -> StepShare | None:
    """The part of the step of Keras that runs or is traced now, and not that of a loop of the script's own."""
    return _parts[-1] if _parts else None


def in_keras() -> bool:
    """Whether a loop of Keras is at work, or a step of one is traced."""
    return bool(keras_runs or _parts)
