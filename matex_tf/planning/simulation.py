"""Groups that train apart, event by event: what formulas cannot say of unequal groups, and of thousands of them.

A group computes for a time of its own, drawn for each step. It has one link, which sends and receives at the same time
and one message after the other; a message arrives some latency after it was sent. What training decides is decided by
the same functions here: when a group meets the center, which server it asks for how many numbers, and when a push is
answered (`matex_tf.center.schedule`); and at which steps all groups meet about which part of the weights (`turns` of
`matex_tf.strategies.local`). The center lies in pieces on all groups. Of the servers that a meeting of a thousand
groups asks, few are drawn, with more numbers each: so the load of all links is right, and ten thousand groups need no
10^8 events. An exchange of all groups takes as long as `cost_model` says.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from matex_tf.center.schedule import Meetings, answered_at, ranges
from matex_tf.planning.cost_model import Machine, hierarchical
from matex_tf.strategies.local import LocalOptions, turns

#: How many servers a meeting asks here at most.
ASKED = 4


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
    """

    groups: int
    compute: float
    nbytes: float
    alpha: float
    beta: float
    jitter: float = 0.1
    slow: float = 0.01

    def times(self, steps: int, seed: int = 0) -> np.ndarray:
        """Seconds of each step of each group, float64 of shape (groups, steps)."""
        random = np.random.default_rng(seed)
        drawn = self.compute * np.exp(self.jitter * random.normal(size=(self.groups, steps)) - self.jitter**2 / 2)
        drawn[: round(self.slow * self.groups)] *= 3
        return drawn

    def exchange(self, part: float = 1.0) -> float:
        """Seconds of a sum of a part of the weights over all groups."""
        return hierarchical(self.groups, self.nbytes * part, Machine(self.alpha, self.beta, 0.0)).seconds

    def messages(self, group: int) -> list[tuple[int, float]]:
        """What a group asks at a meeting: servers, which are the groups, and the bytes there and back; not itself."""
        numbers = round(self.nbytes / 4)
        asked = ranges(numbers, self.groups, (0, numbers))
        return [(one.piece, 4.0 * (one.high - one.low)) for one in asked if one.piece != group]


def together(cluster: Cluster, steps: int, options: LocalOptions) -> float:
    """Steps a second of all groups, where they meet as local does; sync is a meeting in each step."""
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


class Simulation:
    """Groups around a center.

    Args:
        every: steps from one meeting to the next.
        overlap: whether a group goes on while it meets the center.
        staleness: how many steps a group may be ahead of the slowest; None for no bound.
    """

    def __init__(self, cluster: Cluster, steps: int, every: int, overlap: bool, staleness: int | None = None):
        self._cluster, self._overlap, self._staleness = cluster, overlap, staleness
        self._meetings = [Meetings(every) for _ in range(cluster.groups)]
        self._times = cluster.times(steps)
        self._away = sum(nbytes for _, nbytes in cluster.messages(0))
        self._steps = steps
        self._random = np.random.default_rng(1)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._up, self._down = np.zeros(cluster.groups), np.zeros(cluster.groups)
        self._done = np.zeros(cluster.groups, np.int64)  # steps of each group
        self._at_clock = {0: cluster.groups}  # how many groups have made so many steps
        self._slowest = 0
        self._held: dict[int, list[Callable[[float], None]]] = {}  # answers, by the steps that the slowest must have
        self._open = np.zeros(cluster.groups, np.int64)  # answers that a group's meeting waits for
        self._waiting = np.zeros(cluster.groups, bool)

    def run(self) -> float:
        """Steps a second of all groups, until the first of them has made all of its steps."""
        for group in range(self._cluster.groups):
            self._at(self._times[group, 0], partial(self._stepped, group))
        now = 0.0
        while self._events and self._done.max() < self._steps:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return float(self._done.sum()) / now

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (float(when), self._count, event))

    def _stepped(self, group: int, now: float) -> None:
        self._done[group] += 1
        if self._staleness is not None:
            self._tick(int(self._done[group]), now)
        if self._meetings[group].due(int(self._done[group])):
            if self._open[group]:  # the last meeting has yet to end
                self._waiting[group] = True
                return
            self._meet(group, now)
        else:
            self._compute(group, now)

    def _compute(self, group: int, now: float) -> None:
        if self._done[group] < self._steps:
            took = self._times[group, self._done[group]]
            self._at(now + took, lambda then: self._stepped(group, then))

    def _meet(self, group: int, now: float) -> None:
        asked = self._drawn(group)
        self._open[group] = len(asked)
        for server, nbytes in asked:
            part = nbytes * self._cluster.beta
            sent = self._up[group] = max(now, self._up[group]) + part
            self._at(sent + self._cluster.alpha, partial(self._asked, group, server, part))
        if self._overlap:
            self._compute(group, now)

    def _drawn(self, group: int) -> list[tuple[int, float]]:
        """The messages of a meeting: all, or a few in their place that have as many bytes together."""
        if self._cluster.groups <= ASKED + 1:
            return self._cluster.messages(group)
        drawn = self._random.integers(0, self._cluster.groups - 1, ASKED)
        return [(int(one) + (one >= group), self._away / ASKED) for one in drawn]

    def _asked(self, group: int, server: int, part: float, now: float) -> None:
        """A message has come to a server, whose link takes in one after the other."""
        got = self._down[server] = max(now - part, self._down[server]) + part
        clock = int(self._done[group])

        def answer(then: float) -> None:
            sent = self._up[server] = max(then, self._up[server]) + part
            self._at(sent + self._cluster.alpha, lambda later: self._answered(group, part, later))

        needed = 0 if self._staleness is None else int(answered_at(clock, self._staleness))
        if needed > self._slowest:
            self._held.setdefault(needed, []).append(answer)
        else:
            self._at(got, answer)

    def _answered(self, group: int, part: float, now: float) -> None:
        got = self._down[group] = max(now - part, self._down[group]) + part
        self._open[group] -= 1
        if self._open[group]:
            return
        if not self._overlap:
            self._at(got, lambda then: self._compute(group, then))
        elif self._waiting[group]:
            self._waiting[group] = False
            self._at(got, lambda then: self._meet(group, then))

    def _tick(self, clock: int, now: float) -> None:
        """A group has made its `clock`-th step; whoever has waited for that gets an answer."""
        self._at_clock[clock] = self._at_clock.get(clock, 0) + 1
        self._at_clock[clock - 1] -= 1
        while not self._at_clock.get(self._slowest, 1):
            self._slowest += 1
            for answer in self._held.pop(self._slowest, []):
                self._at(now, answer)


def efficiencies(cluster: Cluster, every: int = 16, staleness: int = 4) -> dict[str, float]:
    """Steps a second by strategy, as parts of those of groups that compute alone and never meet."""
    alone = cluster.groups / cluster.compute * (1 - round(cluster.slow * cluster.groups) / cluster.groups * 2 / 3)
    steps = 4 * every
    found = {
        "sync": together(cluster, 16, LocalOptions(local_every=1)),
        "server": Simulation(cluster, 12, 1, overlap=False, staleness=staleness).run(),
        "local": together(cluster, steps, LocalOptions(local_every=every)),
        "elastic": Simulation(cluster, steps, every, overlap=True).run(),
    }
    return {name: rate / alone for name, rate in found.items()}
