"""Allreduce between nodes, on messages that nobody waits for.

An algorithm is a generator: it starts messages, yields them, and is continued when they are complete. So several
transfers are under way at once, and while one adds what it got, the others keep the wire busy.

All of them give the same bits on every rank: a sum is either made once and passed on, or made of the same two
numbers on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import numpy as np

from matex_tf.core.transport.communicator import Request

Steps = Generator[Sequence[Request], None, None]

#: Up to how many bytes an algorithm is used, the fewest messages first; the last takes what is left.
DOUBLING_BYTES, HALVING_BYTES = 1 << 15, 1 << 18


class Peers(Protocol):
    """The ranks that take part, such as `lane.Lane`.

    Attributes:
        rank, size: this one, and how many there are.
    """

    rank: int
    size: int

    def send(self, data: np.ndarray, to: int, tag: int) -> list[Request]:
        """Start to send a flat array, which must not change until that is complete.

        Args:
            to: a rank, 0 to `size` - 1.
            tag: of the message; `receive` must name it.
        """

    def receive(self, data: np.ndarray, source: int, tag: int) -> list[Request]:
        """Start to receive as many bytes.

        Args:
            data: flat and contiguous; overwritten.
            source: a rank, 0 to `size` - 1.
            tag: what the sender has named.
        """


def select_algorithm(nbytes: int, size: int, as_tree: bool = False) -> Callable[[Peers, np.ndarray, int], Steps]:
    """The algorithm for this many bytes on this many nodes.

    Args:
        as_tree: whether all parts of the data shall be summed in one order: on 2, 4, 8, … nodes as ((0 + 1) + (2 + 3)).
    """
    if nbytes <= DOUBLING_BYTES or size == 2 and nbytes <= HALVING_BYTES:
        return doubling
    return rabenseifner if nbytes <= HALVING_BYTES or as_tree else ring


def ring(lane: Peers, data: np.ndarray, tag: int) -> Steps:
    """Each of n slices goes round twice: once to gather the sum, once to spread it. 2 (n-1)/n of the bytes, 2 (n-1)
    messages in a row.

    Args:
        lane: the ranks that take part.
        data: flat, of the same size and dtype on every rank; overwritten by the sum.
        tag: of all messages of this sum.
    """
    size, rank = lane.size, lane.rank
    slices = np.array_split(data, size)
    received = np.empty(slices[0].size, data.dtype)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        mine, theirs = slices[(rank - step) % size], slices[(rank - step - 1) % size]
        part = received[: theirs.size]
        yield [*lane.receive(part, left, tag), *lane.send(mine, right, tag)]
        add(theirs, part)
    for step in range(size - 1):
        mine, theirs = slices[(rank + 1 - step) % size], slices[(rank - step) % size]
        yield [*lane.receive(theirs, left, tag), *lane.send(mine, right, tag)]


def doubling(
    lane: Peers,
    data: np.ndarray,
    tag: int,
    received: np.ndarray | None = None,
    merge: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> Steps:
    """Recursive doubling: everyone swaps everything with a partner, at distance 1, 2, 4 … log2(n) messages in a row.

    Args:
        lane, data, tag: see `ring`.
        received: room for what comes, where that may be longer than `data`.
        merge: puts what has come into `data`, in the place of `add`; the same on both sides.
    """
    received = np.empty_like(data) if received is None else received
    merge = merge or add
    place = yield from _fold(lane, data, received, tag, merge)
    if place is not None:
        distance = 1
        while distance < largest_power(lane.size):
            partner = place ^ distance
            # The partner overwrites nothing of mine: what it sends is received apart, and added when both are done.
            yield [*lane.receive(received, partner, tag), *lane.send(data, partner, tag)]
            merge(data, received)
            distance *= 2
    yield from _unfold(lane, data, received, tag)


def rabenseifner(lane: Peers, data: np.ndarray, tag: int) -> Steps:
    """Rabenseifner: halves are swapped until each rank has the sum of one n-th, then come back the same way.
    2 (n-1)/n of the bytes, 2 log2(n) messages in a row.

    Args:
        lane, data, tag: see `ring`.
    """
    received = np.empty_like(data)
    place = yield from _fold(lane, data, received, tag, add)
    if place is not None:
        low, high, way = 0, data.size, []
        distance = 1  # neighbours first, so that sums have the order of `doubling`
        while distance < largest_power(lane.size):
            middle = (low + high) // 2
            partner = place ^ distance
            keep, give = ((low, middle), (middle, high)) if place < partner else ((middle, high), (low, middle))
            part = received[: keep[1] - keep[0]]
            yield [*lane.receive(part, partner, tag), *lane.send(data[give[0] : give[1]], partner, tag)]
            add(data[keep[0] : keep[1]], part)
            way.append((partner, keep, give))
            low, high = keep
            distance *= 2
        for partner, kept, given in reversed(way):
            yield [
                *lane.receive(data[given[0] : given[1]], partner, tag),
                *lane.send(data[kept[0] : kept[1]], partner, tag),
            ]
    yield from _unfold(lane, data, received, tag)


def _fold(
    lane: Peers, data: np.ndarray, received: np.ndarray, tag: int, merge: Callable[[np.ndarray, np.ndarray], None]
) -> Generator[Sequence[Request], None, int | None]:
    """Ranks beyond the largest power of two give what they have to one below; this rank's place, None for those."""
    power = largest_power(lane.size)
    if lane.rank >= power:
        yield lane.send(data, lane.rank - power, tag)
        return None
    if lane.rank + power < lane.size:
        yield lane.receive(received, lane.rank + power, tag)
        merge(data, received)
    return lane.rank


def _unfold(lane: Peers, data: np.ndarray, received: np.ndarray, tag: int) -> Steps:
    power = largest_power(lane.size)
    if lane.rank >= power:
        yield lane.receive(received, lane.rank - power, tag)
        np.copyto(data, received[: data.size])
    elif lane.rank + power < lane.size:
        yield lane.send(data, lane.rank + power, tag)


def largest_power(size: int) -> int:
    """The largest power of two up to `size`."""
    return 1 << (size.bit_length() - 1)


def add(total: np.ndarray, part: np.ndarray) -> None:
    """Add an array to another one; an infinite gradient is the optimizer's business.

    Args:
        total: overwritten by the sum.
        part: of the same shape and dtype.
    """
    with np.errstate(all="ignore"):
        np.add(total, part, out=total)
