"""Two ranks meet halfway: each sends what it has, and moves to the average of that and of what it gets from another.

Arrays travel in buckets, in pieces of a megabyte, while the ranks compute. With what was sent called w and what was
received called v, a rank is given (v - w) / 2, to be added to what it has by then. A rank sends one message for each
piece, one of 16 bytes that says where it is, and for each bucket one of a byte that asks for it; and receives as many:
that does not depend on the number of ranks. A bucket that its receiver has not asked for yet would go by the same wire
as what that one still waits for from another rank, and make it late, and so all that follows.

With a codec Q a rank sends Q(w - r), and is given (Q(v - r) - Q(w - r)) / 2, where the reference r is the same on all
ranks: arrays that all of them had at the same time, such as their last average. So what is rounded is how far a rank
has come since then, not its weights. What holds, for any Q:

- Each rank is moved by half of what it was sent less half of what it has sent, as its partner reads that. Senders and
  receivers are a permutation, so all moves add up to nothing, and the mean over the ranks stays what it was, up to the
  rounding of the sums themselves.
- Ranks with equal arrays send the same bytes, and do not move.
- What a rank says of its arrays is off by no more than the codec's error of w - r, so by nothing where it is at r.

With error feedback a rank sends Q(w - r + e) and keeps e, what that could not say, for the next exchange: DeepSqueeze
(arXiv 1907.07346), for partners that change. The moves add up to nothing as before; and all that a rank has sent, added
up, is all that it had to say less one e, so errors do not add up either. But ranks with equal arrays may have
another e each, and then move, by up to twice the codec's error.

Coding differences to what the receiver knows of the sender, as CHOCO-SGD (arXiv 1902.00340) does, wants the same
partners for ever: here each message comes from another rank, so what sender and receiver share is what all have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.errors import RanksDisagree
from matex_tf.exchange.bucket import Bucket, empty, pack
from matex_tf.exchange.network.algorithms import Peers, Steps
from matex_tf.exchange.network.codec import Codec, create
from matex_tf.exchange.network.messenger import Messenger, Transfer, swap
from matex_tf.features.gossip.topology import Partners

_HEAD_TAG, _ASK_TAG = 1 << 14, 1 << 13  # others are numbers of buckets; to ask for one adds to that
_GOES_ON, _STOPS = 0, 1


class PairwiseAverager:
    """One rank's part in the meetings about a list of arrays.

    Attributes:
        turns: exchanges that were begun; the same on every rank, as all partners follow from it.
        under_way: whether the last one has not been finished.
        parts: the arrays of each bucket, in the order in which they travel.
        moves: for each array, how far the last exchange moves it; views of a buffer that the next one overwrites.
        reference: for each array that a codec encodes, what its differences are taken to; zeros at first.
    """

    def __init__(
        self,
        messenger: Messenger,
        rank: int,
        partners: Partners,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[np.dtype],
        limit: int,
        look: Callable[[Sequence[int], float], None] = lambda partners, seconds: None,
        codec: str = "none",
        feedback: bool = False,
    ):
        """What shall be averaged.

        Args:
            messenger: what messages go by.
            rank, partners: who this is, and with whom it meets.
            shapes, dtypes: of the arrays, all of floating point, in the order of layers.
            limit: bytes of a bucket.
            look: called now and then with the ranks of which one is waited for, and for how many seconds; may raise.
            codec: by name, see `codec`; "none" for none. Used where it makes a bucket shorter.
            feedback: whether what the codec could not say is kept for the next exchange.

        Raises:
            SettingError: there is no codec of this name.
        """
        self._messenger, self._rank, self._partners, self._look = messenger, rank, partners, look
        # Buckets go from the last array to the first, as gradients come; weights are needed the other way round.
        self._buckets = pack(shapes, dtypes, limit)[::-1]
        self.parts = [bucket.members for bucket in self._buckets]
        self._sent = [empty(bucket.size, bucket.dtype) for bucket in self._buckets]
        self._received = [empty(bucket.size, bucket.dtype) for bucket in self._buckets]
        for sent, received in zip(self._sent, self._received, strict=True):
            sent[:], received[:] = 0, 0  # also between arrays, where nothing is ever written
        coder = None if codec == "none" else create(codec)
        self._coded = [_coded_part(coder, bucket, feedback) for bucket in self._buckets]
        self._said, self._heard = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._transfers: list[Transfer] = []
        self._to = self._source = rank
        self.turns = 0
        self.under_way = False
        self.moves = _views(self._buckets, self._received, shapes)
        self._own = _views(self._buckets, self._sent, shapes)
        self.reference = _views(self._buckets, [part.reference if part else None for part in self._coded], shapes)

    def refer(self, arrays: Sequence[np.ndarray]) -> None:
        """With a codec, send how far arrays are from these from now on. Nothing may be under way.

        Args:
            arrays: all of them, the same bits on every rank. NaN and infinities in them count as 0.
        """
        for reference, array in zip(self.reference, arrays, strict=True):
            if reference is not None:
                np.copyto(reference, array)
                reference[~np.isfinite(reference)] = 0
        for part in self._coded:
            if part is not None and part.residual is not None:
                part.residual[:] = 0

    def greet(self) -> None:
        """Begin an exchange, whose parts are to be sent, all of them, from the first to the last."""
        self._greet(_GOES_ON)
        self.turns += 1
        self.under_way = True

    def send(self, part: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy the arrays of a part, and begin to send them and to receive a partner's. Does not wait.

        Args:
            part: its number, from 0; each in its turn, after `greet`.
            arrays: those that `parts` names, in that order.
        """
        for member, array in zip(self.parts[part], arrays, strict=True):
            np.copyto(self._own[member], array)
        lane, coded = self._messenger.lane, self._coded[part]
        swapped = _averager(lane, self._sent[part], self._received[part], coded, self._to, self._source, part)
        self._transfers.append(self._messenger.post(swapped))

    def finish(self) -> None:
        """Wait for what was begun; `moves` are there then.

        Raises:
            RanksDisagree: the partner is elsewhere in its script.
            MatexError: the partner did not come for too long.
        """
        for _ in self.arriving():
            pass
        self.under_way = False

    def turn(self) -> Iterator[int]:
        """Finish what was begun, and begin the next exchange, a part at a time: while the later parts of the one are on
        the wire, the first of the other are on their way to it.

        Yields:
            Each part as soon as its `moves` are there; the next may be asked for when it has been sent.

        Raises:
            As `finish`.
        """
        arriving = self.arriving()
        self.greet()
        return arriving

    def arriving(self) -> Iterator[int]:
        """Each part of what was begun, when its `moves` are there. Hears at once what the partner does.

        Raises:
            As `finish`.
        """
        self._hear(_GOES_ON, self.turns - 1)
        transfers, waiting = self._transfers, self._waiting

        def wait() -> Iterator[int]:
            for part, transfer in enumerate(transfers):
                transfer.wait(waiting)
                yield part

        return wait()

    def stop(self) -> None:
        """Tell the next partner that no weights follow for now, and hear the same.

        Raises:
            RanksDisagree: the partner goes on.
        """
        self._greet(_STOPS)
        self._hear(_STOPS, self.turns)

    def _greet(self, kind: int) -> None:
        """Begin to say, and to hear, who does what."""
        self._to, self._source = self._partners.of(self.turns, self._rank)
        self._said[:] = self.turns, kind
        lane = self._messenger.lane
        self._transfers = [self._messenger.post(swap(lane, self._said, self._heard, self._to, self._source, _HEAD_TAG))]

    def _hear(self, kind: int, turn: int) -> None:
        self._transfers.pop(0).wait(self._waiting)
        theirs, their_kind = map(int, self._heard)
        if (theirs, their_kind) == (turn, kind):
            return
        doing = f"after {theirs} exchanges goes on to train", f"after {theirs} exchanges has stopped training"
        mine = f"after {turn} exchanges goes on to train", f"after {turn} exchanges has stopped training"
        raise RanksDisagree(
            f"the ranks have gone different ways. rank {self._source} {doing[their_kind]}; rank {self._rank} "
            f"{mine[kind]}. Every rank must take the same steps: look for a loop that one rank leaves early, or a "
            "branch that depends on what a rank sees of its own batches."
        )

    @property
    def _waiting(self) -> Callable[[float], None]:
        """What to call while waiting for the partners of now."""
        partners = sorted({self._source, self._to})
        return lambda seconds: self._look(partners, seconds)


