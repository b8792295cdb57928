"""What the strategy does around a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from matex_tf import strategies
from matex_tf.patches.steps.step_part import StepPart, StepRun


class Exchanging(StepPart):
    """The strategy knows when a training step begins, and when it has run."""

    @contextlib.contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        strategy = strategies.current()
        if self.kind == "train":
            strategy.before_step(self.model)
        yield
        if self.kind == "train":
            strategy.after_step(self.model)
