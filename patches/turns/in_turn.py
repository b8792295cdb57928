"""Batches that one rank makes, and sends others their rows of: the ranks in turn, batch k by rank k mod p, or the first
rank of each node.

Three threads of a rank work while it trains. One makes the rank's own batches, one sends and receives rows in the order
of the batches, and the third (`messenger`) drives what is on its way. They run ahead of the training by a number of
batches that is the same on every rank. So where the ranks leave off at the same batch, no message is left over.

Ranks of one node copy their rows from memory that they share (`row_memory`), and the message says where. A rank leaves
its next batch there p batches later. By then it has the batches of all others between, each of which was sent by a rank
that had taken its rows of all batches before. A walk begins with a meeting, so that this holds from one to the next.
Where one rank of a node makes all batches (`Makers`), it meets the others before each.

An error that is raised while a batch is made travels in its place: every rank raises it where one rank would.

That a batch is the same whichever rank makes it is seen from the first ones alone. So some batches are made by a second
rank too, which compares checksums, and tells all others.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import mismatch, world
from matex_tf.core.waiting import StallDetector
from matex_tf.errors import MatexError
from matex_tf.exchange.network.messenger import Messenger
from matex_tf.patches.common import carried_error, run_state
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import LocalBatch
from matex_tf.patches.sources import calls
from matex_tf.patches.turns import row_messages
from matex_tf.patches.turns.makers import Makers
from matex_tf.patches.turns.row_memory import Left, RowMemory

_LOOK_SECONDS = 0.5
#: Seconds that the messenger sleeps for at most: batches are made ahead, and to look more often takes time from that.
_LONGEST_SLEEP = 1e-2
#: Seconds that batches which nobody wants any more are waited for, at the end of a call.
PATIENCE = 10.0

#: Rows of a batch as arrays, and their share.
Part = tuple[list[np.ndarray], RowRange]


class _End:
    """There is no batch left."""


class _Checked(NamedTuple):
    """What a rank gets of a batch that it has made too."""

    part: Any
    checksum: int


#: What is said if a batch is another one on another rank.
_OTHER = (
    "{}: batch {} of a pass came out otherwise on rank {} than on rank {}, whose turn it was: it depends on more than "
    "its index, such as random numbers, a counter or a cache. Let every rank make every batch: --data whole."
)


class Turns:
    """What connects the ranks; for one data set.

    Args:
        own: makes this rank's own batches of a walk, in their order, as lists of arrays; called once for each walk,
            with nothing, in the thread that walks, and iterated in another one.
        makers: of the batches of a walk, of all ranks.
        nbytes: of a batch, as far as this is known.
        name: of what makes the batches.
        steps: batches of an epoch, if what happens between epochs may change batches, and a walk goes on from one to
            the next; else 0.
    """

    def __init__(
        self,
        own: Callable[[], Iterator[list[np.ndarray]]],
        makers: Makers,
        nbytes: int,
        name: str = "",
        steps: int = 0,
    ):
        """Collective."""
        chosen, ranks = settings.current(), world.current()
        self._own, self._makers, self._name, self._steps = own, makers, name, steps
        self._memory = RowMemory(nbytes)
        self.messenger = Messenger(ranks.split_all(), _LONGEST_SLEEP)
        self._stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, ranks.log)
        self._walk: Walk | None = None
        run_state.current().part(Open).turns.append(self)

    def walk(self) -> Iterator[Part]:
        """This rank's rows of each batch. All ranks walk, and leave off at the same batch."""
        if self._walk is not None:
            self._walk.close()
        connected = self.messenger, self._memory, self._stalls
        self._walk = walk = Walk(*connected, self._own(), self._makers, self._name, self._steps)
        return iter(walk)

    def end_epoch(self) -> None:
        """An epoch ends: wait until nothing is on its way any more."""
        if self._walk is not None:
            self._walk.settle()
            self._walk.epochs += 1

    def close(self) -> None:
        """End the walk, and give back what connects the ranks. Collective.

        A rank that waits for its script's code, which may wait for something that never comes, is not waited for.
        """
        settled = self._walk is None or self._walk.settle(PATIENCE)
        if not all(world.current().allgather(settled, "end a walk over data")):
            self.abandon()
            return
        if self._walk is not None:
            self._walk.close()
        self.messenger.close()
        self._memory.close()

    def abandon(self) -> None:
        """End it if the other ranks may be elsewhere."""
        if self._walk is not None:
            self._walk.abandon()
        self.messenger.abandon()


class CanEnd(Protocol):
    """What ends with a call."""

    def close(self) -> None:
        """End it, where every rank does."""

    def abandon(self) -> None:
        """End it where the other ranks may be elsewhere."""


