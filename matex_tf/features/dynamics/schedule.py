"""When a network is looked at, at times that adapt to the progress of the loss; and what a removal may cost then."""

from __future__ import annotations

import dataclasses
import math

#: What the loss falls by between two looks, as a part of it: above `FAST` neurons are still finding their roles, and
#: where it rises by as much; below `FLAT` it has stopped falling.
FAST, FLAT = 0.05, 0.02
#: What the loss of a network that has learnt something is below that of an untrained one, as a part of that.
LEARNT = 0.2
#: What it falls by as the steps double, while neurons are still finding their roles, however little it falls from one
#: look to the next.
STEEP = 0.1
#: The part of the training after which they have found them, though the loss falls: with a learning rate that decays it
#: does to the end.
SETTLED = 0.5
_CALM = 2  # looks at which the loss does not fall fast: one may be noise
_EARLY = 8  # looks: one that learns less than that has learnt what it can by then
_SOONEST, _LATEST = 20, 200  # steps to the first look
_LONGEST = 16  # times the first gap: the longest where the length of the training is not known
_LOOKS = 10  # at least, where it is


@dataclasses.dataclass
class Schedule:
    """The looks at one training.

    Attributes:
        next: the step of the next one, counted from 1.
        gap: steps to the one after it.
        least: the first gap.
        steps: of the training; 0 where nobody knows.
        first: the loss before the first step.
        looks: how many there were.
        flat: at how many of them, up to the last, the loss had not fallen.
        calm: at how many of them, up to the last, it had neither fallen fast nor jumped up.
        lowest: the step of each look, and the lowest loss up to it.
    """

    next: int
    gap: int
    least: int
    steps: int = 0
    last: float | None = None
    first: float = -math.inf
    looks: int = 0
    flat: int = 0
    calm: int = 0
    lowest: list[tuple[int, float]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, steps_per_epoch: int | None, epochs: int = 1) -> Schedule:
        """Args: steps_per_epoch: None where nobody knows."""
        gap = min(max((steps_per_epoch or 400) // 8, _SOONEST), _LATEST)
        return cls(gap, gap, gap, (steps_per_epoch or 0) * epochs)

    def progress(self, loss: float) -> float | None:
        """What the loss has fallen by since the last look, as a part of it; None at the first."""
        before, self.last = self.last, loss
        self.looks += 1
        self.lowest.append((self.next, min(loss, self.lowest[-1][1]) if self.lowest else loss))
        if before is None:
            return None
        fallen = (before - loss) / max(abs(before), 1e-12)
        self.flat = self.flat + 1 if fallen < FLAT else 0
        self.calm = self.calm + 1 if abs(fallen) <= FAST else 0
        return fallen

    def is_learning(self, loss: float, progress: float | None) -> bool:
        """Whether neurons are still finding their roles: in a network that knows nothing yet all are redundant.

        They are too where the loss has just jumped up: what it is there says nothing of what it may be.

        Args:
            loss: at this look.
            progress: what it has fallen by since the last one, see `progress`; None at the first.
        """
        if progress is None or progress < -FAST:
            return True
        if self.done(self.next) < SETTLED and (self.calm < _CALM or self._is_steep()):
            return True
        return self.looks <= _EARLY and loss > (1 - LEARNT) * self.first

    def _is_steep(self) -> bool:
        """Whether the loss has fallen by much since there were half as many steps."""
        if not self.lowest:
            return False
        step, loss = self.lowest[-1]
        before = [lowest for one, lowest in self.lowest if one <= (step + 1) / 2]
        return bool(before) and loss < (1 - STEEP) * before[-1]

    def done(self, step: int) -> float:
        """The part of the training that is over after a step; 0 where nobody knows."""
        return step / self.steps if self.steps else 0.0

    def go_on(self, learning: bool) -> None:
        """After a look: the next one comes as soon while neurons find their roles, for some looks, else later."""
        if not learning or self.looks > _EARLY:
            longest = max(self.steps // _LOOKS, self.least) if self.steps else _LONGEST * self.least
            self.gap = min(math.ceil(self.gap * 1.5), longest)
        self.next += self.gap


@dataclasses.dataclass
class Reference:
    """What the loss on rows that stay the same would be without removals: what they may cost is counted from there.

    It is the lowest loss so far, and what training itself has added to it since, as overfitting does.

    Attributes:
        loss: infinite before the first look.
    """

    loss: float = math.inf
    _last: float = math.inf

    def look(self, loss: float) -> None:
        """Take note of the loss at a look."""
        self.loss = min(self.loss + max(loss - self._last, 0.0), loss)
        self._last = loss

    def removed(self, loss: float) -> None:
        """Take note of the loss after a removal."""
        self._last = loss
