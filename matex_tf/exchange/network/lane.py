"""One rank of each node: the transfers between them that are under way, and how they agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from matex_tf.core import trace
from matex_tf.core.transport.communicator import Communicator, Request, messages_of
from matex_tf.core.waiting import wait_until
from matex_tf.exchange.network.algorithms import (
    DOUBLING_BYTES,
    HALVING_BYTES,
    Steps,
    add,
    doubling,
    select_algorithm,
)
from matex_tf.exchange.network.compressed_ring import CompressedRing

#: In how many pieces an array goes at most that comes alone, and the least bytes of a message of one: while one is
#: added up, the others are on the wire.
PIECES, PIECE_BYTES = 4, 1 << 16
_TAGS = 1 << 14  # a transport promises `LARGEST_TAG`
_AGREE_TAG = _TAGS  # no transfer has it
_HEAD = 3  # numbers before the data of an agreement: the two that are compared, and whether they differ somewhere


class Lane:
    """One rank of each node: those that exchange the same slices.

    Attributes:
        comm: their communicator, which the lane gives back; rank, size: this node's place and the number of nodes.
    """

    def __init__(self, comm: Communicator, as_tree: bool = False):
        """Args: comm: of these ranks. as_tree: see `select_algorithm`."""
        self.comm = comm
        self._as_tree = as_tree
        self.rank, self.size = comm.rank, comm.size
        self._under_way: list[tuple[Steps, Sequence[Request]]] = []
        self._tag = 0
        self._agreed = False

    def start(
        self,
        data: np.ndarray,
        then: Callable[[], None] | None = None,
        coded: CompressedRing | None = None,
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
            algorithm = select_algorithm(piece.nbytes, self.size, self._as_tree)
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
            if all(request.test() for request in requests):
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
            wait_until(lambda: len(self._under_way) <= most, self.progress)

    def send(self, data: np.ndarray, to: int, tag: int) -> list[Request]:
        """Start to send, in messages of `MESSAGE_BYTES` and one of the rest.

        Args:
            data: flat and contiguous; it must not change until that is complete.
            to: a rank of the lane.
            tag: of all these messages; `receive` must name it.
        """
        return [self.comm.isend(message, to, tag) for message in messages_of(data)]

    def receive(self, data: np.ndarray, source: int, tag: int) -> list[Request]:
        """Start to receive as many bytes, or fewer where all of them fit one message.

        Args:
            data: flat and contiguous; overwritten.
            source: a rank of the lane.
            tag: what the sender has named.
        """
        return [self.comm.irecv(message, source, tag) for message in messages_of(data)]

    def agree(self, numbers: tuple[int, int], data: np.ndarray | None = None) -> bool:
        """Whether every rank of the lane gives the same numbers; where they do, sum `data` over the lane as well.

        One message does for both, so that a small sum costs no more than its own way.

        Args:
            numbers: of 64 bits, with a sign.
            data: flat, at most `together_bytes`; summed in place. Garbage where the ranks do not agree.
        """
        with trace.span("agree" if data is None else "network"):
            self.begin(self._agreeing(numbers, data))
            wait_until(lambda: not self._under_way, self.progress)
        return self._agreed

    @property
    def together_bytes(self) -> int:
        """Up to how many bytes travel with an agreement."""
        return HALVING_BYTES if self.size == 2 else DOUBLING_BYTES

    def _agreeing(self, numbers: tuple[int, int], data: np.ndarray | None) -> Steps:
        """`doubling` over numbers and data. Messages of ranks that are about to do different things have
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

        def merge(_: np.ndarray, __: np.ndarray) -> None:
            if said[2] or heard[2] or not np.array_equal(said[:2], heard[:2]):
                said[2] = 1
            elif own is not None:
                add(own, theirs[head : head + nbytes].view(own.dtype))

        yield from doubling(self, mine, _AGREE_TAG, theirs, merge)
        if data is not None and own is not None:
            np.copyto(data, own)
        self._agreed = not said[2]

    def close(self) -> None:
        """Give the communicator back."""
        self.comm.free()
