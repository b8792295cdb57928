"""Batches that one rank makes, and sends others their rows of: the ranks in turn, batch k by rank k mod p.

Three threads of a rank work while it trains. One makes the rank's own batches, one sends and receives rows in the order
of the batches, and the third (`messenger`) drives what is on its way. They run ahead of the training by a number of
batches that is the same on every rank. So if the ranks leave off at the same batch, no message is left over.

Ranks of one node copy their rows from memory that they share (`row_memory`), and the message says where. A rank leaves
its next batch there p batches later. By then it has the batches of all others between, each of which was sent by a rank
that had taken its rows of all batches before. A walk begins with a meeting, so that this holds from one to the next.

An error that is raised while a batch is made travels in its place: every rank raises it where one rank would.

That a batch is the same whichever rank makes it is seen from the first ones alone. So some batches are made by a second
rank too, which compares checksums, and tells all others.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.waiting import StallDetector
from matex_tf.errors import MatexError
from matex_tf.exchange.network.algorithms import Steps
from matex_tf.exchange.network.lane import Lane
from matex_tf.exchange.network.messenger import PIECE, Messenger
from matex_tf.patches.common import carried_error
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import LocalBatch
from matex_tf.patches.sources import array_fingerprint
from matex_tf.patches.turns import read_ahead
from matex_tf.patches.turns.read_ahead import Walk
from matex_tf.patches.turns.row_memory import Left, RowMemory

#: Seconds that the messenger sleeps for at most: batches are made ahead, and to look more often takes time from that.
_LONGEST_SLEEP = 1e-2
_TAG, _MEETING_TAG = 0, 1
#: Of so many batches one is made by a second rank as well; and of the first ones about those whose numbers are powers
#: of 2.
_CHECKED = 64

#: Rows of a batch as arrays, and their share.
Part = tuple[list[np.ndarray], RowRange]


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
        own: makes this rank's own batches of a walk, those that `deal` gives it, as lists of arrays; called once for
            each walk, in the thread that walks, and iterated in another one.
        nbytes: of a batch, as far as this is known.
        name: of what makes the batches.
        steps: batches of an epoch, if what happens between epochs may change batches, and a walk goes on from one to
            the next; else 0.
        checks: whether some batches are made by a second rank too.
    """

    def __init__(self, own: Callable[[], Iterator[list[np.ndarray]]], nbytes: int, name: str, steps: int, checks: bool):
        """Collective."""
        chosen, ranks = settings.current(), world.current()
        self._own, self._name, self._steps, self._checks = own, name, steps, checks
        self._memory = RowMemory(nbytes)
        self._messenger = Messenger(ranks.split_all(), _LONGEST_SLEEP)
        self._stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, ranks.log)
        self._others = [rank for rank in range(ranks.size) if rank != ranks.rank]
        self._count = self._walked = self._epochs = 0  # batches of this walk, of those before, epochs that have ended
        self._checked: set[int] = set()  # batches that rank 0 makes too
        self._walk: Walk | None = None
        self._made: Walk | None = None
        read_ahead.opened(self)

    def deal(self, count: int) -> list[int]:
        """The batches of a walk over so many that this rank makes.

        Some that are rank 1's rank 0 makes too, after its own of that round: so what draws or counts has done that once
        more on one of the two.
        """
        size = world.current().size
        if self._checks:
            everyone = range(self._walked, self._walked + count)
            due = {place for place, number in enumerate(everyone) if number & number - 1 == 0 or number % _CHECKED == 0}
            due |= set() if self._walked else {count - 1}
            self._checked = {place - place % size + 1 for place in due} & {*range(count)}
        self._count, self._walked = count, self._walked + count
        return [number for number in range(count) if self._makes(number)]

    def _makes(self, number: int) -> bool:
        ranks = world.current()
        return number % ranks.size == ranks.rank or (ranks.rank == 0 and number in self._checked)

    def walk(self) -> Iterator[Part]:
        """This rank's rows of each batch. All ranks walk, and leave off at the same batch."""
        self._end()
        self._epochs = 0
        own = self._own()
        self._walk = walk = Walk(world.current().size, self._limit)
        self._made = made = Walk(2).over(self._batches(own, walk))
        return iter(walk.over(self._parts(iter(made))))

    def _limit(self) -> float:
        """How many batches may be made before they are wanted; of the next epoch one, as one rank makes ahead."""
        return min(self._count, (self._epochs + 1) * self._steps + 1 if self._steps else math.inf)

    def end_epoch(self) -> None:
        """An epoch ends: wait until nothing is on its way any more."""
        if self._walk is not None:
            self._walk.settle()
            self._epochs += 1

    def close(self) -> None:
        """End the walk, and give back what connects the ranks. Collective.

        A rank that waits for its script's code, which may wait for something that never comes, is not waited for.
        """
        settled = self._walk is None or self._walk.settle(read_ahead.PATIENCE)
        if not all(world.current().allgather(settled, "end a walk over data")):
            self.abandon()
            return
        self._end(read_ahead.PATIENCE)
        self._messenger.close()
        self._memory.close()

    def abandon(self) -> None:
        """End it if the other ranks may be elsewhere."""
        for walk in (self._walk, self._made):
            if walk is not None:
                walk.abandon()
        self._messenger.abandon()

    def _end(self, seconds: float | None = None) -> None:
        for walk in (self._walk, self._made):
            if walk is not None:
                walk.close(seconds)

    def _batches(self, own: Iterator[list[np.ndarray]], walk: Walk) -> Iterator[list[np.ndarray] | Exception]:
        """This rank's own batches, or what was raised in the place of one."""
        for number in filter(self._makes, range(self._count)):
            if not walk.may(number):
                return
            try:
                made: list[np.ndarray] | Exception = next(own)
            except StopIteration:
                made = RuntimeError(f"batch {number} of the data is missing")
            except Exception as error:
                made = error
            yield made
            if isinstance(made, Exception):
                return
        next(own, None)  # what follows the last batch is done too

    def _parts(self, made: Iterator[list[np.ndarray] | Exception]) -> Iterator[Part]:
        rank, size = world.current().rank, world.current().size
        self._meet()
        for number in range(self._count):
            owner, checked = number % size, number in self._checked
            mine = next(made) if self._makes(number) else None
            part, same = (self._give(mine, checked), True) if owner == rank else self._take(owner, mine)
            if checked and not self._agreed(same):
                raise MatexError(_OTHER.format(self._name, number, 0, owner))
            if isinstance(part, Exception):
                raise part
            yield part

    def _meet(self) -> None:
        """Wait until every rank of the node has taken its rows of what was left in memory before."""
        others = [one for one in self._memory.ranks if one in self._others]
        if others:
            self._wait(_meeting(self._messenger.lane, others), others)

    def _agreed(self, same: bool) -> bool:
        """Whether a batch that two ranks have made is the same, as rank 0 tells all others."""
        if world.current().rank == 0:
            self._send(dict.fromkeys(self._others, np.array([same], np.uint8)))
            return same
        return bool(self._received(0)[0])

    def _give(self, made: Any, checked: bool) -> Part | Exception:
        """Send others their rows of a batch. Args: checked: whether rank 0 makes it too."""
        ranks = world.current()
        if isinstance(made, Exception):
            self._send(dict.fromkeys(self._others, _packed(carried_error.pack(made))))
            return made
        left = self._memory.leave(made, _rows(made))
        near = [] if left is None else self._memory.ranks
        messages: dict[int, Any] = {
            rank: left if rank in near else part_of(made, rank, ranks.size) for rank in self._others
        }
        if checked:
            messages[0] = _Checked(messages[0], array_fingerprint.checksum(made))
        self._send({rank: _packed(message) for rank, message in messages.items()})
        return part_of(made, ranks.rank, ranks.size)

    def _take(self, owner: int, made: Any) -> tuple[Part | Exception, bool]:
        """This rank's rows of a batch of another one.

        Args:
            made: what this rank has made too; None if nothing.

        Returns:
            The rows; and whether the batch is what this rank has made.
        """
        part: Any = pickle.loads(self._received(owner).data)
        same = True
        if isinstance(part, _Checked):
            same = isinstance(made, list) and array_fingerprint.checksum(made) == part.checksum
            part = part.part
        elif isinstance(part, bytes) and isinstance(made, list):
            same = False  # only one of the two has failed
        if isinstance(part, Left):
            share = RowRange.of(part.total, world.current().rank, world.current().size)
            return (self._memory.take(owner, part, slice(share.low, share.high)), share.taken()), same
        return carried_error.unpack(part) if isinstance(part, bytes) else part, same

    def _send(self, messages: dict[int, np.ndarray]) -> None:
        self._wait(_sending(self._messenger.lane, messages), [*messages])

    def _received(self, sender: int) -> np.ndarray:
        received: list[np.ndarray] = []
        self._wait(_receiving(self._messenger.lane, sender, received), [sender])
        return received[0]

    def _wait(self, steps: Steps, others: list[int]) -> None:
        self._messenger.post(steps).wait(lambda seconds: self._stalls.check(others, seconds, "the rows of a batch"))


