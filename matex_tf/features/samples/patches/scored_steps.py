"""Steps that find out about the rows that they train on; see `pruning`."""

from __future__ import annotations

from matex_tf.features.samples.patches.pruning import Pruning
from matex_tf.patches.common import model_state
from matex_tf.patches.steps.row_choice import TaggedRows
from matex_tf.patches.steps.step_part import StepPart, StepRun


class Scores(StepPart):
    """Rows get scores by what a step finds out about them."""

    def before(self, run: StepRun) -> None:
        chosen = model_state.of(self.model).row_choice
        if isinstance(chosen, Pruning) and isinstance(run.data, TaggedRows):
            chosen.before_step()

    def note(self, run: StepRun) -> None:
        chosen = model_state.of(self.model).row_choice
        if isinstance(chosen, Pruning) and run.scores is not None:
            chosen.note(run.scores)
