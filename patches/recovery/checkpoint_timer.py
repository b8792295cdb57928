"""When a checkpoint is due: rank 0 decides by its clock, and by SIGUSR1; all ranks ask it before the same steps, and
tell whether they have got SIGTERM."""

from __future__ import annotations

import enum
import math
import os
import signal
import time

from matex_tf.core import world
from matex_tf.core.slots import Checkpoints

#: The longest that SIGUSR1 waits for the next question: Slurm sends it shortly before the time limit.
_SECONDS_BETWEEN_QUESTIONS = 5.0
#: Seconds in which all ranks get a SIGTERM that is for all of them. One that only some have ends these.
_SECONDS_FOR_ALL = 2.0


class Due(enum.Enum):
    """What is to be done before a step."""

    NOTHING = enum.auto()
    SAVE = enum.auto()
    SAVE_AND_END = enum.auto()  # the whole job


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

    def due(self, new_epoch: bool, store: Checkpoints) -> Due:
        """Whether a checkpoint is to be taken now, the same on every rank.

        Args:
            new_epoch: whether an epoch begins.
            store: where it would go.
        """
        self._steps += 1
        if not new_epoch and self._steps < self._ask:
            return Due.NOTHING
        ranks, answer = world.current(), None
        if ranks.rank == 0:
            answer = self._answer(new_epoch, store)
        now, wait = self._meet(answer)
        self._asked, self._asked_at = self._steps, time.monotonic()
        self._ask = self._steps + wait
        return Due(now)

    def _meet(self, answer: tuple[int, int] | None) -> tuple[int, int]:
        """What rank 0 has answered; to end, where all ranks were told so."""
        ranks = world.current()
        assert ranks.checkpoints is not None
        told = ranks.checkpoints.told_to_end
        said = ranks.allgather((answer, bool(told)), "ask whether a checkpoint is due")
        now, wait = next(answer for answer, _ in said if answer is not None)
        if all(end for _, end in said):
            return Due.SAVE_AND_END.value, wait
        if told and time.monotonic() > told + _SECONDS_FOR_ALL:
            os.kill(os.getpid(), signal.SIGTERM)
        return now, 1 if any(end for _, end in said) else wait

    def _answer(self, new_epoch: bool, store: Checkpoints) -> tuple[int, int]:
        """What is due, and the steps until the next question."""
        now = time.monotonic()
        since = now - self._saved_at if store.seconds else 0.0
        seconds = store.seconds or math.inf  # with 0 only new epochs have one
        due = (new_epoch or since >= seconds) and not store.busy
        remaining = min(_SECONDS_BETWEEN_QUESTIONS, seconds if due else max(0.0, seconds - since))
        steps = self._steps - self._asked
        each = max(1e-6, (now - self._asked_at) / max(1, steps))
        what = Due.SAVE_AND_END if store.asked_to_end else Due.SAVE if due else Due.NOTHING
        return what.value, max(1, min(int(remaining / each), 2 * steps))

    @property
    def until_next(self) -> int:
        """Steps until the next question."""
        return self._ask - self._steps

    def begin_with(self, steps: int) -> None:
        """On a rank that has come: be asked after so many steps, as the others are."""
        self._ask = self._steps + steps

    def saved(self) -> None:
        """One has been taken, or gone on from."""
        self._saved_at = time.monotonic()
