"""Allreduce between nodes, on MPI messages that nobody waits for.

An algorithm is a generator: it starts messages, yields them, and is continued when they are complete. So several
transfers are under way at once, and while one adds what it got, the others keep the wire busy.

All of them give the same bits on every rank: a sum is either made once and passed on, or made of the same two
numbers on both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np

from matex_tf.core import trace
from matex_tf.core.world import MESSAGE_BYTES

Steps = Generator[list[Any], None, None]

#: Up to how many bytes an algorithm is used, the fewest messages first; the last takes what is left.
DOUBLING_BYTES, HALVING_BYTES = 1 << 15, 1 << 18
#: In how many pieces an array goes at most that comes alone, and the least bytes of a message of one: while one is
#: added up, the others are on the wire.
PIECES, PIECE_BYTES = 4, 1 << 16
_TAGS = 1 << 14  # MPI promises 32767
_AGREE_TAG = _TAGS  # no transfer has it
_HEAD = 3  # numbers before the data of an agreement: the two that are compared, and whether they differ somewhere
_YIELD_SECONDS, _LONGEST_SLEEP = 3e-4, 1e-3


class Coded(Protocol):
    """A ring that encodes what it sends, see `compressed_ring.CompressedRing`."""

    def __call__(self, lane: Lane, data: np.ndarray, tag: int, residual: np.ndarray | None = None) -> Steps:
        """Sum over the lane; the residual is what earlier sums have left over."""

    def nbytes(self, count: int) -> int:
        """Bytes of so many numbers as encoded."""


class Lane:
    """One rank of each node: those that exchange the same slices.

    Attributes:
        comm: their communicator, which the lane owns; rank, size: this node's place and the number of nodes.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._under_way: list[tuple[Steps, list[Any]]] = []
        self._tag = 0
        self._agreed = False

    def start(
        self,
        data: np.ndarray,
        then: Callable[[], None] | None = None,
        coded: Coded | None = None,
        residual: np.ndarray | None = None,
        others: int = 0,
    ) -> None:
        """Begin to sum a flat array over the lane, in place.

        Args:
            data: the same size and dtype on every rank of the lane.
            then: called once the sums are there.
            coded: what sums pieces that would not go by `doubling`: few bytes are not worth encoding.
            residual: for `compressed_ring`, float32 of the size of `data`; None without error feedback.
            others: arrays that are summed at the same time, the same on every rank of the lane: the more there are, the
                fewer pieces keep the wire busy, and each costs time of its own.
        """
        nbytes = data.nbytes if coded is None else coded.nbytes(data.size)
        count = max(1, min(-(-PIECES // (1 + others)), nbytes // (self.size * PIECE_BYTES)))
        pieces = np.array_split(data, count)
        residuals = [None] * count if residual is None else np.array_split(residual, count)
        left = len(pieces)

        def steps(piece: np.ndarray, left_over: np.ndarray | None, tag: int) -> Steps:
            nonlocal left
            algorithm = select_algorithm(piece.nbytes, self.size)
            if coded is None or algorithm is doubling:
                yield from algorithm(self, piece, tag)
            else:
                yield from coded(self, piece, tag, left_over)
            left -= 1
            if left == 0 and then is not None:
                then()

        for piece, left_over in zip(pieces, residuals, strict=True):
            self._tag = (self._tag + 1) % _TAGS
            self.begin(steps(piece, left_over, self._tag))
        self.progress()

    def begin(self, steps: Steps) -> None:
        """Let a transfer be one of those under way."""
        self._under_way.append((steps, []))

    def progress(self) -> bool:
        """Go on with every transfer whose messages have come; whether there was any."""
        moved = False
        for transfer in list(self._under_way):
            steps, requests = transfer
            if all(request.Test() for request in requests):
                moved = True
                place = self._under_way.index(transfer)
                try:
                    self._under_way[place] = (steps, next(steps))
                except StopIteration:
                    del self._under_way[place]
        return moved

    @property
    def busy(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self._under_way)

    def finish(self, most: int = 0) -> None:
        """Wait until at most so many transfers are under way."""
        if len(self._under_way) <= most:
            return
        with trace.span("network"):
            begin = time.perf_counter()
            while len(self._under_way) > most:
                if self.progress():
                    begin = time.perf_counter()
                else:
                    backoff(begin)

    def send(self, data: np.ndarray, to: int, tag: int) -> list[Any]:
        """Start to send, in messages of `MESSAGE_BYTES` and one of the rest."""
        return [self.comm.Isend(message, to, tag) for message in _messages(data)]

    def receive(self, data: np.ndarray, source: int, tag: int) -> list[Any]:
        """Start to receive as many bytes, or fewer where all of them fit one message."""
        return [self.comm.Irecv(message, source, tag) for message in _messages(data)]

    def agree(self, numbers: tuple[int, int], data: np.ndarray | None = None) -> bool:
        """Whether every rank of the lane gives the same numbers; where they do, sum `data` over the lane as well.

        One message does for both, so that a small sum costs no more than its own way.

        Args:
            numbers: of 64 bits, with a sign.
            data: flat, at most `together_bytes`; summed in place. Garbage where the ranks do not agree.
        """
        with trace.span("agree" if data is None else "network"):
            self.begin(self._agreeing(numbers, data))
            begin = time.perf_counter()
            while self._under_way:
                if not self.progress():
                    backoff(begin)
        return self._agreed

    @property
    def together_bytes(self) -> int:
        """Up to how many bytes travel with an agreement."""
        return HALVING_BYTES if self.size == 2 else DOUBLING_BYTES

    def _agreeing(self, numbers: tuple[int, int], data: np.ndarray | None) -> Steps:
        """Recursive doubling over numbers and data. Messages of ranks that are about to do different things have
        different lengths; a rank is ready for the longest."""
        head = _HEAD * 8
        nbytes = 0 if data is None else data.nbytes
        mine, theirs = np.empty(head + nbytes, np.uint8), np.empty(head + self.together_bytes, np.uint8)
        said, heard = mine[:head].view(np.int64), theirs[:head].view(np.int64)
        said[:] = *numbers, 0
        own = None
        if data is not None:
            own = mine[head:].view(data.dtype)
            np.copyto(own, data)

        def merge() -> None:
            if said[2] or heard[2] or not np.array_equal(said[:2], heard[:2]):
                said[2] = 1
            elif own is not None:
                _add(own, theirs[head : head + nbytes].view(own.dtype))

        power = _power(self.size)
        if self.rank >= power:
            yield self.send(mine, self.rank - power, _AGREE_TAG)
            yield self.receive(theirs, self.rank - power, _AGREE_TAG)
            said[2] = heard[2]
            if own is not None and not said[2]:
                np.copyto(own, theirs[head : head + nbytes].view(own.dtype))
        else:
            beyond = self.rank + power < self.size
            if beyond:
                yield self.receive(theirs, self.rank + power, _AGREE_TAG)
                merge()
            distance = 1
            while distance < power:
                partner = self.rank ^ distance
                yield [*self.receive(theirs, partner, _AGREE_TAG), *self.send(mine, partner, _AGREE_TAG)]
                merge()
                distance *= 2
            if beyond:
                yield self.send(mine, self.rank + power, _AGREE_TAG)
        if data is not None and own is not None:
            np.copyto(data, own)
        self._agreed = not said[2]

    def close(self) -> None:
        """Give the communicator back."""
        self.comm.Free()


def select_algorithm(nbytes: int, size: int) -> Callable[[Lane, np.ndarray, int], Steps]:
    """The algorithm for this many bytes on this many nodes."""
    if nbytes <= DOUBLING_BYTES or size == 2 and nbytes <= HALVING_BYTES:
        return doubling
    return rabenseifner if nbytes <= HALVING_BYTES else ring


def ring(lane: Lane, data: np.ndarray, tag: int) -> Steps:
    """Each of n slices goes round twice: once to gather the sum, once to spread it. 2 (n-1)/n of the bytes, 2 (n-1)
    messages in a row."""
    size, rank = lane.size, lane.rank
    slices = np.array_split(data, size)
    received = np.empty(slices[0].size, data.dtype)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        mine, theirs = slices[(rank - step) % size], slices[(rank - step - 1) % size]
        part = received[: theirs.size]
        yield [*lane.receive(part, left, tag), *lane.send(mine, right, tag)]
        _add(theirs, part)
    for step in range(size - 1):
        mine, theirs = slices[(rank + 1 - step) % size], slices[(rank - step) % size]
        yield [*lane.receive(theirs, left, tag), *lane.send(mine, right, tag)]


def doubling(lane: Lane, data: np.ndarray, tag: int) -> Steps:
    """Recursive doubling: everyone swaps everything with a partner, at distance 1, 2, 4 … log2(n) messages in a row."""
    received = np.empty_like(data)
    place = yield from _fold(lane, data, received, tag)
    if place is not None:
        distance = 1
        while distance < _power(lane.size):
            partner = place ^ distance
            # The partner overwrites nothing of mine: what it sends is received apart, and added when both are done.
            yield [*lane.receive(received, partner, tag), *lane.send(data, partner, tag)]
            _add(data, received)
            distance *= 2
    yield from _unfold(lane, data, tag)


def rabenseifner(lane: Lane, data: np.ndarray, tag: int) -> Steps:
    """Rabenseifner: halves are swapped until each rank has the sum of one n-th, then come back the same way.
    2 (n-1)/n of the bytes, 2 log2(n) messages in a row."""
    received = np.empty_like(data)
    place = yield from _fold(lane, data, received, tag)
    if place is not None:
        low, high, way = 0, data.size, []
        distance = _power(lane.size) // 2
        while distance:
            middle = (low + high) // 2
            partner = place ^ distance
            keep, give = ((low, middle), (middle, high)) if place < partner else ((middle, high), (low, middle))
            part = received[: keep[1] - keep[0]]
            yield [*lane.receive(part, partner, tag), *lane.send(data[give[0] : give[1]], partner, tag)]
            _add(data[keep[0] : keep[1]], part)
            way.append((partner, keep, give))
            low, high = keep
            distance //= 2
        for partner, kept, given in reversed(way):
            yield [
                *lane.receive(data[given[0] : given[1]], partner, tag),
                *lane.send(data[kept[0] : kept[1]], partner, tag),
            ]
    yield from _unfold(lane, data, tag)


def _fold(lane: Lane, data: np.ndarray, received: np.ndarray, tag: int) -> Generator[list[Any], None, int | None]:
    """Ranks beyond the largest power of two give what they have to one below; this rank's place, None for those."""
    power = _power(lane.size)
    if lane.rank >= power:
        yield lane.send(data, lane.rank - power, tag)
        return None
    if lane.rank + power < lane.size:
        yield lane.receive(received, lane.rank + power, tag)
        _add(data, received)
    return lane.rank


def _unfold(lane: Lane, data: np.ndarray, tag: int) -> Steps:
    power = _power(lane.size)
    if lane.rank >= power:
        yield lane.receive(data, lane.rank - power, tag)
    elif lane.rank + power < lane.size:
        yield lane.send(data, lane.rank + power, tag)


def backoff(begin: float) -> None:
    """Give the core away at first, then sleep for an eighth of what the wait has taken so far: late by no more than
    that, and at little cost."""
    waited = time.perf_counter() - begin
    if waited < _YIELD_SECONDS:
        os.sched_yield()
    else:
        time.sleep(min(waited / 8, _LONGEST_SLEEP))


def _power(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def _add(total: np.ndarray, part: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        np.add(total, part, out=total)


def _messages(data: np.ndarray) -> list[Any]:
    from mpi4py import MPI

    flat = data.view(np.uint8)
    starts = range(0, max(flat.size, 1), MESSAGE_BYTES)
    return [[flat[start : start + MESSAGE_BYTES], MPI.BYTE] for start in starts]