class _Coded:
    """What a codec needs for one bucket.

    Attributes:
        outgoing, incoming: the bucket on the wire; uint8.
        reference: of the bucket's size and dtype.
        residual: float32, what earlier exchanges could not say; None without error feedback.
    """

    def __init__(self, codec: Codec, bucket: Bucket, feedback: bool):
        """Args: codec: one for all buckets, as one thread encodes them one after the other."""
        self._codec = codec
        self.outgoing, self.incoming = (np.empty(codec.nbytes(bucket.size), np.uint8) for _ in range(2))
        self.reference = np.zeros(bucket.size, bucket.dtype)
        self.residual = np.zeros(bucket.size, np.float32) if feedback else None

    def encode(self, mine: np.ndarray) -> None:
        """Fill `outgoing`; overwrites what it is given."""
        with np.errstate(all="ignore"):
            np.subtract(mine, self.reference, out=mine)
        self._codec.encode(mine, self.outgoing, self.residual)

    def decode(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        """What both sides have said, as either reads it."""
        self._codec.decode(self.outgoing, mine)
        self._codec.decode(self.incoming, theirs)


def _coded_part(codec: Codec | None, bucket: Bucket, feedback: bool) -> _Coded | None:
    shorter = codec is not None and codec.nbytes(bucket.size) < bucket.nbytes
    return _Coded(codec, bucket, feedback) if codec is not None and shorter else None


def _averager(
    lane: Peers, mine: np.ndarray, theirs: np.ndarray, coded: _Coded | None, to: int, source: int, tag: int
) -> Steps:
    """Ask for a bucket and be asked for one, swap them, and make of what was received how far it is to the middle."""
    ask, asked = np.zeros(1, np.uint8), np.empty(1, np.uint8)
    yield [*lane.receive(asked, to, tag + _ASK_TAG), *lane.send(ask, source, tag + _ASK_TAG)]
    if coded is None:
        yield from swap(lane, mine, theirs, to, source, tag)
    else:
        coded.encode(mine)
        yield from swap(lane, coded.outgoing, coded.incoming, to, source, tag)
        coded.decode(mine, theirs)
    with np.errstate(all="ignore"):
        np.subtract(theirs, mine, out=theirs)
        np.multiply(theirs, theirs.dtype.type(0.5), out=theirs)


def _views(buckets: Sequence[Bucket], flat: Sequence[np.ndarray | None], shapes: Sequence[tuple[int, ...]]) -> Any:
    views: list[Any] = [None] * len(shapes)
    for bucket, memory in zip(buckets, flat, strict=True):
        if memory is None:
            continue
        for member, start, size in zip(bucket.members, bucket.starts, bucket.sizes, strict=True):
            views[member] = memory[start : start + size].reshape(shapes[member])
    return views
