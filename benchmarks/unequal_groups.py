"""Groups that train apart, event by event: what formulas cannot say of unequal groups, and of thousands of them.

A group computes for a time of its own, drawn for each step. It has one link, which sends and receives at the same time
and one message after the other, and one thread at a time that works on messages of the center; a message arrives some
latency after it was sent. What training decides is decided by the same functions here: when a group meets the center,
which servers it asks for how many numbers and in which order, how many parts of batches it is dealt at once and how far
ahead it asks for them, and when a push is answered (`center.schedule`); and at which steps all groups meet about which
part of the weights (`turns` of `local`). The center lies in pieces on all groups, as in training; the first one deals
out the parts of batches. Where there are more groups than `EXACT`, a meeting draws some of its servers, each of which
stands for as many as were not drawn, with their numbers, heads and work: so the load of all is right, and ten thousand
groups need no 10^8 events. An exchange of all groups takes as long as `cost_model` says. There are no ends of epochs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from matex_tf.features.groups.center.schedule import Meetings, Supply, answered_at, parts_at_once, ranges
from matex_tf.features.groups.local import LocalOptions, turns
from matex_tf.planning.cost_model import Machine, hierarchical

#: Up to so many groups each message is simulated; of more a meeting draws so many servers.
EXACT, DRAWN = 100, 8


@dataclass(frozen=True)
class Cluster:
    """Groups, their links and their steps.

    Attributes:
        groups: how many.
        compute: seconds of a step of a group, on average.
        jitter: standard deviation of its logarithm.
        slow: the part of the groups that take three times as long.
        nbytes: of the weights.
        alpha, beta: of the links between groups, as in `cost_model.Machine`.
        head: bytes of a message of the center besides its numbers: what it asks, and the headers of TCP.
        work: seconds of a core for each message of the center that a process gets, besides what its numbers take.
    """

    groups: int
    compute: float
    nbytes: float
    alpha: float
    beta: float
    jitter: float = 0.1
    slow: float = 0.01
    head: float = 300.0
    work: float = 40e-6

    def times(self, steps: int, seed: int = 0) -> np.ndarray:
        """Seconds of each step of each group, float64 of shape (groups, steps).

        Args:
            steps: how many of each group.
            seed: of what is drawn; the slow groups are always the first ones.
        """
        random = np.random.default_rng(seed)
        drawn = self.compute * np.exp(self.jitter * random.normal(size=(self.groups, steps)) - self.jitter**2 / 2)
        drawn[: round(self.slow * self.groups)] *= 3
        return drawn

    def exchange(self, part: float = 1.0) -> float:
        """Seconds of a sum of a part of the weights over all groups."""
        return hierarchical(self.groups, self.nbytes * part, Machine(self.alpha, self.beta, 0.0)).seconds

    def asks(self, group: int) -> list[tuple[int, float]]:
        """What a group asks at a meeting: servers, which are the groups, and the bytes there and back; not itself."""
        numbers = round(self.nbytes / 4)
        asked = ranges(numbers, self.groups, (0, numbers), first=group)
        return [(one.piece, 4.0 * (one.high - one.low) + self.head) for one in asked if one.piece != group]


def together(cluster: Cluster, steps: int, options: LocalOptions) -> float:
    """Steps a second of all groups, where they meet as local does; sync is a meeting in each step.

    Args:
        cluster: the groups.
        steps: that each of them makes.
        options: how often they meet, and in how many parts.
    """
    times, parts = cluster.times(steps), options.local_fragments
    clocks, arrives = np.zeros(cluster.groups), [0.0] * parts
    seconds = cluster.exchange(1 / parts)
    for step in range(steps):
        clocks += times[:, step]
        for place, turn in turns(step + 1, options, parts):
            if turn == "receive":
                clocks = np.maximum(clocks, arrives[place])
            elif turn == "send":
                arrives[place] = float(clocks.max()) + seconds
            else:
                clocks[:] = clocks.max() + seconds
    return cluster.groups * steps / float(clocks.max())


@dataclass(frozen=True)
class _Message:
    """One that a server gets, or several alike that come to it and to servers that were not drawn.

    Attributes:
        group, server: who asks whom.
        wire: seconds of a link, there and back each.
        work: seconds of a core, of the server and then of the group.
        small: whether it has no numbers. On a link such messages pass between the packets of those that have some.
    """

    group: int
    server: int
    wire: float
    work: float
    small: int = 0


class Simulation:
    """Groups around a center.

    Args:
        every: steps from one meeting to the next.
        overlap: whether a group goes on while it meets the center.
        staleness: how many steps a group may be ahead of the slowest; None for no bound.
        exact: up to how many groups no server is drawn.
    """

    def __init__(
        self, cluster: Cluster, steps: int, every: int, overlap: bool, staleness: int | None = None, exact: int = EXACT
    ):
        count = cluster.groups
        self._cluster, self._overlap, self._staleness, self._exact = cluster, overlap, staleness, exact
        self._meetings = [Meetings(every) for _ in range(count)]
        self._times = cluster.times(steps).tolist()
        self._away = sum(nbytes for _, nbytes in cluster.asks(0))
        self._steps, self._ended = steps, False
        self._random = np.random.default_rng(1)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        # When each link has sent, and has received, what it has to; first of messages with numbers, then of small ones.
        self._up, self._down = ([[0.0, 0.0] for _ in range(count)] for _ in range(2))
        self._core = [0.0] * count
        self._done = [0] * count  # steps of each group
        self._at_clock = {0: count}  # how many groups have pushed so many steps
        self._slowest = 0
        self._held: dict[int, list[Callable[[float], None]]] = {}  # answers, by the steps that the slowest must have
        self._coming = [0] * count  # messages of a group's meeting that are on their way to servers
        self._open = [0] * count  # answers that a group's meeting waits for
        self._waiting = [False] * count  # for the end of the last meeting, to begin another
        self._parts = [1] * count  # of batches, that a group has been dealt and has not begun
        self._asked_for = [0] * count  # parts that are on their way
        self._supplies = [Supply() for _ in range(count)]
        self._starved = [False] * count  # groups that wait for a part
        self._dealt = parts_at_once(count)

    def run(self) -> float:
        """Steps a second of all groups, until the first of them has made all of its steps."""
        for group in range(self._cluster.groups):
            self._compute(group, 0.0)
        now = 0.0
        while self._events and not self._ended:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return sum(self._done) / now

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _compute(self, group: int, now: float) -> None:
        """Begin the next step, once there is a part of a batch for it."""
        supply = self._supplies[group]
        if not self._parts[group]:
            self._starved[group] = True
            supply.waited()
            return
        self._parts[group] -= 1
        while self._parts[group] + self._asked_for[group] < supply.ahead:  # while this one is trained on
            self._asked_for[group] += self._dealt
            wire = self._cluster.head * self._cluster.beta
            self._send(_Message(group, 0, wire, self._cluster.work, small=1), now, self._deal)
        self._at(now + self._times[group][self._done[group]], partial(self._stepped, group))

    def _deal(self, message: _Message, now: float) -> None:
        def take(then: float) -> None:
            group = message.group
            self._parts[group] += self._dealt
            self._asked_for[group] -= self._dealt
            if self._starved[group]:
                self._starved[group] = False
                self._compute(group, then)

        self._answer(message, now, take)

    def _stepped(self, group: int, now: float) -> None:
        self._done[group] += 1
        if self._done[group] == self._steps:
            self._ended = True
        elif not self._meetings[group].due(self._done[group]):
            self._compute(group, now)
        elif self._open[group]:  # the last meeting has yet to end
            self._waiting[group] = True
        else:
            self._meet(group, now)

    def _meet(self, group: int, now: float) -> None:
        messages = self._drawn(group)
        self._open[group] = self._coming[group] = len(messages)
        for message in messages:
            self._send(message, now, self._asked)
        if self._overlap:
            self._compute(group, now)

    def _drawn(self, group: int) -> list[_Message]:
        """The messages of a meeting: all, or some that stand for all."""
        cluster = self._cluster
        if cluster.groups <= self._exact:
            return [_Message(group, to, nbytes * cluster.beta, cluster.work) for to, nbytes in cluster.asks(group)]
        drawn = self._random.integers(0, cluster.groups - 1, DRAWN).tolist()
        wire, work = self._away / DRAWN * cluster.beta, (cluster.groups - 1) / DRAWN * cluster.work
        return [_Message(group, one + (one >= group), wire, work) for one in drawn]

    def _send(self, message: _Message, now: float, then: Callable[[_Message, float], None]) -> None:
        """Through the link of the group and that of the server, and then through the server's core."""
        sent = _through(self._up[message.group], message, now)

        def arrive(at: float) -> None:
            got = _through(self._down[message.server], message, at - message.wire)
            worked = self._core[message.server] = max(got, self._core[message.server]) + message.work
            self._at(worked, partial(then, message))

        self._at(sent + self._cluster.alpha, arrive)

    def _answer(self, message: _Message, now: float, then: Callable[[float], None]) -> None:
        """Send an answer back, from the server to the group."""
        back = replace(message, group=message.server, server=message.group)
        self._send(back, now, lambda _, later: then(later))

    def _asked(self, message: _Message, now: float) -> None:
        """A server has a message of a meeting."""
        group, clock = message.group, self._done[message.group]
        self._coming[group] -= 1
        if self._staleness is not None and not self._coming[group]:
            self._tick(clock, now)
        answer = partial(self._answer, message, then=partial(self._answered, group))
        needed = 0 if self._staleness is None else int(answered_at(clock, self._staleness))
        if needed > self._slowest:
            self._held.setdefault(needed, []).append(lambda then: answer(now=then))
        else:
            answer(now=now)

    def _answered(self, group: int, now: float) -> None:
        self._open[group] -= 1
        if self._open[group]:
            return
        if not self._overlap:
            self._compute(group, now)
        elif self._waiting[group]:
            self._waiting[group] = False
            self._meet(group, now)

    def _tick(self, clock: int, now: float) -> None:
        """A group has pushed its `clock`-th step to all servers; whoever has waited for that gets an answer."""
        self._at_clock[clock] = self._at_clock.get(clock, 0) + 1
        self._at_clock[clock - 1] -= 1
        while not self._at_clock.get(self._slowest, 1):
            self._slowest += 1
            for answer in self._held.pop(self._slowest, []):
                answer(now)


def _through(link: list[float], message: _Message, now: float) -> float:
    """When a message that comes to a link now has gone through it.

    Args:
        link: until when it is taken by messages with numbers, and by small ones; changed.
    """
    for lane in range(message.small + 1):
        link[lane] = max(now, link[lane]) + message.wire
    return link[message.small]


def efficiencies(cluster: Cluster, every: int = 16, staleness: int = 4) -> dict[str, float]:
    """Steps a second by strategy, as parts of those of groups that compute alone and never meet.

    Args:
        cluster: the groups.
        every: steps from one meeting to the next, of local and elastic.
        staleness: of server, how many steps a group may be ahead of the slowest.
    """
    alone = cluster.groups / cluster.compute * (1 - round(cluster.slow * cluster.groups) / cluster.groups * 2 / 3)
    steps = 4 * every
    found = {
        "sync": together(cluster, 16, LocalOptions(local_every=1)),
        "server": Simulation(cluster, 12, 1, overlap=False, staleness=staleness).run(),
        "local": together(cluster, steps, LocalOptions(local_every=every)),
        "elastic": Simulation(cluster, steps, every, overlap=True).run(),
    }
    return {name: rate / alone for name, rate in found.items()}
