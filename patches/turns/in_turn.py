"""Batches that the ranks make in turn: batch k by rank k mod p, which sends the other ranks their rows of it.

Three threads of a rank work while it trains. One makes the rank's own batches, one sends and receives rows in the order
of the batches, and the third (`messenger`) drives what is on its way. They run ahead of the training by a number of
batches that is the same on every rank. So where the ranks leave off at the same batch, no message is left over.

Ranks of one node copy their rows from memory that they share (`row_memory`), and the message says where. A rank leaves
its next batch there p batches later. By then it has the batches of all others between, each of which was sent by a rank
that had taken its rows of all batches before. A walk begins with a meeting, so that this holds from one to the next.

An error that is raised while a batch is made travels in its place: every rank raises it where one rank would.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.stall_detector import StallDetector
from matex_tf.exchange.network.messenger import Messenger
from matex_tf.patches.common import carried_error, run_state
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.turns import row_messages
from matex_tf.patches.turns.row_memory import Left, RowMemory

_LOOK_SECONDS = 0.5

#: Rows of a batch as arrays, and their share.
Part = tuple[list[np.ndarray], RowRange]


class Turns:
    """What connects the ranks; for one data set.

    Args:
        own: makes this rank's own batches of a walk, in their order, as lists of arrays; called once for each walk,
            with nothing, in the thread that walks, and iterated in another one.
        count: batches of a walk, of all ranks.
        nbytes: of a batch, as far as this is known.
    """

    def __init__(self, own: Callable[[], Iterator[list[np.ndarray]]], count: int, nbytes: int):
        """Collective."""
        chosen, ranks = settings.current(), world.current()
        self._own, self._count = own, count
        self._memory = RowMemory(nbytes)
        self.messenger = Messenger(ranks.split_all())
        self._stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, ranks.log)
        self._walk: Walk | None = None
        run_state.current().part(Open).turns.append(self)

    def walk(self) -> Iterator[Part]:
        """This rank's rows of each batch. All ranks walk, and leave off at the same batch."""
        if self._walk is not None:
            self._walk.close()
        self._walk = walk = Walk(self.messenger, self._memory, self._stalls, self._own(), self._count)
        return iter(walk)

    def settle(self) -> None:
        """Wait until nothing is on its way any more."""
        if self._walk is not None:
            self._walk.settle()

    def close(self) -> None:
        """End the walk, and give back what connects the ranks. Collective."""
        if self._walk is not None:
            self._walk.close()
        self.messenger.close()
        self._memory.close()

    def abandon(self) -> None:
        """The same where the other ranks may be elsewhere."""
        if self._walk is not None:
            self._walk.abandon()
        self.messenger.abandon()


class Open:
    """The `Turns` of the calls of `fit`, `evaluate` and `predict` that are under way."""

    def __init__(self) -> None:
        self.turns: list[Turns] = []
        self.calls = 0


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
            ended, known.turns = known.turns, []
            for turns in ended:
                turns.close() if complete else turns.abandon()


