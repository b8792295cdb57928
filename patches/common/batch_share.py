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

from matex_tf.patches.common import under_way
from matex_tf.state import run_state


@dataclasses.dataclass(frozen=True)
class StepShare:
    """This rank's part of one batch.

    Attributes:
        rows: int32 scalar, rows of the batch that count for this rank; 0 where it only takes part as a ghost.
        total: int32 scalar, rows of the whole batch, over all ranks.
        taken: int32 scalar, rows that the step sees: `rows`, or 1 for a ghost.
        first: int32 scalar, where these begin in the whole batch.
        gathered: what `gathered_batch` has gathered in this step, so that it does so once.
        apart: whether this rank applies its gradients by itself, so that they are those of its own rows alone.
        row_losses: what measures the rows, see `row_choice.RowLosses`; None where rows have no numbers.
    """

    rows: tf.Tensor
    total: tf.Tensor
    taken: tf.Tensor
    first: tf.Tensor
    apart: bool = dataclasses.field(default=False, kw_only=True)
    row_losses: Any = dataclasses.field(default=None, kw_only=True, compare=False, repr=False)
    gathered: dict[Any, Any] = dataclasses.field(default_factory=dict, kw_only=True, compare=False, repr=False)

    @property
    def weight(self) -> tf.Tensor:
        """float64 scalar, rows / total: how much this rank's mean counts in the mean of the batch."""
        return tf.cast(self.rows, tf.float64) / tf.cast(self.total, tf.float64)

    @property
    def weight_in_mean(self) -> tf.Tensor:
        """float64 scalar, how much a mean over the rows that the step sees counts in a metric's sum over ranks."""
        return self.weight

    @property
    def shared_out(self) -> tf.Tensor:
        """Boolean scalar, whether each rank sees other rows of the batch."""
        return tf.constant(True)

    @property
    def alive(self) -> tf.Tensor:
        """float64 scalar, 1 where the rank has rows, 0 for a ghost."""
        return tf.cast(self.rows > 0, tf.float64)

    @property
    def draws_by_row(self) -> bool:
        """Whether random draws in this step are this rank's part of those for the whole batch."""
        return True

    def seen_rows(self) -> int | None:
        """The rows that the step sees, as a number, where its shapes are numbers; None where a batch of any size is."""
        return None if tf.is_symbolic_tensor(self.taken) else int(self.taken)

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


class _Outside(list[Callable[[], StepShare | None]]):
    """Of a run: who is asked outside of steps. This module knows nothing of the script's own loops."""


@contextlib.contextmanager
def within(part: StepShare) -> Iterator[StepShare]:
    """Let `part` be the current one inside a `with` block."""
    with under_way.having(in_step=True, share=part):
        yield part


def hidden() -> contextlib.AbstractContextManager[None]:
    """Let there be no part inside a `with` block: what runs there has the rows of the whole batch."""
    return under_way.having(in_step=True, share=None)


def drawing(part: StepShare) -> contextlib.AbstractContextManager[None]:
    """Let random draws inside a `with` block be those of `part`, and everything else know of none."""
    return under_way.having(drawing=part)


def look_also(look: Callable[[], StepShare | None]) -> None:
    """Outside of steps of Keras, ask `look` for the part of a batch that a loop of the script's own works on."""
    run_state.part(_Outside).append(look)


def current() -> StepShare | None:
    """The part of the step that runs or is traced now; None outside of steps and of loops that share out batches."""
    now = under_way.now()
    if now.in_step:
        return now.share
    return next((part for look in run_state.part(_Outside) if (part := look()) is not None), None)


def of_draws() -> StepShare | None:
    """The part of the batch for which random numbers are drawn now; None where they are drawn as on one rank."""
    now = under_way.now()
    if now.draws_apart or (now.in_step and now.share is None):
        return None
    part = now.drawing or current()
    return part if part is not None and part.draws_by_row else None


def of_predict() -> StepShare | None:
    """The part of a batch that rows are predicted for now."""
    return under_way.now().drawing


def of_step() -> StepShare | None:
    """The part of the step of Keras that runs or is traced now, and not that of a loop of the script's own."""
    return under_way.now().share


def in_keras() -> bool:
    """Whether a loop of Keras is at work, or a step of one is traced."""
    now = under_way.now()
    return now.in_keras or now.in_step
