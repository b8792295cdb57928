"""Steps that find out about the rows that they train on; see `pruning`."""

from __future__ import annotations

from matex_tf.patches.common import model_state
from matex_tf.patches.samples.tagged_rows import TaggedRows
from matex_tf.patches.steps.step_part import StepPart, StepRun


class Scores(StepPart):
    """Rows get scores by what a step finds out about them."""

    def before(self, run: StepRun) -> None:
        samples = model_state.of(self.model).samples
        if samples is not None and isinstance(run.data, TaggedRows):
            samples.before_step()

    def note(self, run: StepRun) -> None:
        samples = model_state.of(self.model).samples
        if samples is not None and run.scores is not None:
            samples.note(run.scores)
