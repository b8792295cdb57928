"""Ranks that come while a job runs (`matex-tf join`): the mirror of what `transactions` does where ranks die.

A rank of the job starts each of them on its own host, as a world of its own that runs the script alone: it imports,
makes the model, traces a step and draws the batches that the job has used, while the job trains. The first rank of the
job says who starts one, and has a connection to it. When it says that it is where
the job was a moment ago, the ranks of the job stop before their next step. The first one sends what a checkpoint would
hold, by that connection; the rank that comes takes it, or refuses in words. Only then do the two worlds become
one. So whatever goes wrong with it before costs the job nothing, and what goes wrong after that is a rank that dies:
where a rank that has come differs from those that began the job, or has an error, it is left behind. Its first two
steps are a trial, which has a limit of time. The `fit`s that are over it does not run: it takes what they have left.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf import settings as settings_module
from matex_tf.core.world import World
from matex_tf.errors import harmless
from matex_tf.faults.transactions import kill
from matex_tf.features.join import placement
from matex_tf.features.join.arrival import Line
from matex_tf.features.join.wanted_hosts import WantedHosts
from matex_tf.settings import Settings
from matex_tf.state import run_state

#: Seconds in which a rank of another host hears whom it shall start, which the ranks say before steps of a `fit`.
_ORDER_SECONDS = 180.0
#: Seconds in which a rank that comes takes what it is given: it draws a few batches, and assigns its variables.
_SECONDS = 60.0
#: The steps of its trial: callbacks hear of the second one from its beginning on. Seconds of what comes before and of
#: these, at the most; MATEX_TEST_TRIAL_SECONDS in tests.
_TRIAL_STEPS = 2
_TRIAL_SECONDS = 180.0
#: Bytes of what the `fit`s that are over have left, at the most.
_MOST_BYTES = 1 << 29
#: Seconds after one was lost in which no other is started, in a job on several hosts: where one dies as the next is
#: being started there, Open MPI 5 was seen to fail to start that, or to wait for it for ever.
_PAUSE_SECONDS = 2.0
_STARTER_DIED = "the rank of its host that starts it has died; try again"


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
        host: where it is.
        starter: the rank of that host which starts it, see `World.first_ranks`.
        watch: loses it if it does not start in time.
        process: what it is to its machine, see `namespaces.process`.
        line: to it; None until it has said who it is.
        ready: the call of `fit` in which it waits for what it is given, or loop, see `Growth.at`; 0 before.
        calls: of compiled steps in the script's own loops, of which it knows what they have returned.
        over: set when it has come, or will not.
        said: how that went, in words; came: whether it has come.
    """

    number: int
    asked: float
    host: str = ""
    starter: int = -1
    watch: threading.Timer | None = None
    process: tuple[str, int, int] = ("", 0, 0)
    line: Line | None = None
    ready: float = 0
    calls: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    said: str = ""
    came: bool = False

    def end(self, said: str, came: bool = False) -> None:
        """It has come, or will not."""
        self.said, self.came, self.ready = said, came, 0
        if self.watch is not None:
            self.watch.cancel()
        if self.line is not None and not came:
            self.line.close()
        self.over.set()


