"""What one training has computed: its logs, weights and slots after each step, in files of a directory."""

from __future__ import annotations

import json
import os
from builtins import open  # noqa: UP029  # as it is now: later it does once what a script does on every rank
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import replace
from pathlib import Path

import numpy as np

#: In the environment of a script that is recorded, beside the directory: how many training steps at most (0 for all),
#: and a number, other than 0 where the last digits of weights are to be others before each step.
STEPS, NUDGE = "MATEX_RECORD_STEPS", "MATEX_RECORD_NUDGE"

#: What a record tells apart, in the order in which it is shown.
BATCH, EPOCH, TEST, WEIGHTS, SLOTS = "batch logs", "epoch logs", "evaluation", "weights", "optimizer slots"


@dataclass(frozen=True)
class Moment:
    """Something that a training has computed.

    Attributes:
        kind: one of `BATCH`, `EPOCH`, `TEST`, `WEIGHTS` and `SLOTS`.
        step: how many training steps there had been.
        values: by name, such as "loss" or "dense/kernel".
    """

    kind: str
    step: int
    values: Mapping[str, np.ndarray]


class Writer:
    """Writes moments into a directory, one after the other."""

    def __init__(self, directory: str):
        self._directory = Path(directory)
        self._count = 0

    def write(self, moment: Moment) -> None:
        """Add a moment; values whose names are the same get numbers."""
        path = self._directory / f"{self._count:07}"
        self._count += 1
        with open(f"{path}.npz", "wb") as file:
            np.savez(file, **{f"{place}": value for place, value in enumerate(moment.values.values())})  # type: ignore[arg-type]
        described = {"kind": moment.kind, "step": moment.step, "names": list(moment.values)}
        draft = f"{path}.draft"
        with open(draft, "w") as text:
            text.write(json.dumps(described))
        replace(draft, f"{path}.json")


def read(directory: str | os.PathLike[str]) -> Iterator[Moment]:
    """The moments of a record, in their order; nothing stays in memory."""
    for path in sorted(Path(directory).glob("*.json")):
        described = json.loads(path.read_text())
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as held:
            values = {name: held[str(place)] for place, name in enumerate(described["names"])}
        yield Moment(described["kind"], described["step"], values)
