"""The training script that `matex-tf label` runs where no other is given. It knows of ranks no more than any other.

It stays, and takes one round after the other. From a round to the next the network keeps what it has learned, but for
its head where there are other classes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import keras
import numpy as np

from matex_tf.label import boundary, network, rounds

_EPOCHS = 5  # of a round, after each of which the page hears of it


class Trainer:
    """What is kept from a round to the next."""

    def __init__(self) -> None:
        self._learner: network.Learner | None = None
        self._made_with: tuple[object, ...] = ()
        self._classes: list[str] = []
        self._options = (False, 0.0)

    def round(self, task: rounds.Task) -> None:
        """Train, and write what comes of it."""
        keras.utils.set_random_seed(task.seed)
        labels, held_out = task.load("labels"), task.load("held_out")
        learner = self._prepare(task)
        use, held = np.flatnonzero((labels >= 0) & ~held_out), np.flatnonzero((labels >= 0) & held_out)
        log = os.path.join(task.folder, "log.csv")
        learner.learn(labels, use, held, task.steps, task.batch, _EPOCHS, task.seed, log)
        said, features = learner.answers()
        write(task.folder, "features", features)
        write(task.folder, "disagreement", boundary.disagreement_of(said))
        write(task.folder, "suggestions", said.mean(axis=0))

    def _prepare(self, task: rounds.Task) -> network.Learner:
        made_with = (task.model, task.weights, task.augment)
        before, classes, others = self._learner, self._classes, self._options
        self._classes, self._options = task.classes, (task.semi, task.threshold)
        if before is not None and made_with == self._made_with and not task.fresh:
            if task.classes == classes:
                if others != self._options:
                    before.change(task.semi, task.threshold)
                return before
        else:
            before = None
        self._made_with = made_with
        made = self._learner = network.Learner(
            task.load("images"),
            len(task.classes),
            task.augment,
            task.semi,
            task.threshold,
            task.seed,
            task.model,
            task.weights,
        )
        if before is not None:
            made.go_on_from(before)
        return made


def write(folder: str, name: str, array: np.ndarray) -> None:
    """Save an array; the page finds the whole file, or none."""
    draft = Path(folder, f"draft-{name}.npy")
    np.save(draft, array.astype(np.float32))
    os.replace(draft, Path(folder, f"{name}.npy"))


def main() -> int:
    """Take rounds until there is none left."""
    trainer = Trainer()
    for task in rounds.rounds():
        trainer.round(task)
    return 0


if __name__ == "__main__":
    sys.exit(main())
