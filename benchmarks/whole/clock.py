"""Times of a job, noted by its script. Needs no package, so that all environments of peers can import it."""

from __future__ import annotations

import json
import os
import time


def now() -> float:
    """Seconds on a clock that all processes share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """What a job has done so far, by phase, in seconds."""

    def __init__(self) -> None:
        self.begun = self._last = now()
        self.spent: dict[str, float] = {}

    def done(self, phase: str, seconds: float | None = None) -> None:
        """A phase ends here, or has taken so many seconds of the one that ends next."""
        at = now()
        if seconds is None:
            seconds, self._last = at - self._last, at
        else:
            self._last += seconds
        self.spent[phase] = self.spent.get(phase, 0.0) + seconds

    def write(self, file: str, score: float) -> None:
        """The last thing that a script does.

        Args:
            file: of the first rank; the others write nothing.
            score: the accuracy that was found, or another number that shows that the job has learned.
        """
        if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
            with open(file, "w") as out:
                json.dump({"begun": self.begun, "ended": now(), "spent": self.spent, "score": score}, out)