class Open:
    """The `Turns` of the calls of `fit`, `evaluate` and `predict` that are under way, and what else has to end then."""

    def __init__(self) -> None:
        self.turns: list[CanEnd] = []
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
    """One walk over all batches.

    Attributes:
        epochs: that have ended during the walk.
    """

    def __init__(
        self,
        messenger: Messenger,
        memory: RowMemory,
        stalls: StallDetector,
        own: Iterator[list[np.ndarray]],
        makers: Makers,
        name: str,
        steps: int,
    ):
        self._messenger, self._memory, self._stalls = messenger, memory, stalls
        self._makers, self._name, self._steps = makers, name, steps
        self._most = math.inf if makers.count is None else makers.count
        self.epochs = 0
        self._allowed = self._ahead_of(0)  # batches that may be made and sent so far
        self._sent = 0
        self._changed = threading.Condition()
        self._made: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._parts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = False
        for work in (lambda: self._make(own), self._exchange):
            threading.Thread(target=self._watched, args=(work,), name="matex_tf input", daemon=True).start()

    def __iter__(self) -> Iterator[Part]:
        for number in self._makers.numbers():
            with self._changed:
                self._allowed = self._ahead_of(number)
                self._changed.notify_all()
            part = self._parts.get()
            if isinstance(part, _End):
                return
            if isinstance(part, BaseException):
                raise part
            yield part

    def _ahead_of(self, number: int) -> float:
        """How many batches may be made when one is wanted; of the next epoch one, as one rank makes ahead."""
        most = min(number + self._makers.ahead, self._most)
        return most if not self._steps else max(number + 1, min(most, (self.epochs + 1) * self._steps + 1))

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until what may be sent so far has been. Args: seconds: for so long. Returns: whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._sent >= self._allowed or self._over, seconds)

    def close(self) -> None:
        """Wait until what may be sent has been, and end the walk there."""
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
        for number in self._makers.mine():
            if not self._may(number):
                return
            made = _made(own, number, self._makers.count is None)
            while True:
                try:
                    self._made.put(made, timeout=_LOOK_SECONDS)
                    break
                except queue.Full:
                    if self._over:
                        return
            if isinstance(made, (Exception, _End)):
                return
        next(own, None)  # what follows the last batch is done too

    def _exchange(self) -> None:
        rank, makers = world.current().rank, self._makers
        for number in makers.numbers():
            if not self._may(number):
                return
            if number == 0 or makers.alone:
                self._meet()
            owner, checker = makers.of(number), makers.checkers.get(number)
            part, same = (self._give(checker), True) if owner == rank else self._take(owner, checker == rank)
            if checker is not None and not self._agreed(checker, same):
                part = MatexError(_OTHER.format(self._name, number, checker, owner))
            self._parts.put(part)
            with self._changed:
                self._sent = number + 1
                self._over = self._over or isinstance(part, (Exception, _End))
                self._changed.notify_all()

    def _meet(self) -> None:
        """Wait until every rank of the node has taken its rows of what was left in memory before."""
        rank, first = world.current().rank, self._makers.first
        others = [one for one in self._memory.ranks if one != rank]
        if self._makers.alone and rank != first:
            others = [first] if others else []
        if others:
            self._wait([self._messenger.post(row_messages.meeting(self._messenger.lane, others))], others)

    def _next_made(self) -> list[np.ndarray] | Exception | _End:
        while True:
            try:
                return self._made.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._over:
                    raise RuntimeError("the batch was not made") from None

    def _agreed(self, checker: int, same: bool) -> bool:
        """Whether a batch that two ranks have made is the same, as the second of them tells all others."""
        ranks = world.current()
        if checker == ranks.rank:
            others = [rank for rank in range(ranks.size) if rank != checker]
            self._send(dict.fromkeys(others, np.array([same], np.uint8)))
            return same
        return bool(self._received(checker)[0])

    def _give(self, checker: int | None) -> Part | Exception | _End:
        """Send others their rows of the next batch. Args: checker: the rank that makes it too."""
        ranks, made = world.current(), self._next_made()
        others = self._makers.takers
        if isinstance(made, (Exception, _End)):
            said = made if isinstance(made, _End) else carried_error.pack(made)
            self._send(dict.fromkeys(others, np.frombuffer(pickle.dumps(said), np.uint8)))
            return made
        total = next((len(array) for array in made if array.ndim), 0)
        left = self._memory.leave(made, total)
        near = [] if left is None else self._memory.ranks
        sent = {rank: _part(made, total, rank, ranks.size) for rank in others if rank not in near}
        messages: dict[int, Any] = {**dict.fromkeys(near, left), **sent}
        if checker is not None:
            messages[checker] = _Checked(messages[checker], _checksum(made))
        self._send({rank: np.frombuffer(pickle.dumps(messages[rank], protocol=5), np.uint8) for rank in others})
        return _part(made, total, ranks.rank, ranks.size)

    def _send(self, messages: dict[int, np.ndarray]) -> None:
        if not messages:
            return
        self._wait([self._messenger.post(row_messages.sending(self._messenger.lane, messages))], [*messages])

    def _take(self, owner: int, checked: bool) -> tuple[Part | Exception | _End, bool]:
        """This rank's rows of a batch of another one.

        Args:
            checked: whether this rank has made it too.

        Returns:
            The rows; and whether the batch is what this rank has made.
        """
        made = self._next_made() if checked else None
        part: Any = pickle.loads(self._received(owner).data)
        same = True
        if isinstance(part, _Checked):
            same = isinstance(made, list) and _checksum(made) == part.checksum
            part = part.part
        elif isinstance(part, bytes) and isinstance(made, list):
            same = False  # only one of the two has failed
        if isinstance(part, Left):
            share = RowRange.of(part.total, world.current().rank, world.current().size)
            return (self._memory.take(owner, part, slice(share.low, share.high)), _taken(share)), same
        return carried_error.unpack(part) if isinstance(part, bytes) else part, same

    def _received(self, sender: int) -> np.ndarray:
        received: list[np.ndarray] = []
        self._wait([self._messenger.post(row_messages.receiving(self._messenger.lane, sender, received))], [sender])
        return received[0]

    def _wait(self, transfers: list[Any], others: list[int]) -> None:
        for transfer in transfers:
            transfer.wait(lambda seconds: self._stalls.check(others, seconds, "the rows of a batch"))


