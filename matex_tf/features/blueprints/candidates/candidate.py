"""Which candidate this process trains; none where the script is not run by `matex-tf grow`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from matex_tf.features.blueprints.ranges import Range
from matex_tf.state import run_state


@dataclass
class Candidate:
    """A candidate, as the command hands it to the ranks that train it.

    Attributes:
        number, of, seed: its number, of how many, and the seed that values are drawn by.
        values: those of the blueprint's ranges; what a script's `hp` draws is added.
        part: of the whole training, 0 to 1, up to which it is trained now; 1 to train to the end and let the script
            go on.
        objective: the name of the score in the logs; empty to take the first that can be one.
        state: a file with the weights of its last rung; empty in the first.
        done: epochs that it was trained for.
        keep: a file for the weights after this rung; empty for none.
        result: a file for what is found.
    """

    number: int = 0
    of: int = 1
    seed: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    part: float = 1.0
    objective: str = ""
    state: str = ""
    done: int = 0
    keep: str = ""
    result: str = ""

    @property
    def is_last(self) -> bool:
        """Whether it is the best one, which is trained to the end."""
        return self.part >= 1

    def value(self, name: str, one: Range) -> Any:
        """The value that the candidate has by this `name`, or else one that is drawn from the range `one`, and kept."""
        if name not in self.values:
            self.values[name] = one.draw(name, self.number, self.of, self.seed)
        return self.values[name]

    @classmethod
    def read(cls, path: str) -> Candidate:
        """From a file of `text`."""
        with open(path, encoding="utf-8") as file:
            return cls(**json.load(file))

    @property
    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


class _Now:
    """The candidate that is trained, and the values that somebody has asked for."""

    def __init__(self) -> None:
        self.candidate: Candidate | None = None
        self.asked: set[str] = set()


def current() -> Candidate | None:
    """The candidate that this process trains."""
    return run_state.current().part(_Now).candidate


def use(candidate: Candidate | None) -> None:
    """Train this one from now on."""
    now = run_state.current().part(_Now)
    now.candidate, now.asked = candidate, set()


def ask(*names: str) -> None:
    """Note that values were asked for: one that nobody asks for has been given the wrong name."""
    run_state.current().part(_Now).asked.update(names)


def unasked() -> list[str]:
    """The values of the candidate that nobody has asked for."""
    now = run_state.current().part(_Now)
    return [name for name in now.candidate.values if name not in now.asked] if now.candidate else []
