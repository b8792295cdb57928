"""What changes in one training: when the network is looked at, and what is taken out of it or put in."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics import schedule, surgery
from matex_tf.features.dynamics.apoptosis import remove_redundant, total
from matex_tf.features.dynamics.growth import Growth
from matex_tf.features.dynamics.measure import Loss, Rows, loss_of
from matex_tf.features.dynamics.options import DynamicsOptions

_LOOKED_AT = 8, 32  # batches before a look: so many at least, and at most
_ENOUGH = 4096  # rows of these: a layer that reads n channels has to see many more than n rows
_BYTES = 2**29  # of these rows, on all ranks together, beyond the least of batches
_FLAT_LOOKS = 2  # after so many the loss has stopped falling; one may be noise
_GROWN_BY = 0.6  # of the training, a network has the widths of its blueprint
_BEGUN_BY = 0.55  # of it, all blocks have begun too, where some have waited: the widths come well before that
_WORTH = 0.1  # of the script's network, or a larger one that it has grown to, a removal saves at least
_LAST = 0.8  # of the training: what is taken out later has no time left to pay, nor the others to learn without it


class Changes:
    """Changes of one model in one `fit`. Every rank makes the same calls, and the same changes.

    Args:
        model: of Keras 3, compiled.
        wanted: what was asked for.
        watched: rows of this rank to watch the loss on; empty to take them from training batches.
        steps_per_epoch: None where nobody knows.
        say: prints a line.
        epochs: of this `fit`.
        growth: of an earlier `fit` of this model, which goes on.
    """

    def __init__(
        self,
        model: Any,
        wanted: DynamicsOptions,
        watched: Sequence[Rows],
        steps_per_epoch: int | None,
        say: Callable[[str], None],
        epochs: int = 1,
        growth: Growth | None = None,
    ):
        self._model, self._wanted, self._watched, self._say = model, wanted, list(watched), say
        self._schedule = schedule.Schedule.of(steps_per_epoch, epochs)
        self._epochs = epochs
        self._step = 0
        self._seen: list[tuple[int, Rows]] = []
        self._looked_at = _LOOKED_AT[0]
        self.growth = growth
        self._largest = 0  # parameters that it has had, or that the script's has
        self._reference = schedule.Reference()  # stays infinite where rows do not stay the same
        self._begun, self._on = False, True
        self._compiled_loss: Loss | None = None

    def begin(self) -> None:
        """Before the first step, when the model is built; only the first call counts."""
        if self._begun:
            return
        self._begun = True
        model, wanted = self._model, self._wanted
        groups = surgery.channel_groups(model)
        self._largest = int(model.count_params())
        for name, why in groups.left_whole.items():
            self._say(f"{name} of {model.name} keeps its neurons, and so does what it reads: {why} (docs/dynamics.md)")
        if not groups.found:
            self._say(f"{model.name} has no layer whose neurons could change (docs/dynamics.md)")
            self._on = False
        elif wanted.grow and self.growth is not None:
            self.growth.go_on()
        elif wanted.grow and int(model.optimizer.iterations) > 0:
            self._say(f"--grow: {model.name} has been trained before, and stays as wide as it is (docs/dynamics.md)")
        elif wanted.grow:
            self._begin_small()

    def _begin_small(self) -> None:
        """Begin with a part of the blueprint."""
        wanted = self._wanted
        by, to = _BEGUN_BY if wanted.grow_depth else _GROWN_BY, 1.0
        if wanted.apoptosis:  # what was not needed goes again
            by, to = by / 2, wanted.grow_to
        self.growth = Growth.begin(self._model, wanted.grow_from, by=by, by_depth=wanted.grow_depth, to=to)

    @property
    def wants_rows(self) -> bool:
        """Whether the rows of the next step are to be shown."""
        return self._on and (not self._step or self._step + self._looked_at >= self._schedule.next)

    def see(self, rows: Rows, of_all: int) -> None:
        """Rows of this rank of a training batch.

        Args:
            of_all: rows of the whole batch.
        """
        if self._step:
            self._seen.append((of_all, rows))
            enough = _ENOUGH if self._watched else 2 * _ENOUGH
            while len(self._seen) > 2 and sum(count for count, _ in self._seen[1:]) >= enough:
                self._seen.pop(0)
        else:
            self._schedule.first = self._loss([rows])
            fewest, most = _LOOKED_AT
            of_batch = total(np.array([float(rows.nbytes)]), "agree on the batches to look at")[0]
            self._looked_at = int(min(max(_BYTES // max(of_batch, 1.0), fewest), most))

    def after_step(self) -> bool:
        """After a training step.

        Returns:
            Whether the model has changed.
        """
        self._step += 1
        if not self._on or self._step < self._schedule.next:
            return False
        looked_at, watched = self._rows()
        self._seen = []
        loss = self._loss(watched)
        if not self._on:
            return False
        progress = self._schedule.progress(loss)
        if self._watched:
            self._reference.look(loss)
        learning = self._schedule.is_learning(loss, progress)
        text = ""
        if progress is not None:
            text = self._grow(progress, learning) or ("" if learning else self._remove(looked_at, watched, loss))
        if text:
            self._compiled_loss = None
            self._say(f"step {self._step}: {text}")
        self._schedule.go_on(learning)
        if self._step < self._due:
            self._schedule.next = min(self._schedule.next, self._due)
        return bool(text)

    def end(self) -> None:
        """After the training, also where it has failed."""
        if self.growth is not None:
            self.growth.pause(self._model)

    def after_epoch(self) -> None:
        """After an epoch: how long the training is can be known now, where nobody knew."""
        if not self._schedule.steps:
            self._schedule.steps = self._step * self._epochs

    def _loss(self, rows: Sequence[Rows]) -> float:
        """The loss on some rows. Nothing changes from now on where it cannot be computed."""
        try:
            return loss_of(self._loss_now(), rows, total)
        except (ValueError, TypeError, AttributeError) as error:
            self._say(
                f"{self._model.name} keeps its neurons: its loss cannot be computed outside of a step ({error}). "
                "Let its train_step call compute_loss"
            )
            self._on = False
            return float("nan")

    def _loss_now(self) -> Loss:
        """That of the model as it is, compiled once for all looks until it changes."""
        if self._compiled_loss is None:
            self._compiled_loss = Loss(self._model)
        return self._compiled_loss

    def _grow(self, progress: float, learning: bool) -> str:
        """Put something in; what it was, in words."""
        growth, looks = self.growth, self._schedule
        stands_still = looks.flat >= _FLAT_LOOKS and not learning
        if growth is None or growth.over or not (stands_still or self._step >= self._due):
            return ""
        looks.flat = 0
        text = growth.grow(self._model, self._wanted.grow_to, paid=progress > 0 or self._wanted.apoptosis)
        self._largest = max(self._largest, int(self._model.count_params()))
        return text

    def _remove(self, looked_at: Sequence[Rows], watched: Sequence[Rows], now: float) -> str:
        """Take something out, at this loss on the watched rows; what it was, in words."""
        if not self._wanted.apoptosis or not (self.growth is None or self.growth.over):
            return ""
        if self._schedule.done(self._step) > _LAST:
            return ""
        least = _WORTH * self._largest
        best, untrained = self._reference.loss, self._schedule.first
        removal = remove_redundant(
            self._model,
            looked_at,
            watched,
            self._wanted.apoptosis_tolerance,
            best,
            least,
            now=now,
            untrained=untrained,
            loss=self._loss_now(),
        )
        if removal is None:
            return ""
        self._reference.removed(removal.after)
        return str(removal)

    @property
    def _due(self) -> int:
        """The step after which the network grows in any case; a number above that of all steps where there is none."""
        due = self.growth.due if self.growth is not None and self._schedule.steps else math.inf
        return math.ceil(due * self._schedule.steps) if due <= 1 else sys.maxsize

    def _rows(self) -> tuple[list[Rows], list[Rows]]:
        """Rows to judge neurons by, and others to watch the loss on."""
        seen = [rows for _, rows in self._seen]
        if self._watched:
            return seen, self._watched
        return seen[::2], seen[1::2] or seen[:1]
