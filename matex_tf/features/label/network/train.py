"""The training script that `matex-tf label` runs where no other is given. It knows of ranks no more than any other.

It stays, and takes one round after the other. From a round to the next the network keeps what it has learned, but for
its head where there are other classes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

from matex_tf.features.label import boundary, rounds
from matex_tf.features.label.network import learner as networks

EPOCHS = 5  # of a round, after each of which the page hears of it


class Trainer:
    """What is kept from a round to the next."""

    def __init__(self) -> None:
        self._learner: networks.Learner | None = None
        self._made_with: tuple[object, ...] = ()
        self._classes: list[str] = []
        self._options = (False, 0.0)

    def round(self, task: rounds.Task) -> None:
        """Train, and write what comes of it: once after a few steps, so that a page need not wait, and in the end."""
        keras.utils.set_random_seed(task.seed)
        labels, held_out = task.load("labels"), task.load("held_out")
        new, learner = self._learner, self._prepare(task)
        use, held = np.flatnonzero((labels >= 0) & ~held_out), np.flatnonzero((labels >= 0) & held_out)
        log = os.path.join(task.folder, "log.csv")
        first = max(1, task.steps // EPOCHS)
        rate = networks.RATE if learner is not new else networks.RATE / 3  # what it knows stays nearly as it is
        learner.learn(labels, use, held, first, task.batch, 1, task.seed, [keras.callbacks.CSVLogger(log)], rate)
        said, features = learner.look()
        write(task.folder, features=features, suggestions=said)
        learner.learn(
            labels, use, held, max(1, task.steps - first), task.batch, EPOCHS - 1, task.seed + 1,
            [keras.callbacks.CSVLogger(log, append=True), _Hurry(task)], first_epoch=1,
        )  # fmt: skip
        if learner.stop_training:  # the next round waits
            said, features = learner.look()
            write(task.folder, features=features, suggestions=said)
            return
        views, features = learner.answers()
        disagreement = boundary.disagreement_of(views)
        write(task.folder, features=features, disagreement=disagreement, suggestions=views.mean(axis=0))

    def _prepare(self, task: rounds.Task) -> networks.Learner:
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
        made = self._learner = networks.Learner(
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


class _Hurry(keras.callbacks.Callback):
    """Ends a round after an epoch where people have gone on."""

    def __init__(self, task: rounds.Task):
        super().__init__()
        self._task = task

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if self._task.hurry():
            self.model.stop_training = True


def write(folder: str, **arrays: np.ndarray) -> None:
    """Save arrays under their names; the page finds the whole file, or none.

    Every rank does, so that whichever asks for the next round first has written what it has done. Each has a draft of
    its own: with one for all, a rank would find that another one has moved it away.
    """
    for name, array in arrays.items():
        with tempfile.NamedTemporaryFile(dir=folder, prefix="draft-", delete=False) as draft:
            np.save(draft, array.astype(np.float32))
        os.replace(draft.name, Path(folder, f"{name}.npy"))


def main() -> int:
    """Take rounds until there is none left."""
    trainer = Trainer()
    for task in rounds.rounds():
        trainer.round(task)
    return 0


if __name__ == "__main__":
    sys.exit(main())
