"""When a checkpoint is due: the clock of rank 0 decides, and all ranks ask it before the same steps."""

from __future__ import annotations

import time

from matex_tf import settings
from matex_tf.core import world
from matex_tf.faults.checkpoints import Checkpoints


class Clock:
    """Asked before every step; the ranks talk to one another before few of them.

    The steps to the next question are at most twice those since the last, and no more than rank 0 expects to be run
    until a checkpoint is due.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._ask = 1  # the step before which the ranks talk
        self._asked, self._asked_at = 0, time.monotonic()
        self._saved_at = time.monotonic()

    def due(self, new_epoch: bool, store: Checkpoints) -> bool:
        """Whether a checkpoint is to be taken now, the same on every rank.

        Args:
            new_epoch: whether an epoch begins.
            store: where it would go.
        """
        self._steps += 1
        seconds = settings.current().checkpoint_seconds
        if not new_epoch and (not seconds or self._steps < self._ask):
            return False
        ranks, answer = world.current(), None
        if ranks.rank == 0:
            answer = self._answer(new_epoch, seconds, store)
        now, wait = ranks.broadcast(answer, "ask whether a checkpoint is due")
        self._asked, self._asked_at = self._steps, time.monotonic()
        self._ask = self._steps + wait
        return bool(now)

    def _answer(self, new_epoch: bool, seconds: float, store: Checkpoints) -> tuple[bool, int]:
        """Whether one is due, and the steps until the next question."""
        now = time.monotonic()
        since = now - self._saved_at
        due = (new_epoch or since >= seconds) and not store.busy
        remaining = seconds if due else max(0.0, seconds - since)
        steps = self._steps - self._asked
        each = max(1e-6, (now - self._asked_at) / max(1, steps))
        return due, max(1, min(int(remaining / each), 2 * steps))

    def saved(self) -> None:
        """One has been taken, or gone on from."""
        self._saved_at = time.monotonic()
