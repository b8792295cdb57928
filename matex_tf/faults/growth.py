"""Ranks that come while a job runs (`matex-tf join`): the mirror of what `transactions` does where ranks die.

The first rank of the job starts each of them, as a world of its own that runs the script alone: it imports, makes the
model, traces a step and draws the batches that the job has used, while the job trains. When it says that it is where
the job was a moment ago, the ranks of the job stop before their next step. The first one sends what a checkpoint would
hold, by a connection of its own; the rank that comes takes it, or refuses in words. Only then do the two worlds become
one. So whatever goes wrong with it before costs the job nothing, and what goes wrong after that is a rank that dies.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matex_tf.core.world import World
from matex_tf.errors import CommunicationError, harmless
from matex_tf.faults.arrival import Line
from matex_tf.settings import Settings

#: Seconds in which a rank that comes takes what it is given: it draws a few batches, and assigns its variables.
_SECONDS = 60.0
#: What ranks that come have of the environment of the first one.
_PASSED_ON = ("TF_", "OMP_", "KERAS_", "XLA_", "PYTHONPATH")


def why_not(settings: Settings) -> str:
    """Why ranks cannot come to a job with these settings, in words; empty where they can."""
    if settings.faults != "shrink":
        return f"its --faults is {settings.faults}: ranks come and go with --faults shrink"
    if settings.strategy != "sync":
        return f"its ranks train independently (--strategy {settings.strategy})"
    for name, plain in (("batch", "global"), ("shard", "none"), ("reproducible", 0), ("transport", "mpi")):
        if getattr(settings, name) != plain:
            return f"it has --{name} {getattr(settings, name)}"
    return ""


@dataclass
class _Coming:
    """A rank that is on its way.

    Attributes:
        number: see `World.first_ranks`.
        asked: when it was asked for, by the monotonic clock.
        bridge: see `Communicator.extend`; None until it has started.
        line: to it; None until it has said who it is.
        ready: the call of `fit` in which it waits for what it is given; 0 before.
        over: set when it has come, or will not.
        said: how that went, in words; came: whether it has come.
    """

    number: int
    asked: float
    bridge: Any = None
    line: Line | None = None
    ready: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    said: str = ""
    came: bool = False

    def end(self, said: str, came: bool = False) -> None:
        """It has come, or will not."""
        self.said, self.came, self.ready = said, came, 0
        if self.line is not None and not came:
            self.line.close()
        self.over.set()


class Growth:
    """The ranks that come to a world. All ranks have one; the first of those that are left answers."""

    def __init__(self, world: World, run: dict[str, Any]):
        """Args: run: what the job runs, see `watching.registry.Entry`."""
        self._world, self._run = world, run
        self._coming: dict[int, _Coming] = {}
        self._numbers = itertools.count(world.size)
        self._reached: dict[str, Any] = {}
        self._fit = 0
        self._at: tuple[int, int] | None = None

    def reached_at(self, **place: Any) -> None:
        """Say where this rank answers: addresses, port and token."""
        self._reached = place

    def at(self, fit: int, place: tuple[int, int] | None) -> None:
        """The script is in one of its calls of `fit`.

        Args:
            place: the epoch and the step that are about to begin; None where it is over.
        """
        self._fit, self._at = fit, place
        for one in list(self._coming.values()) if place is None else ():
            if one.ready == fit:
                self._lose(one, f"a rank that was to come is refused: fit {fit} is over")

    @property
    def ready(self) -> _Coming | None:
        """A rank that waits to be let in."""
        return next((one for one in list(self._coming.values()) if one.ready == self._fit), None)

    def answer(self, said: dict[str, Any], connection: socket.socket) -> None:
        """Somebody who knows the token wants something: in a thread of its own, which closes the connection."""
        work = self._bring if said["ask"] == "join" else self._hear
        threading.Thread(target=work, args=(said, Line(connection)), daemon=True).start()

    def _bring(self, said: dict[str, Any], line: Line) -> None:
        """Start ranks, and tell whoever wants them what comes of it."""
        coming = []
        for _ in range(int(said["ranks"])):
            while (number := next(self._numbers)) <= max(self._world.first_ranks):
                pass
            one = self._coming[number] = _Coming(number, time.monotonic())
            coming.append(one)
            threading.Thread(target=self._start, args=(one, str(said.get("host", ""))), daemon=True).start()
        try:
            for one in coming:
                one.over.wait()
                line.say({"said": one.said, "came": one.came})
            line.close()
        except OSError:
            pass  # nobody waits for it any more

    def _start(self, one: _Coming, host: str) -> None:
        environ = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        told = {"run": self._run, "number": one.number, "environ": environ, "path": sys.path[1:], **self._reached}
        try:
            one.bridge = self._world.start([sys.executable, "-m", "matex_tf.job.newcomer"], told, host)
        except CommunicationError as error:
            self._lose(one, f"a rank that was to come cannot be started: {error}")

    def _hear(self, said: dict[str, Any], line: Line) -> None:
        """A rank that comes: where is the job?"""
        one = self._coming.get(int(said["number"]))
        if one is None or one.line is not None:
            line.close()
            return
        one.line = line
        try:
            while "ready" not in (words := line.hear()[0]):
                if "refused" in words:
                    return self._lose(one, f"a rank that was to come is refused: {words['refused']}")
                line.say(self._where(int(words["where"])))
        except (OSError, ValueError, KeyError):
            return self._lose(one, "a rank that was to come has died")
        one.ready = int(words["ready"])

    def _where(self, fit: int) -> dict[str, Any]:
        at, now = self._at, self._fit
        if fit < now or (fit == now and at is None):
            return {"past": True}
        if at is None or fit > now:
            return {"wait": True}
        return {"epoch": at[0], "step": at[1]}

    def _lose(self, one: _Coming, why: str) -> None:
        why = harmless(why)
        self._world.log(why)
        one.end(why)

    def hand_over(self, why_not: str, place: dict[str, Any], state: Callable[[], bytes]) -> _Coming | None:
        """On the first rank, before a step: give the training to the rank that waits; None if it does not take it.

        Args:
            why_not: why no rank can come here, in words; else empty.
            place: where the job is, plain values.
            state: gives all that a training has changed.
        """
        one = self.ready
        if one is None or one.line is None or one.bridge is None:
            return None
        if why_not:
            self._lose(one, f"a rank that was to come is refused: {why_not}")
            return None
        try:
            one.line.say(place, state())
            said = one.line.hear(_SECONDS)[0]
        except (OSError, ValueError):
            self._lose(one, "a rank that was to come has died")
            return None
        if "refused" in said:
            self._lose(one, f"a rank that was to come is refused: {said['refused']}")
            return None
        return one

    def came(self, one: _Coming, came: bool, where: str, waited: float) -> None:
        """Say how it went. Args: where: the job is; waited: seconds that it has waited."""
        if not came:
            return self._lose(one, "a rank that was to come has died")
        world = self._world
        said = (
            f"a rank on {world.hosts[-1]} has come, and {world.size} ranks go on at {where}: the job has waited "
            f"{waited:.2f} s, {time.monotonic() - one.asked:.1f} s after the rank was asked for"
        )
        world.log(said)
        one.end(said, came=True)