def _meeting(lane: Lane, others: list[int]) -> Steps:
    """Wait for each other."""
    heard = np.zeros((len(others), 1), np.uint8)
    sent = [request for rank in others for request in lane.send(np.zeros(1, np.uint8), rank, _MEETING_TAG)]
    received = [lane.receive(heard[place], rank, _MEETING_TAG) for place, rank in enumerate(others)]
    yield [*sent, *(request for requests in received for request in requests)]


def _sending(lane: Lane, messages: dict[int, np.ndarray]) -> Steps:
    """Send bytes to each of these ranks."""
    sizes = {rank: np.array([message.size], np.int64) for rank, message in messages.items()}
    yield [request for rank, size in sizes.items() for request in lane.send(size, rank, _TAG)]
    longest = max(message.size for message in messages.values())
    for low in range(0, longest, PIECE):
        here = slice(low, low + PIECE)
        yield [
            request
            for rank, message in messages.items()
            if low < message.size
            for request in lane.send(message[here], rank, _TAG)
        ]


def _receiving(lane: Lane, owner: int, received: list[np.ndarray]) -> Steps:
    """Receive what a rank sends; it is added to `received`."""
    size = np.empty(1, np.int64)
    yield lane.receive(size, owner, _TAG)
    message = np.empty(int(size[0]), np.uint8)
    for low in range(0, message.size, PIECE):
        yield lane.receive(message[low : low + PIECE], owner, _TAG)
    received.append(message)


