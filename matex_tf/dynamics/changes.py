"""What changes in one training: when the network is looked at, and what is taken out of it or put in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.dynamics import schedule, surgery
from matex_tf.dynamics.apoptosis import remove_redundant, total
from matex_tf.dynamics.growth import Growth
from matex_tf.dynamics.measure import Rows, loss_of

_LOOKED_AT = 8  # batches before a look
_ENOUGH = 4096  # rows


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a user has asked for, see `Settings`."""

    apoptosis: bool = False
    tolerance: float = 0.01
    grow: bool = False
    grow_from: float = 0.25
    grow_to: float = 1.0


class Changes:
    """Changes of one model in one `fit`. Every rank makes the same calls, and the same changes.

    Args:
        model: of Keras 3, compiled.
        wanted: what was asked for.
        watched: rows of this rank to watch the loss on; empty to take them from training batches.
        steps_per_epoch: None where nobody knows.
        say: prints a line.
    """

    def __init__(
        self,
        model: Any,
        wanted: Wanted,
        watched: Sequence[Rows],
        steps_per_epoch: int | None,
        say: Callable[[str], None],
    ):
        self._model, self._wanted, self._watched, self._say = model, wanted, list(watched), say
        self._schedule = schedule.Schedule.of(steps_per_epoch)
        self._step = 0
        self._seen: list[tuple[int, Rows]] = []
        self._growth: Growth | None = None
        self._grown = False  # at the last look
        self._best = float("inf")  # loss on rows that stay the same
        self._begun, self._on = False, True

    def begin(self) -> None:
        """Before the first step, when the model is built; only the first call counts."""
        if self._begun:
            return
        self._begun = True
        model, wanted = self._model, self._wanted
        groups = surgery.channel_groups(model)
        for name, why in groups.left_whole.items():
            self._say(f"{name} of {model.name} is left whole, and what it reads: {why} (docs/dynamics.md)")
        if not groups.found:
            self._say(f"{model.name} has no layer whose neurons could change (docs/dynamics.md)")
            self._on = False
        elif wanted.grow:
            before = int(model.count_params())
            self._growth = Growth.begin(model, wanted.grow_from)
            self._say(
                f"--grow: {model.name} begins with {int(model.count_params()):,} of the {before:,} parameters of its "
                "blueprint"
            )

    @property
    def wants_rows(self) -> bool:
        """Whether the rows of the next step are to be shown."""
        return self._on and self._step + _LOOKED_AT >= self._schedule.next

    def see(self, rows: Rows, of_all: int) -> None:
        """Rows of this rank of a training batch.

        Args:
            of_all: rows of the whole batch.
        """
        self._seen.append((of_all, rows))

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
        try:
            loss = loss_of(self._model, watched, total)
        except (ValueError, TypeError, AttributeError) as error:
            self._say(f"{self._model.name} stays as it is: its loss cannot be computed apart from a step ({error})")
            self._on = False
            return False
        if self._watched:
            self._best = min(self._best, loss)
        progress = self._schedule.progress(loss)
        falling = progress is None or progress > schedule.FAST
        text = "" if falling else self._change(looked_at, watched, progress or 0.0)
        if text:
            self._say(f"step {self._step}: {text}")
        self._schedule.go_on(falling)
        return bool(text)

    def _change(self, looked_at: Sequence[Rows], watched: Sequence[Rows], progress: float) -> str:
        """Take something out, or put something in; what it was, in words."""
        wanted, grown = self._wanted, self._grown
        self._grown = False
        if wanted.apoptosis and not grown:  # what has just come has to learn first
            removal = remove_redundant(self._model, looked_at, watched, wanted.tolerance, self._best)
            if removal is not None:
                if self._growth is not None:
                    self._growth.has_enough(self._model, removal.channels)
                return str(removal)
        if self._growth is not None and progress < schedule.FLAT:
            text = self._growth.grow(self._model, wanted.grow_to, paid=progress > 0)
            self._grown = bool(text)
            return text
        return ""

    def _rows(self) -> tuple[list[Rows], list[Rows]]:
        """Rows to judge neurons by, and others to watch the loss on."""
        seen = self._seen[-_LOOKED_AT:]
        if not self._watched:
            return [rows for _, rows in seen[::2]], [rows for _, rows in seen[1::2]] or [seen[0][1]]
        enough, count = 0, 0
        while count < len(seen) and enough < _ENOUGH:
            count += 1
            enough += seen[-count][0]
        return [rows for _, rows in seen[-count:]], self._watched
