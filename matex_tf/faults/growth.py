"""Ranks that come while a job runs (`matex-tf join`): the mirror of what `transactions` does where ranks die.

The first rank of the job starts each of them, as a world of its own that runs the script alone: it imports, makes the
model, traces a step and draws the batches that the job has used, while the job trains. When it says that it is where
the job was a moment ago, the ranks of the job stop before their next step. The first one sends what a checkpoint would
hold, by a connection of its own; the rank that comes takes it, or refuses in words. Only then do the two worlds become
one. So whatever goes wrong with it before costs the job nothing, and what goes wrong after that is a rank that dies:
where a rank that has come differs from those that began the job, or has an error, it is left behind. Its first two
steps are a trial, which has a limit of time. The `fit`s that are over it does not run: it takes what they have left.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matex_tf import settings as settings_module
from matex_tf.core.world import World
from matex_tf.errors import CommunicationError, harmless
from matex_tf.faults.arrival import Line
from matex_tf.faults.transactions import kill
from matex_tf.settings import Settings

#: Seconds in which the program of a rank that comes has joined MPI, which it does before it imports TensorFlow.
_START_SECONDS = 90.0
#: Seconds in which a rank that comes takes what it is given: it draws a few batches, and assigns its variables.
_SECONDS = 60.0
#: The steps of its trial: callbacks hear of the second one from its beginning on. Seconds of what comes before and of
#: these, at the most; MATEX_TEST_TRIAL_SECONDS in tests.
_TRIAL_STEPS = 2
_TRIAL_SECONDS = 180.0
#: Bytes of what the `fit`s that are over have left, at the most.
_MOST_BYTES = 1 << 29
#: What ranks that come have of the environment of the first one.
_PASSED_ON = ("TF_", "OMP_", "KERAS_", "XLA_", "PYTHONPATH")


def why_not(settings: Settings) -> str:
    """Why ranks cannot come to a job with these settings, in words; empty where they can."""
    if settings.faults != "shrink":
        return f"its --faults is {settings.faults}: ranks come and go with --faults shrink"
    if settings.strategy != "sync":
        return f"its ranks train independently (--strategy {settings.strategy})"
    for name, plain in (("batch", "global"), ("reproducible", 0), ("transport", "mpi")):
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
        process: what it is to its machine, see `namespaces.process`.
        line: to it; None until it has said who it is.
        ready: the call of `fit` in which it waits for what it is given; 0 before.
        over: set when it has come, or will not.
        said: how that went, in words; came: whether it has come.
    """

    number: int
    asked: float
    bridge: Any = None
    process: tuple[str, int, int] = ("", 0, 0)
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
    """The ranks that come to a world. All ranks have one; the first of those that are left answers.

    Attributes:
        left_because: why the last one that had to leave had to, in words.
        dealt: of the `DataSet` of the `fit` that is under way, see `patches.data.lost_rows.Orphans.told`.
        leaves: whether this rank was told to leave (SIGTERM): it does so after a step, and nothing is run again.
    """

    def __init__(self, world: World, run: dict[str, Any]):
        """Args: run: what the job runs, see `watching.registry.Entry`."""
        self._world, self._run = world, run
        self._coming: dict[int, _Coming] = {}
        self._numbers = itertools.count(world.size)
        self._reached: dict[str, Any] = {}
        self._fit, self.left_because, self.leaves = 0, "", False
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, functools.partial(self._told_to_leave, os.getpid()))
        self._at: tuple[int, int] | None = None
        self.dealt: tuple[Any, ...] | None = None
        self._left: dict[int, tuple[dict[str, Any], Callable[[], bytes]]] = {}
        self._left_bytes = 0
        self._steps_to_try = 0
        self._most = settings_module.current().max_ranks
        self._starting = threading.Lock()  # MPI starts one at a time
        self._trial: tuple[_Coming, threading.Timer] | None = None
        self._came_at = "", 0.0, 0.0

    def _told_to_leave(self, process: int, *_: Any) -> None:
        """SIGTERM: a second one ends this rank at once, and the first one a process that it has forked."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process or self._world.arrival is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        self.leaves = True

    def reached_at(self, **place: Any) -> None:
        """Say where this rank answers: addresses, port and token."""
        self._reached = place

    def at(self, fit: int, place: tuple[int, int] | None) -> None:
        """The script is in one of its calls of `fit`.

        Args:
            place: the epoch and the step that are about to begin; None where it is over.
        """
        self._fit, self._at = fit, place
        if self._trial is not None:
            self._steps_to_try -= 1
            self._end_trial()
        for one in list(self._coming.values()) if place is None else ():
            if one.ready == fit:
                one.ready = 0
                threading.Thread(target=self._listen, args=(one, fit), daemon=True).start()

    def leave(self, fit: int, words: dict[str, Any], state: Callable[[], bytes], size: int) -> None:
        """Keep what a call of `fit` has left, for ranks that come later.

        Args:
            state: gives that, in any thread.
            size: bytes of it, about.
        """
        self._left[fit] = words, state
        self._left_bytes += size
        if self._left_bytes > _MOST_BYTES:
            self._left.clear()

    @property
    def ready(self) -> _Coming | None:
        """A rank that waits to be let in; while another one is on trial it goes on waiting."""
        if self._trial is not None:
            return None
        return next((one for one in list(self._coming.values()) if one.ready == self._fit), None)

    def answer(self, said: dict[str, Any], connection: socket.socket) -> None:
        """Somebody who knows the token wants something: in a thread of its own, which closes the connection.

        Args:
            said: what it wants, as `ask`: "join" is a command that wants ranks, how many in `ranks`; anything else is a
                rank that comes, with its `number` and its `process`.
            connection: to it, from which that was read.
        """
        work = self._bring if said["ask"] == "join" else self._hear
        threading.Thread(target=work, args=(said, Line(connection)), daemon=True).start()

    def _bring(self, said: dict[str, Any], line: Line) -> None:
        """Start ranks, and tell whoever wants them what comes of it."""
        coming = []
        for _ in range(int(said["ranks"])):
            if why := self._no_room(str(said.get("host", ""))):
                coming.append(_Coming(-1, time.monotonic()))
                self._lose(coming[-1], f"a joining rank is refused: {why}")
                continue
            while (number := next(self._numbers)) <= max(self._world.first_ranks):
                pass
            one = self._coming[number] = _Coming(number, time.monotonic())
            coming.append(one)
            threading.Thread(target=self._start, args=(one,), daemon=True).start()
        try:
            for one in coming:
                one.over.wait()
                line.say({"said": one.said, "came": one.came})
            line.close()
        except OSError:
            pass  # nobody waits for it any more

    def _no_room(self, host: str) -> str:
        """Why no other rank is started, in words; empty where one is. Args: host: where it would be."""
        if host or len(self._world.nodes) > 1:  # Open MPI 5 was seen to end ranks of the job
            return "ranks come to a job on one host, and to that host (no --hosts)"
        expected = self._world.size + sum(not one.over.is_set() for one in self._coming.values())
        return f"the job has --max-ranks {self._most}" if 0 < self._most <= expected else ""

    def _start(self, one: _Coming) -> None:
        environ = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        told = {
            **{"run": self._run, "number": one.number, "founders": self._world.founders, "environ": environ},
            **{"path": sys.path[1:], **self._reached},
        }
        if not self._starting.acquire(timeout=_START_SECONDS):
            return self._lose(
                one, "a joining rank is refused: an earlier one has not started yet, or has died; try again"
            )
        watch = threading.Timer(_START_SECONDS, self._late, (one,))
        watch.daemon = True
        watch.start()
        try:
            one.bridge = self._world.start([sys.executable, "-m", "matex_tf.job.newcomer"], told)
        except CommunicationError as error:
            self._lose(one, f"a joining rank cannot be started: {error}")
        watch.cancel()
        self._starting.release()

    def _late(self, one: _Coming) -> None:
        """Open MPI waits for ever for a program that dies as it starts."""
        self._lose(one, f"a joining rank did not start within {_START_SECONDS:.0f} s, or died before")

    def _hear(self, said: dict[str, Any], line: Line) -> None:
        """A rank that comes: where is the job?"""
        one = self._coming.get(int(said["number"]))
        if one is None or one.line is not None or one.over.is_set():
            line.close()
            return
        host, namespace, number = said["process"]
        one.line, one.process = line, (host, namespace, number)
        self._listen(one)

    def _listen(self, one: _Coming, over: int = 0) -> None:
        """Args: over: the `fit` in which it waits, and which is over."""
        line = one.line
        assert line is not None
        try:
            if over:
                line.say(*self._where(over))
            while "ready" not in (words := line.hear()[0]):
                if "refused" in words:
                    return self._lose(one, f"a joining rank is refused: {words['refused']}")
                line.say(*self._where(int(words["where"])))
        except (OSError, ValueError, KeyError):
            return self._lose(one, "a joining rank has died before it took part")
        one.ready = int(words["ready"])

    def _where(self, fit: int) -> tuple[dict[str, Any], bytes]:
        at, now = self._at, self._fit
        if fit < now or (fit == now and at is None):
            words, state = self._left.get(fit, ({"lost": True}, bytes))
            return {"over": True, **words}, state()
        if at is None or fit > now:
            return {"wait": True}, b""
        return {"epoch": at[0], "step": at[1], "dealt": self.dealt}, b""

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
            self._lose(one, f"a joining rank is refused: {why_not}")
            return None
        seconds = float(os.environ.get("MATEX_TEST_TRIAL_SECONDS", _TRIAL_SECONDS))
        watch = threading.Timer(seconds, kill, (one.process,))
        watch.daemon = True
        watch.start()
        one.ready = 0
        self._trial, self.left_because = (one, watch), ""
        try:
            one.line.say(place, state())
            said = one.line.hear(_SECONDS)[0]
        except (OSError, ValueError):
            said = {}
        if "here" in said:
            return one
        self._fail(f"is refused: {said['refused']}" if "refused" in said else "has died")
        return None

    def came(self, one: _Coming, came: bool, where: str, waited: float) -> None:
        """Say how it went: once its trial is over. Args: where: the job is; waited: seconds that it has waited."""
        assert self._trial is not None
        self._came_at = where, waited, time.monotonic() - one.asked
        self._steps_to_try = _TRIAL_STEPS
        if not came:
            self._fail("has died")

    def _end_trial(self) -> None:
        assert self._trial is not None
        one, watch = self._trial
        world, (where, waited, after) = self._world, self._came_at
        if one.number not in world.first_ranks:
            return self._fail(
                f"had to leave: {self.left_because}" if self.left_because else "has died in its first steps"
            )
        if self._steps_to_try and self._at is not None:
            return None
        self._trial = None
        watch.cancel()
        said = (
            f"a rank on {world.hosts[-1]} has joined, and {world.size} ranks continue at {where}: the job has waited "
            f"{waited:.2f} s, {after:.1f} s after the rank was asked for"
        )
        world.log(said)
        return one.end(said, came=True)

    def _fail(self, how: str) -> None:
        assert self._trial is not None
        (one, watch), self._trial = self._trial, None
        watch.cancel()
        self._lose(one, f"a joining rank {how}")
        kill(one.process)  # it may hang