def _packed(message: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(message, protocol=5), np.uint8)


def _rows(batch: list[np.ndarray]) -> int:
    return next((len(array) for array in batch if array.ndim), 0)


def part_of(batch: list[np.ndarray], rank: int, size: int) -> Part:
    """A rank's rows of a batch; parts of it that have no rows are whole.

    Args:
        batch: arrays. rank: whose rows. size: how many ranks there are.
    """
    total = _rows(batch)
    share = RowRange.of(total, rank, size)
    rows = [array[share.low : share.high] if array.ndim and len(array) == total else array for array in batch]
    return rows, share.taken()


def flat(batch: Any, specs: list[tf.TensorSpec]) -> list[np.ndarray]:
    """A batch as arrays of the dtypes that a pipeline has them in.

    Args:
        batch: nested. specs: of the parts of a batch, in their order.

    Raises:
        ValueError: it has another number of parts.
    """
    leaves = tf.nest.flatten(batch)
    if len(leaves) != len(specs):
        raise ValueError(f"a batch has {len(leaves)} parts, and the first ones have {len(specs)}.")
    return [np.asarray(leaf, spec.dtype.as_numpy_dtype) for leaf, spec in zip(leaves, specs, strict=True)]


def pipeline(walk: Callable[[], Iterator[Part]], structure: Any) -> Any:
    """A pipeline of the rows of walks.

    Args:
        walk: begins one, which gives a rank's rows and their share. structure: tf.TensorSpecs of a batch.
    """
    origin, nothing = np.array([0, world.current().generation]), np.array([], np.int64)

    def batches() -> Iterator[LocalBatch]:
        for rows, share in walk():
            packed = tf.nest.pack_sequence_as(structure, rows)
            yield LocalBatch(np.array(share, np.int32), np.array(True), packed, origin, nothing)

    return tf.data.Dataset.from_generator(batches, output_signature=LocalBatch.spec(structure))