class Growth:
    """The ranks that come to a world. All ranks have one; the first of those that are left answers.

    Attributes:
        left_because: why the last one that had to leave had to, in words.
        dealt: of the `DataSet` of the `fit` that is under way, see `patches.data.lost_rows.Orphans.told`.
        leaves: whether this rank was told to leave (SIGTERM): it does so after a step, and nothing is run again.
        returned: what compiled steps have returned in the script's own loops since so many calls; in any thread.
    """

    def __init__(self, world: World, run: dict[str, Any], cores: Mapping[str, int] | None = None):
        """Args: run: what the job runs, see `watching.registry.Entry`. cores: of each host."""
        self._world, self._run, self._cores = world, run, dict(cores or {})
        self.starter = placement.Starter(world)
        self._coming: dict[int, _Coming] = {}
        self._numbers = itertools.count(world.size)
        self._reached: dict[str, Any] = {}
        self._fit: float = 0
        self.left_because, self.leaves = "", False
        self.returned: Callable[[int], bytes] = lambda calls: b""
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, functools.partial(self._told_to_leave, os.getpid()))
        self._at: tuple[int, int] | None = None
        self.dealt: tuple[Any, ...] | None = None
        self._left: dict[float, tuple[dict[str, Any], Callable[[], bytes]]] = {}
        self._left_bytes = 0
        self._steps_to_try = 0
        self._most = settings_module.current().max_ranks
        self._wanted = WantedHosts(world, self.starter, lambda: self.on_their_way, self.bring)
        self._trial: tuple[_Coming | None, threading.Timer] | None = None  # whom this rank has in view
        self._came_at = "", 0.0, 0.0
        self._lost_at = -math.inf

    def _told_to_leave(self, process: int, *_: Any) -> None:
        """SIGTERM: a second one ends this rank at once, and the first one a process that it has forked."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process or self._world.arrival is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        self.leaves = True

    def fit(self, model: Any, run: Callable[[], Any]) -> Any:
        """Run a `fit` to which ranks can come, see `patches.growing_fit.fit`."""
        from matex_tf.features.join.patches import growing_fit

        return growing_fit.fit(model, run)

    def loops(self) -> Any:
        """The compiled steps of the script's own loops, see `patches.growing_loop.Loops`."""
        from matex_tf.features.join.patches import growing_loop

        return run_state.current().part(growing_loop.Loops)

    def on_batch(self, step: Any, data: Any, compute: Callable[[], Any]) -> Any:
        """Run a step of a model on a batch that the script has made, see `patches.growing_batches.on_batch`."""
        from matex_tf.features.join.patches import growing_batches

        return growing_batches.on_batch(self.loops(), step, data, compute)

    def reached_at(self, **place: Any) -> None:
        """Say where this rank answers: addresses, port and token."""
        self._reached = place

    def at(self, fit: float, place: tuple[int, int] | None) -> None:
        """The script is in one of its calls of `fit`, or at a step of a loop of its own.

        Args:
            fit: the number of the call; of a loop, half of one more than that of the last call before it.
            place: the epoch and the step that are about to begin; None where it is over.
        """
        self._fit, self._at = fit, place
        if self._trial is not None:
            self._steps_to_try -= 1
            self._end_trial()
        for one in list(self._coming.values()):
            over = one.ready
            if 0 < over < fit or (over == fit and place is None):
                one.ready = 0
                threading.Thread(target=self._listen, args=(one, over), daemon=True).start()

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
            said: what it wants, as `ask`: "join" is a command that wants ranks, how many in `ranks`; "hosts" a launcher
                whose `file` has changed, with how many ranks each of `hosts` shall have; anything else is a rank that
                comes, with its `number` and its `process`.
            connection: to it, from which that was read.
        """
        work = {"join": self._bring, "hosts": self._follow}.get(said["ask"], self._hear)
        threading.Thread(target=work, args=(said, Line(connection)), daemon=True).start()

    def _bring(self, said: dict[str, Any], line: Line) -> None:
        """Start ranks, and tell whoever wants them what comes of it."""
        coming = self.bring(int(said["ranks"]), said.get("hosts") or {})
        try:
            for one in coming:
                one.over.wait()
                line.say({"said": one.said, "came": one.came})
            line.close()
        except OSError:
            pass  # nobody waits for it any more

    def _follow(self, said: dict[str, Any], line: Line) -> None:
        """Have ranks come and leave, as a file wants it; the launcher is told that this rank has heard."""
        with contextlib.suppress(OSError):
            line.say({"heard": True})
            line.close()
        self._wanted.follow(str(said["file"]), {str(name): int(count) for name, count in said["hosts"].items()})

    @property
    def on_their_way(self) -> list[str]:
        """The hosts of the ranks that are coming."""
        return [one.host for one in list(self._coming.values()) if not one.over.is_set()]

    def bring(self, ranks: int, hosts: Mapping[str, int]) -> list[_Coming]:
        """Start so many ranks, in threads of their own. Args: hosts: see `placement.read`."""
        coming = []
        places = placement.Placement(self._world, self._cores, hosts)
        for _ in range(ranks):
            on_their_way = self.on_their_way
            host, why = places.next(on_their_way)
            if 0 < self._most <= self._world.size + len(on_their_way):
                why = f"the job has --max-ranks {self._most}"
            if why:
                coming.append(_Coming(-1, time.monotonic()))
                self._lose(coming[-1], f"a joining rank is refused: {why}")
                continue
            while (number := next(self._numbers)) <= max(self._world.first_ranks):
                pass
            one = self._coming[number] = _Coming(number, time.monotonic(), host, places.starter(host))
            coming.append(one)
            threading.Thread(target=self._start, args=(one,), daemon=True).start()
        return coming

    @property
    def _own(self) -> int:
        return self._world.first_ranks[self._world.rank]

    def _start(self, one: _Coming) -> None:
        if len(self._world.nodes) > 1:
            time.sleep(max(0.0, self._lost_at + _PAUSE_SECONDS - time.monotonic()))
        before = [other for other in list(self._coming.values()) if other.host == one.host and not other.over.is_set()]
        place = self._world.hosts.count(one.host) + before.index(one)
        told = {
            **{"run": self._run, "number": one.number, "founders": self._world.founders},
            **{"cores": self._cores, "place": place, **self._reached},
        }
        if one.starter != self._own:
            late = f"is refused: the job has not come to a step of a fit, and ranks on {one.host} start at one"
            self._watch(one, _ORDER_SECONDS, late)
            self.starter.ask_another(one.starter, told)
        elif why := self.starter.start(told, lambda: self._watch_start(one)):
            self._lose(one, why)

    def _watch(self, one: _Coming, seconds: float, late: str) -> None:
        """Lose one in so many seconds if it has not said who it is. Args: late: why, in words."""
        if one.watch is not None:
            one.watch.cancel()
        one.watch = threading.Timer(seconds, self._lose, (one, f"a joining rank {late}"))
        one.watch.daemon = True
        one.watch.start()

    def _watch_start(self, one: _Coming) -> None:
        """Open MPI waits for ever for a program that dies as it starts."""
        seconds = placement.START_SECONDS
        self._watch(one, seconds, f"did not start within {seconds:.0f} s, or died before")

    def told(self, said: Sequence[dict[str, Any]]) -> None:
        """What all ranks have told one another, see `Starter.tells`."""
        for words in said:
            if words.get("leave") == self._own and not self.leaves:
                os.kill(os.getpid(), signal.SIGTERM)
            if words.get("by") == self._own:
                self.starter.start_for_another(words["told"])
            one = self._coming.get(words.get("start", -1))
            if one is None or one.over.is_set():
                continue
            if "failed" in words:
                self._lose(one, words["failed"])
            elif one.starter not in self._world.first_ranks:
                self._lose(one, f"a joining rank is refused: {_STARTER_DIED}")
            else:
                self._watch_start(one)

    def bridge_to(self, number: int, starter: int, process: tuple[str, int, int]) -> tuple[Any, int]:
        """What `World.extend` wants of a rank that is let in: the bridge, where this rank has it, and which one does.

        Args:
            number, starter, process: see `_Coming`. Whoever has the bridge kills it if its trial takes too long.

        Returns:
            The bridge or None, and a rank; -1 where that one has died.
        """
        bridge, first = self.starter.bridges.pop(number, None), self._world.first_ranks
        if bridge is not None and (self._trial is None or self._trial[0] is None):
            self._begin_trial(None, lambda: kill(process))
        return bridge, first.index(starter) if starter in first else -1

    def _begin_trial(self, one: _Coming | None, end: Callable[[], None]) -> None:
        seconds = float(os.environ.get("MATEX_TEST_TRIAL_SECONDS", _TRIAL_SECONDS))
        if self._trial is not None:
            self._trial[1].cancel()
        watch = threading.Timer(seconds, end)
        watch.daemon = True
        watch.start()
        self._trial, self.left_because, self._steps_to_try = (one, watch), "", _TRIAL_STEPS

    def _hear(self, said: dict[str, Any], line: Line) -> None:
        """A rank that comes: where is the job?"""
        one = self._coming.get(int(said["number"]))
        if one is None or one.line is not None or one.over.is_set():
            line.close()
            return
        host, namespace, number = said["process"]
        one.line, one.process = line, (host, namespace, number)
        if one.watch is not None:
            one.watch.cancel()
        self._listen(one)

    def _listen(self, one: _Coming, over: float = 0) -> None:
        """Args: over: the `fit` in which it waits, and which is over."""
        line = one.line
        assert line is not None
        try:
            if over:
                line.say(*self._where(over))
            while "ready" not in (words := line.hear()[0]):
                if "refused" in words:
                    return self._lose(one, f"a joining rank is refused: {words['refused']}")
                line.say(*self._where(float(words["where"]), int(words["calls"])))
        except (OSError, ValueError, KeyError):
            return self._lose(one, "a joining rank has died before it took part")
        one.calls = int(words["calls"])
        one.ready = float(words["ready"])

    def _where(self, fit: float, calls: int = 0) -> tuple[dict[str, Any], bytes]:
        at, now = self._at, self._fit
        if fit < now or (fit == now and at is None):
            words, state = self._left.get(fit, ({"lost": True}, bytes))
            return {"over": True, **words}, state()
        if at is None or fit > now:
            return {"wait": True}, b""
        if fit % 1:
            return {}, self.returned(calls)
        return {"epoch": at[0], "step": at[1], "dealt": self.dealt}, b""

    def _lose(self, one: _Coming, why: str) -> None:
        why = harmless(why)
        self._lost_at = time.monotonic()
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
        if one is None or one.line is None:
            return None
        if one.starter not in self._world.first_ranks:
            why_not = _STARTER_DIED
        if why_not:
            self._lose(one, f"a joining rank is refused: {why_not}")
            return None
        one.ready = 0
        self._begin_trial(one, functools.partial(_give_up, one.process, one.line))
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
        if one is None:  # the first rank says how it went
            if self._steps_to_try <= 0 or self._at is None:
                self._trial = None
                watch.cancel()
            return None
        world, (where, waited, after) = self._world, self._came_at
        if one.number not in world.first_ranks:
            return self._fail(
                f"had to leave: {self.left_because}" if self.left_because else "has died in its first steps"
            )
        if self._steps_to_try > 0 and self._at is not None:
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
        assert one is not None
        self._lose(one, f"a joining rank {how}")
        kill(one.process)  # it may hang


def _give_up(process: tuple[str, int, int], line: Line) -> None:
    """End a rank that may hang, where this one can, and do not wait for it."""
    kill(process)
    line.cut()
