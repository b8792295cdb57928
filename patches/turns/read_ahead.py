"""Threads that make batches ahead of the training, the same number on every rank; and what has to end with a call."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import tensorflow as tf

from matex_tf.patches.sources import calls
from matex_tf.state import run_state

#: Seconds that batches which nobody wants any more are waited for, at the end of a call.
PATIENCE = 10.0


class CanEnd(Protocol):
    """What ends with a call."""

    def close(self) -> None:
        """End it, where every rank does."""

    def abandon(self) -> None:
        """End it where the other ranks may be elsewhere."""


class Open:
    """What has to end with the calls of `fit`, `evaluate` and `predict` that are under way."""

    def __init__(self) -> None:
        self.turns: list[CanEnd] = []
        self.calls = 0

    def close(self, complete: bool = True) -> None:
        """End all of it. Args: complete: whether every rank does."""
        ended, self.turns = self.turns, []
        for one in ended:
            one.close() if complete else one.abandon()


class Check:
    """What all ranks do together when a call has come to its end, and only then."""

    def __init__(self, close: Callable[[], None]):
        self.close = close

    def abandon(self) -> None:
        """Nothing to end."""


def opened(one: CanEnd) -> None:
    """Let something end with the calls that are under way."""
    run_state.current().part(Open).turns.append(one)


@contextlib.contextmanager
def within_call() -> Iterator[None]:
    """A call of `fit`, `evaluate` or `predict`: at the end of the outermost one nothing of it is left."""
    known = run_state.current().part(Open)
    known.calls += 1
    complete = False
    try:
        yield
        complete = True
    finally:
        known.calls -= 1
        if not known.calls:
            known.close(complete)


class Walk:
    """A thread that reads from an iterator, by some items more than have been asked for.

    Args:
        ahead: how many more.
        limit: of how many items it reads none before they are asked for; without it of any number.
    """

    def __init__(self, ahead: int, limit: Callable[[], float] = lambda: math.inf):
        self._ahead, self._limit = ahead, limit
        self._read: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._asked = self._count = 0
        self._allowed = min(ahead, limit())
        self._ends = self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="matex_tf input", daemon=True)

    def over(self, items: Iterator[Any]) -> Walk:
        """Begin to read. Args: items: whatever these raise is raised in the place of an item."""
        self._items = items
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._asked += 1
                self._allowed = max(self._asked, min(self._asked + self._ahead, self._limit()))
                self._changed.notify_all()
            item, error = self._read.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until what may be read has been. Args: seconds: for so long. Returns: whether it has."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._count >= self._allowed or self._ends or self._abandoned, seconds
            )

    def close(self, seconds: float | None = None) -> None:
        """End when what may be read has been. Args: seconds: for so long; what code waits for may never come."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def abandon(self) -> None:
        """End at once."""
        with self._changed:
            self._ends = self._abandoned = True
            self._changed.notify_all()

    def may(self, number: int) -> bool:
        """Wait until an item may be read; False if it never will be."""
        with self._changed:
            self._changed.wait_for(lambda: number < self._allowed or self._ends)
            return number < self._allowed and not self._abandoned

    def _work(self) -> None:
        for number in itertools.count():
            item, raised = None, None
            if self.may(number):
                try:
                    item = next(self._items)
                except BaseException as error:  # which the thread that walks shall raise
                    raised = error
            else:
                raised = StopIteration()
            self._read.put((item, raised))
            with self._changed:
                self._count = number + 1
                self._ends = self._ends or raised is not None
                self._changed.notify_all()
            if raised is not None:
                return


class ReadAhead:
    """What a thread reads ahead of the training; what was read and is not used when a walk over it ends is gone.

    Args:
        begin: begins a walk.
        ahead: by how many batches.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], ahead: int = 2):
        self._begin, self._ahead = begin, ahead
        self._walk: Walk | None = None
        opened(self)

    def __iter__(self) -> Iterator[Any]:
        """The batches of a new walk, which begins when no thread reads for the last one any more."""
        if self._walk is not None:
            self._walk.close()
        self._walk = Walk(self._ahead).over(self._begin())
        return iter(self._walk)

    __call__ = __iter__

    def settle(self) -> None:
        """Wait until what may be read has been."""
        if self._walk is not None:
            self._walk.settle()

    def close(self) -> None:
        """End the walk."""
        if self._walk is not None:
            self._walk.close(PATIENCE)

    def abandon(self) -> None:
        """End it at once."""
        if self._walk is not None:
            self._walk.abandon()


def as_fast_as_asked(dataset: Any) -> Any:
    """A pipeline without what fetches ahead: ranks must leave off at the same batch."""
    while calls.kind(dataset) == "prefetch":
        dataset = dataset._input_dataset
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.with_options(options)
