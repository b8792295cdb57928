"""Where in a script the state of a training was taken."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"(fit|elastic)-(\d+)\.(?:done|epoch-(\d+)\.step-(\d+))")


@dataclass(frozen=True, order=True)
class Place:
    """Where in a script a checkpoint was taken.

    Attributes:
        fit: which of the script's calls of `fit`, from 1.
        epoch, step: what was about to begin, from 0; both -1 where the fit was complete.
        what: "fit", or "elastic" for a function of a Horovod script, whose commits are counted as epochs.
    """

    fit: int
    epoch: int = -1
    step: int = -1
    what: str = "fit"

    @property
    def done(self) -> bool:
        """Whether the fit was complete."""
        return self.epoch < 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.what}-{self.fit:04d}" + (
            ".done" if self.done else f".epoch-{self.epoch:06d}.step-{self.step:09d}"
        )

    @classmethod
    def of(cls, name: str) -> Place | None:
        """The place of a file; None where it is not a checkpoint."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        what, fit, epoch, step = found.groups()
        return cls(int(fit), int(epoch or -1), int(step or -1), what)

    def __str__(self) -> str:
        if self.what == "elastic":
            return f"commit {self.epoch} of elastic function {self.fit}"
        if self.done:
            return f"the end of fit {self.fit}"
        return f"step {self.step + 1} of epoch {self.epoch + 1} of fit {self.fit}"