def _made(own: Iterator[list[np.ndarray]], number: int, may_end: bool) -> list[np.ndarray] | Exception | _End:
    """The next of the rank's own batches, or what was raised in its place."""
    try:
        return next(own)
    except StopIteration:
        return _End() if may_end else RuntimeError(f"batch {number} of the data is missing")
    except Exception as error:
        return error


def _checksum(batch: list[np.ndarray]) -> int:
    total = 0
    for array in batch:
        total = mismatch.checksum(array, mismatch.checksum(f"{array.dtype} {array.shape}", total))
    return total


def _part(batch: list[np.ndarray], total: int, rank: int, size: int) -> Part:
    share = RowRange.of(total, rank, size)
    rows = [array[share.low : share.high] if array.ndim and len(array) == total else array for array in batch]
    return rows, _taken(share)


def _taken(share: RowRange) -> RowRange:
    """The share of a rank once its rows have been taken out of the batch."""
    return RowRange(0, share.high - share.low, share.rows, share.total, share.first)


def flat(batch: Any, specs: list[tf.TensorSpec]) -> list[np.ndarray]:
    """A batch as arrays of the dtypes that a pipeline has them in.

    Raises:
        ValueError: it has another number of parts.
    """
    leaves = tf.nest.flatten(batch)
    if len(leaves) != len(specs):
        raise ValueError(f"a batch has {len(leaves)} parts, and the first ones have {len(specs)}.")
    return [np.asarray(leaf, spec.dtype.as_numpy_dtype) for leaf, spec in zip(leaves, specs, strict=True)]


def local_batches(turns: Turns, structure: Any) -> Iterator[LocalBatch]:
    """The rows of a walk, for a pipeline. Args: structure: of a batch, with whatever leaves."""
    origin, nothing = np.array([0, world.current().generation]), np.array([], np.int64)
    for rows, share in turns.walk():
        packed = tf.nest.pack_sequence_as(structure, rows)
        yield LocalBatch(np.array(share, np.int32), np.array(True), packed, origin, nothing)


def signature(structure: Any) -> LocalBatch:
    """What a pipeline of `local_batches` has for elements. Args: structure: tf.TensorSpecs of a batch."""
    return LocalBatch(
        tf.TensorSpec([5], tf.int32),
        tf.TensorSpec([], tf.bool),
        structure,
        tf.TensorSpec([2], tf.int64),
        tf.TensorSpec([None], tf.int64),
    )


def as_fast_as_asked(dataset: Any) -> Any:
    """A pipeline without what fetches ahead: ranks must leave off at the same batch."""
    while calls.kind(dataset) == "prefetch":
        dataset = dataset._input_dataset
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.with_options(options)
