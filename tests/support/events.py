"""A small simulation of ranks that compute, and of messages on links, event by event.

A rank has one core and one link, which sends one message at a time and receives one at a time; a message sets out when
both sides have asked for it, as large ones do in MPI. Processes are generators that yield what they wait for; of all
that can go on, the earliest goes on first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import numpy as np


class Request:
    """What a process asks for; `done` says when it is there, once that is known."""

    done: float | None = None
    posted = False


class Send(Request):
    """Send bytes to a rank; done when they have left."""

    def __init__(self, to: int, nbytes: float, tag: Any = 0):
        self.to, self.nbytes, self.tag = to, nbytes, tag


class Receive(Request):
    """A message of a rank; done when it is here."""

    def __init__(self, source: int, tag: Any = 0):
        self.source, self.tag = source, tag


class Work(Request):
    """Occupy the rank's core for so many seconds, once it is free."""

    def __init__(self, seconds: float):
        self.seconds = seconds


class Post:
    """Ask for these, and go on; to wait for them later they are yielded again."""

    def __init__(self, requests: list[Request]):
        self.requests = requests


Process = Generator["list[Any] | Post", None, None]


class _Running:
    def __init__(self, rank: int, process: Process):
        self.rank, self.process = rank, process
        self.now = 0.0
        self.waits: list[Request] = []


class Simulation:
    """Ranks and what runs on them.

    Args:
        alpha, beta: seconds of a message, and of each of its bytes.
    """

    def __init__(self, ranks: int, alpha: float, beta: float):
        self.alpha, self.beta = alpha, beta
        self._out, self._in, self._core = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks
        self._sends: dict[tuple[int, int, Any], deque[tuple[float, Send]]] = {}
        self._receives: dict[tuple[int, int, Any], deque[tuple[float, Receive]]] = {}
        self._running: list[_Running] = []

    def start(self, rank: int, process: Process) -> None:
        """Let a process run on a rank from the beginning; a rank may have several."""
        self._running.append(_Running(rank, process))

    def run(self) -> float:
        """Run to the end; when that was, in seconds."""
        end = 0.0
        while self._running:
            ready = [one for one in self._running if all(wait.done is not None for wait in one.waits)]
            assert ready, "all processes wait"
            one = min(ready, key=lambda one: max([one.now, *(wait.done or 0.0 for wait in one.waits)]))
            one.now = max([one.now, *(wait.done or 0.0 for wait in one.waits)])
            try:
                wanted = next(one.process)
            except StopIteration:
                end = max(end, one.now)
                self._running.remove(one)
                continue
            requests = wanted.requests if isinstance(wanted, Post) else wanted
            for request in requests:
                if not request.posted:
                    self._post(one.rank, one.now, request)
            one.waits = [] if isinstance(wanted, Post) else requests
        return end

    def _post(self, rank: int, now: float, request: Request) -> None:
        request.posted = True
        if isinstance(request, Work):
            self._core[rank] = request.done = max(now, self._core[rank]) + request.seconds
            return
        if isinstance(request, Send):
            key = (rank, request.to, request.tag)
            self._sends.setdefault(key, deque()).append((now, request))
        else:
            assert isinstance(request, Receive)
            key = (request.source, rank, request.tag)
            self._receives.setdefault(key, deque()).append((now, request))
        while self._sends.get(key) and self._receives.get(key):
            (sent, send), (asked, receive) = self._sends[key].popleft(), self._receives[key].popleft()
            left = max(sent, asked, self._out[key[0]], self._in[key[1]]) + send.nbytes * self.beta
            self._out[key[0]] = self._in[key[1]] = send.done = left
            receive.done = left + self.alpha


class TimedLane:
    """A lane of `matex_tf.exchange.network.algorithms` whose messages only take time; see `timed`."""

    def __init__(self, rank: int, size: int, scale: float):
        self.rank, self.size = rank, size
        self._scale = scale

    def send(self, data: np.ndarray, to: int, tag: int) -> list[Send]:
        return [Send(to, data.nbytes * self._scale, tag)]

    def receive(self, data: np.ndarray, source: int, tag: int) -> list[Receive]:
        return [Receive(source, tag)]


class Meter:
    """Seconds of work that a process has done since it was asked last."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._seconds += seconds

    def take(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def timed(steps: Generator[list[Any], None, None], meter: Meter) -> Process:
    """An algorithm of the network as a process: what it does between its messages is work."""
    for waits in steps:
        work = meter.take()
        if work:
            yield [Work(work)]
        yield waits
    work = meter.take()
    if work:
        yield [Work(work)]
