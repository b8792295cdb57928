"""When a network is looked at: at times that adapt to the progress of the loss."""

from __future__ import annotations

import dataclasses
import math

#: What the loss falls by between two looks, as a part of it: above `FAST` neurons are still finding their roles, below
#: `FLAT` it has stopped falling.
FAST, FLAT = 0.15, 0.02
_SOONEST, _LATEST = 20, 200  # steps to the first look
_LONGEST = 8  # times the first gap


@dataclasses.dataclass
class Schedule:
    """The looks at one training.

    Attributes:
        next: the step of the next one, counted from 1.
        gap: steps to the one after it.
    """

    next: int
    gap: int
    longest: int
    last: float | None = None

    @classmethod
    def of(cls, steps_per_epoch: int | None) -> Schedule:
        """Args: steps_per_epoch: None where nobody knows."""
        gap = min(max((steps_per_epoch or 400) // 4, _SOONEST), _LATEST)
        return cls(gap, gap, _LONGEST * gap)

    def progress(self, loss: float) -> float | None:
        """What the loss has fallen by since the last look, as a part of it; None at the first."""
        before, self.last = self.last, loss
        return None if before is None else (before - loss) / max(abs(before), 1e-12)

    def go_on(self, falling: bool) -> None:
        """After a look: the next one comes as soon where the loss falls fast, else later."""
        if not falling:
            self.gap = min(math.ceil(self.gap * 1.5), self.longest)
        self.next += self.gap
