"""What runs beside the steps of a `fit`: a feature puts one into `ModelState.step_parts` for as long as it lasts."""

from __future__ import annotations

from typing import Any, Protocol

from matex_tf.patches.common.row_slicing import RowRange


class StepPart(Protocol):
    """What is called around each training step, outside of graphs; every rank makes the same calls.

    Attributes:
        partitioned: whether steps may be rebuilt for a rank's rows while it is there, see docs/how-it-works.md.
    """

    partitioned: bool

    @property
    def wants_rows(self) -> bool:
        """Whether `before_step` is to be called before the next step."""

    def before_step(self, data: Any, share: RowRange) -> None:
        """Before a step.

        Args:
            data: the batch as Keras has it: x, y and sample weights, in tensors.
            share: which of its rows are this rank's.
        """

    def after_step(self) -> None:
        """After a step; the model may change."""

    def after_epoch(self) -> None:
        """After the last step of an epoch."""
