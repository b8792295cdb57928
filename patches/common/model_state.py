"""What the patches remember about a model, beside the model and not on it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from matex_tf.state import notes

if TYPE_CHECKING:
    from matex_tf.patches.common.row_slicing import RowRange
    from matex_tf.patches.recovery.whole_step import WholeStep
    from matex_tf.patches.sources.batch_ownership import Finding
    from matex_tf.patches.sources.pipeline_ownership import Made
    from matex_tf.patches.steps.row_choice import RowChoice


class FitPart(Protocol):
    """What a feature does between the training steps of one `fit`; every rank makes the same calls.

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


@dataclasses.dataclass
class ModelState:
    """Notes on one model.

    Attributes:
        begin: the next training step is the first of a `fit`: compare models, share rank 0's weights.
        unmerged: training steps have run since the moving statistics were merged.
        accumulators_whole: gradient accumulators hold the sum over the ranks on every rank, not each rank's own part.
        before_merge: this rank's own metric state, where the metrics hold the state of all ranks.
        sources: for each entry of the last step's logs, the metric whose result it is; else None.
        rows_of_step: rows of the last step that count for this rank.
        committed: the state of the metrics over all ranks, as of the last step, where ranks may die; see `step_retry`.
        generation: of the world that gathered `committed`.
        whole_step: the step of this model that runs now and may have to be run again, see `whole_step`; else None.
        batches_in_step: of the script's size, in a training step of all ranks; more than 1 with `--batch per-rank`.
        predicts: what is known of the data that `predict` walks over; None outside of it.
        finding: what their first batch has shown.
        rows: rows that this rank has put into metrics since they were reset.
        call: the small call that is under way; see `small_calls`.
        small_calls: what is known of such calls, by what they are made of.
        row_choice: which rows the epochs of the `fit` that is under way use; None: all.
        fit_parts: what features do beside the steps of the `fit` that is under way.
        whole: whether its steps leave the state of one rank on every rank, see `partitioned_step`; None: not known yet.
        whole_as: how the model was compiled then.
        rows_apart: the ranks have given rows of their own to a call, so that none is a small one any more.
        epoch_losses: of the epochs of the `fit` that is under way; None where a line has said that they grow.
        epochs: of the `fit` that is under way, at most.
    """

    begin: bool = True
    unmerged: bool = False
    accumulators_whole: bool = False
    before_merge: list[tuple[Any, np.ndarray]] | None = None
    sources: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows_of_step: int = 1
    committed: np.ndarray | None = None
    generation: int = 0
    whole_step: WholeStep | None = None
    batches_in_step: int = 1
    predicts: Made | None = None
    finding: Finding | None = None
    rows: int = 0
    call: Any = None
    small_calls: dict[Any, Any] = dataclasses.field(default_factory=dict)
    rows_apart: bool = False
    epoch_losses: list[float] | None = dataclasses.field(default_factory=list)
    epochs: int = 1
    row_choice: RowChoice | None = None
    whole: bool | None = None
    whole_as: tuple[bool, ...] = ()
    fit_parts: list[FitPart] = dataclasses.field(default_factory=list)


def of(model: Any) -> ModelState:
    """The notes on this model."""
    return notes.of(model, ModelState)