class Walk:
    """One walk over all batches."""

    def __init__(
        self,
        messenger: Messenger,
        memory: RowMemory,
        stalls: StallDetector,
        own: Iterator[list[np.ndarray]],
        count: int,
    ):
        self._messenger, self._memory, self._stalls = messenger, memory, stalls
        self._count = count
        self._ahead = world.current().size + 1
        self._allowed = min(self._ahead, count)  # batches that may be made and sent so far
        self._sent = 0
        self._changed = threading.Condition()
        self._made: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._parts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = False
        for work in (lambda: self._make(own), self._exchange):
            threading.Thread(target=self._watched, args=(work,), name="matex_tf input", daemon=True).start()

    def __iter__(self) -> Iterator[Part]:
        for number in range(self._count):
            with self._changed:
                self._allowed = min(number + self._ahead, self._count)
                self._changed.notify_all()
            part = self._parts.get()
            if isinstance(part, BaseException):
                raise part
            yield part

    def settle(self) -> None:
        """Wait until what may be sent so far has been."""
        with self._changed:
            self._changed.wait_for(lambda: self._sent >= self._allowed or self._over)

    def close(self) -> None:
        """The same, and end the walk there."""
        self.settle()
        self.abandon()

    def abandon(self) -> None:
        """End the walk."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # which the thread that walks shall raise
            self._parts.put(error)
            self.abandon()

    def _may(self, number: int) -> bool:
        """Wait until a batch may be made; False where it never will."""
        with self._changed:
            self._changed.wait_for(lambda: number < self._allowed or self._over)
            return not self._over

    def _make(self, own: Iterator[list[np.ndarray]]) -> None:
        ranks = world.current()
        for number in range(ranks.rank, self._count, ranks.size):
            if not self._may(number):
                return
            made = _made(own, number)
            while True:
                try:
                    self._made.put(made, timeout=_LOOK_SECONDS)
                    break
                except queue.Full:
                    if self._over:
                        return
            if isinstance(made, Exception):
                return
        next(own, None)  # what follows the last batch is done too

    def _exchange(self) -> None:
        ranks = world.current()
        if self._count:
            self._meet()
        for number in range(self._count):
            if not self._may(number):
                return
            owner = number % ranks.size
            part = self._give() if owner == ranks.rank else self._take(owner)
            self._parts.put(part)
            with self._changed:
                self._sent = number + 1
                self._over = self._over or isinstance(part, Exception)
                self._changed.notify_all()

    def _meet(self) -> None:
        """Wait until every rank of the node has taken its rows of the walk before."""
        others = [rank for rank in self._memory.ranks if rank != world.current().rank]
        if others:
            self._wait([self._messenger.post(row_messages.meeting(self._messenger.lane, others))], others)

    def _give(self) -> Part | Exception:
        ranks = world.current()
        while True:
            try:
                made = self._made.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                if self._over:
                    raise RuntimeError("the batch was not made") from None
        others = [rank for rank in range(ranks.size) if rank != ranks.rank]
        if isinstance(made, Exception):
            failed = np.frombuffer(pickle.dumps(carried_error.pack(made)), np.uint8)
            self._send(dict.fromkeys(others, failed))
            return made
        total = next((len(array) for array in made if array.ndim), 0)
        left = self._memory.leave(made, total)
        near = [] if left is None else self._memory.ranks
        sent = {rank: _part(made, total, rank, ranks.size) for rank in others if rank not in near}
        messages: dict[int, Any] = {**dict.fromkeys(near, left), **sent}
        self._send({rank: np.frombuffer(pickle.dumps(messages[rank], protocol=5), np.uint8) for rank in others})
        return _part(made, total, ranks.rank, ranks.size)

    def _send(self, messages: dict[int, np.ndarray]) -> None:
        self._wait([self._messenger.post(row_messages.sending(self._messenger.lane, messages))], [*messages])

    def _take(self, owner: int) -> Part | Exception:
        received: list[np.ndarray] = []
        self._wait([self._messenger.post(row_messages.receiving(self._messenger.lane, owner, received))], [owner])
        part: Part | Left | bytes = pickle.loads(received[0].data)
        if isinstance(part, Left):
            share = RowRange.of(part.total, world.current().rank, world.current().size)
            return self._memory.take(owner, part, slice(share.low, share.high)), _taken(share)
        return carried_error.unpack(part) if isinstance(part, bytes) else part

    def _wait(self, transfers: list[Any], others: list[int]) -> None:
        for transfer in transfers:
            transfer.wait(lambda seconds: self._stalls.check(others, seconds, "the rows of a batch"))


def _made(own: Iterator[list[np.ndarray]], number: int) -> list[np.ndarray] | Exception:
    """The next of the rank's own batches, or what was raised in its place."""
    try:
        return next(own)
    except StopIteration:
        return RuntimeError(f"batch {number} of the data is missing")
    except Exception as error:
        return error


def _part(batch: list[np.ndarray], total: int, rank: int, size: int) -> Part:
    share = RowRange.of(total, rank, size)
    rows = [array[share.low : share.high] if array.ndim and len(array) == total else array for array in batch]
    return rows, _taken(share)


def _taken(share: RowRange) -> RowRange:
    """The same rows, once they have been taken out of the batch."""
    return RowRange(0, share.high - share.low, share.rows, share.total, share.first)


def flat(batch: Any, specs: list[tf.TensorSpec]) -> list[np.ndarray]:
    """A batch as arrays of the dtypes that a pipeline has them in.

    Raises:
        ValueError: it has another number of parts.
    """
    leaves = tf.nest.flatten(batch)
    if len(leaves) != len(specs):
        raise ValueError(f"a batch has {len(leaves)} parts where the first ones have {len(specs)}.")
    return [np.asarray(leaf, spec.dtype.as_numpy_dtype) for leaf, spec in zip(leaves, specs, strict=True)]
