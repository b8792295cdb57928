"""Allreduce of a bucket: inside a node through shared memory, between nodes by messages.

    pack      each rank copies what others will add up of its tensors into its place in shared memory, a chunk at a time
    reduce    each rank adds up one slice of the chunk over all ranks of the node, into the result; its own part of
              that it takes from its tensors
    network   between nodes: each slice is summed with its counterparts, so that all ranks drive the network
    result    views of that memory, the same bits on every rank

The ranks meet (`barrier`) once for each chunk, since a rank that has packed a chunk has reduced the
one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from matex_tf.core import trace
from matex_tf.exchange.bucket import Bucket, EmptyArrays, empty, slice_of
from matex_tf.exchange.network.compressed_ring import CompressedRing, CompressedRings, CompressionState
from matex_tf.exchange.node.barrier import CheckedBarrier, Meeting
from matex_tf.exchange.node.reduction import Weighted, add_up, add_up_weighted, put, small_sum, wide

#: Transfers between nodes that are under way at once.
IN_FLIGHT = 32

#: Small buckets of which a channel knows where they lie; a model with BatchNormalization has two for each layer.
_MOST_SMALL = 1024

#: Pieces of tensors in a rank's slice up to which it adds them up as they lie, and does not copy them first.
_MOST_PIECES = 16


@dataclass(frozen=True)
class _Chunk:
    """A part of a bucket that is packed and reduced at a time, as one rank sees it.

    Attributes:
        low, high: elements of the bucket.
        moves: what this rank packs: a tensor's place in the bucket, elements of it, where they start in the chunk.
        slice: what this rank adds up; None where it adds up nothing.
        own: where it takes its own part of that from, as `moves`; None where it has packed that as well.
    """

    low: int
    high: int
    moves: list[tuple[int, int, int, int]]
    slice: slice | None
    own: list[tuple[int, int, int, int]] | None


class _SmallPlaces:
    """Where a small bucket lies in one of the two turns, as one rank sees it: views take time to make.

    Attributes:
        parts: of the ranks of the node, in their order.
        result: for sums over nodes.
        tensors: where this rank's tensors go, in their shapes.
        add_up: writes the sum of the parts into an array.
    """

    __slots__ = ("parts", "result", "tensors", "add_up")

    def __init__(self, bucket: Bucket, half: np.ndarray, rank: int):
        slots = half[:, : bucket.nbytes].view(bucket.dtype)
        self.parts, self.result = list(slots[:-1]), slots[-1]
        self.tensors = [
            slots[rank, low : low + size].reshape(shape)
            for low, size, shape in zip(bucket.starts, bucket.sizes, bucket.shapes, strict=True)
        ]
        self.add_up = small_sum(slots[:-1])


class Channel(CheckedBarrier):
    """A way for buckets, one after the other, between the ranks of a world. Every rank sends the same buckets.

    Attributes:
        chunk: bytes that are packed before they are reduced.
        small: bytes up to which every rank adds up all parts itself.
    """

    def __init__(self, meeting: Meeting, small: int, chunk: int):
        """Collective over the node.

        Args:
            meeting: who sends.
            small: bytes up to which every rank adds up all parts itself, after a single wait.
            chunk: bytes that are packed before they are reduced; a multiple of `ALIGNMENT`.

        Raises:
            OutOfSharedMemory: on every rank of the node.
        """
        node = meeting.node
        room = 2 * (node.size + 1) * (small + chunk)
        super().__init__(meeting, room)
        self.chunk, self.small = chunk, small
        memory, border = self._room, 2 * (node.size + 1) * small
        self._small_parts = memory[:border].reshape(2, node.size + 1, small)  # the last of each is for the result
        self._parts = memory[border:room].reshape(2, node.size + 1, chunk)
        self._small_places: dict[int, tuple[Bucket, list[_SmallPlaces], EmptyArrays]] = {}
        self._chunks: dict[int, tuple[Bucket, list[_Chunk]]] = {}
        self._rings = CompressedRings()

    def allreduce(
        self,
        bucket: Bucket,
        arrays: Sequence[np.ndarray],
        what: int,
        detail: int,
        held: int,
        choose: Callable[[int], np.ndarray | None],
        coding: CompressionState | None = None,
    ) -> np.ndarray | None:
        """Sum a bucket over all ranks.

        Args:
            bucket: how the tensors lie.
            arrays: this rank's tensors, in the order and the shapes of the bucket; may be `Weighted`.
            what, detail, held: see `wait`.
            choose: from the bits that any rank of the node held to the shared memory for the result, uint8 of the
                bucket's size, or None for memory of this rank's own. Called at the same point on every rank.
            coding: how it is encoded between nodes; None for not at all. The same object for the same bucket.

        Returns:
            The sums, laid out as the bucket is; None where the ranks are not about to do the same.
        """
        if bucket.nbytes <= self.small:
            return self.allreduce_small(bucket, arrays, what, detail, coding)
        with self._lock:
            try:
                factors = arrays.factors if isinstance(arrays, Weighted) else [None] * len(arrays)
                flat = Weighted([array.reshape(-1) for array in arrays], factors)
                return self._allreduce_large(bucket, flat, what, detail, held, choose, coding)
            finally:
                self._calls += 1

    def allreduce_small(
        self,
        bucket: Bucket,
        arrays: Sequence[np.ndarray],
        what: int,
        detail: int,
        coding: CompressionState | None = None,
    ) -> np.ndarray | None:
        """Sum a small bucket over all ranks; its sums lie in no memory that is shared.

        Args:
            bucket: of at most `small` bytes.
            arrays: its tensors, in the order of its members; may be `Weighted`.
            what, detail: checksums that all ranks must have in common, see `World.barrier`.
            coding: how it is encoded between nodes; None: not at all.
        """
        with self._lock:
            try:
                return self._add_up_everywhere(bucket, arrays, what, detail, coding)
            finally:
                self._calls += 1

    def _add_up_everywhere(
        self, bucket: Bucket, arrays: Sequence[np.ndarray], what: int, detail: int, coding: CompressionState | None
    ) -> np.ndarray | None:
        """Each rank adds up all parts: one wait. Such a sum takes as long as its lines of Python, so these are few."""
        _, both, results = self._places(bucket)
        places = both[self._calls & 1]
        with trace.span("pack"):
            if isinstance(arrays, Weighted):
                for place, array, factor in zip(places.tensors, arrays, arrays.factors, strict=True):
                    put(array, factor, place)
            else:
                for place, array in zip(places.tensors, arrays, strict=True):
                    place[...] = array
        self._sign(what, detail, 0)
        self._advance()
        total = results.take()  # while others may be on their way
        self._await_all()
        agreed = self._same(what, detail)
        if not self._networked:
            if agreed:
                with trace.span("reduce"):
                    places.add_up(total)
            return total if agreed else None
        sums = None
        if self._node.rank == 0:
            sums = empty(bucket.size, wide(bucket.dtype))
            with trace.span("reduce"):
                add_up(places.parts, sums)
        if not self._judge(agreed, sums, places.result, *self._coded(coding, 0, sums)):
            return None
        np.copyto(total, places.result)
        return total

    def _allreduce_large(
        self,
        bucket: Bucket,
        arrays: Weighted,
        what: int,
        detail: int,
        held: int,
        choose: Callable[[int], np.ndarray | None],
        coding: CompressionState | None,
    ) -> np.ndarray | None:
        """Chunk by chunk; while a rank waits for the others to pack one, its part of the one before is reduced."""
        dtype, chunks = bucket.dtype, self._divide(bucket)
        parts = [[slot.view(dtype) for slot in half] for half in self._parts]
        mine = self._node.rank

        def pack(number: int) -> None:
            with trace.span("pack"):
                place = parts[number & 1][mine]
                for member, low, high, begin in chunks[number].moves:
                    put(arrays[member][low:high], arrays.factors[member], place[begin : begin + high - low])

        pack(0)
        self._sign(what, detail, held)
        self._advance()
        self._await_all()
        agreed, held = self._compare()
        if not self._judge(agreed):
            return None
        shared = choose(held)
        total = empty(bucket.size, dtype) if shared is None else shared.view(dtype)

        def place(number: int) -> np.ndarray:
            low, high = chunks[number].low, chunks[number].high
            return parts[number & 1][-1][: high - low] if shared is None else total[low:high]

        def take_out(number: int) -> None:
            """Where the result is this rank's own: copy it before the place is used again."""
            if self._networked:
                self._pass_on()
            np.copyto(total[chunks[number].low : chunks[number].high], place(number))

        for number, chunk in enumerate(chunks):
            if number:
                self._await_all()
                if shared is None:
                    take_out(number - 1)
            self._reduce(chunk, parts[number & 1][:-1], arrays, place(number), coding, len(chunks) - 1)
            if number + 1 < len(chunks):
                pack(number + 1)
            self._advance()
        self._await_all()
        if shared is None:
            take_out(len(chunks) - 1)
        elif self._networked:
            self._pass_on()
        return total

    def _divide(self, bucket: Bucket) -> list[_Chunk]:
        """The chunks of a bucket."""
        known = self._chunks.get(id(bucket))
        if known is not None and known[0] is bucket:
            return known[1]
        step, chunks = self.chunk // bucket.dtype.itemsize, []
        for low in range(0, bucket.size, step):
            high = min(low + step, bucket.size)
            here, own = None, None
            if self._node.rank < self._lanes:
                here = slice_of(high - low, self._lanes, self._node.rank, bucket.dtype.itemsize)
                own = list(bucket.pieces(low, low + here.start, low + here.stop))
            if here is None or own is None or len(own) > _MOST_PIECES:
                moves, own = list(bucket.pieces(low, low, high)), None
            else:
                moves = [*bucket.pieces(low, low, low + here.start), *bucket.pieces(low, low + here.stop, high)]
            chunks.append(_Chunk(low, high, moves, here, own))
        if len(self._chunks) >= 64:
            self._chunks.clear()
        self._chunks[id(bucket)] = (bucket, chunks)
        return chunks

    def _places(self, bucket: Bucket) -> tuple[Bucket, list[_SmallPlaces], EmptyArrays]:
        """A small bucket, where it lies in each turn, and arrays for its results."""
        known = self._small_places.get(id(bucket))
        if known is not None and known[0] is bucket:
            return known
        places = [_SmallPlaces(bucket, half, self._node.rank) for half in self._small_parts]
        if len(self._small_places) >= _MOST_SMALL:
            self._small_places.clear()
        known = self._small_places[id(bucket)] = bucket, places, EmptyArrays(bucket.size, bucket.dtype)
        return known

    def _coded(
        self, coding: CompressionState | None, chunk: int, sums: np.ndarray | None
    ) -> tuple[CompressedRing | None, np.ndarray | None]:
        """What sums this rank's part of a chunk between nodes, and what earlier sums of it have left over."""
        if coding is None or sums is None:
            return None, None
        return self._rings.of(coding), coding.residual(chunk, sums.size)

    def _reduce(
        self,
        chunk: _Chunk,
        parts: Sequence[np.ndarray],
        arrays: Weighted,
        total: np.ndarray,
        coding: CompressionState | None,
        others: int,
    ) -> None:
        """Add up this rank's slice of a chunk, one of several, and send it on its way to the other nodes."""
        here = chunk.slice
        if here is None:
            return
        total = total[here]
        short = self._lane is not None and wide(total.dtype) != total.dtype
        sums = np.empty(total.size, wide(total.dtype)) if short else total
        with trace.span("reduce"):
            if chunk.own is None:
                add_up([part[here] for part in parts], sums)
            for member, low, high, begin in chunk.own or ():
                piece = slice(begin, begin + high - low)
                given = [part[piece] for part in parts]
                given[self._node.rank] = arrays[member][low:high]
                result, factor = sums[begin - here.start : piece.stop - here.start], arrays.factors[member]
                if factor is None:
                    add_up(given, result)
                else:
                    add_up_weighted(given, self._node.rank, factor, result)
        if self._lane is not None:
            self._lane.finish(IN_FLIGHT - 1)
            put_back = (lambda: np.copyto(total, sums, casting="unsafe")) if short else None
            self._lane.start(sums, put_back, *self._coded(coding, chunk.low, sums), others)
