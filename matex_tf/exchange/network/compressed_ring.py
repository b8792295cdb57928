"""The ring of `algorithms`, with a codec on every hop (Pipe-SGD, arXiv 1811.03619): decode, add, encode, pass on.

A slice is encoded once by each rank on its way round, and once more when its sum is whole; what is passed on then are
those bytes, and the rank that made them decodes them too. So all ranks end with the same bits.
"""

from __future__ import annotations

import numpy as np

from matex_tf.exchange.network.algorithms import Peers, Steps
from matex_tf.exchange.network.codec import Codec, create


class CompressionState:
    """How one bucket, which is summed again and again, is encoded between nodes.

    Attributes:
        codec: by name.
        residuals: with error feedback, what is left over of this rank's part of a chunk, by the chunk's first element;
            float32. None without.
    """

    def __init__(self, codec: str, feedback: bool):
        self.codec = codec
        self.residuals: dict[int, np.ndarray] | None = {} if feedback else None

    def residual(self, chunk: int, size: int) -> np.ndarray | None:
        """What is left over of a chunk, zeros at first.

        Args:
            chunk: the first element of the chunk in the bucket.
            size: elements of this rank's part of it.
        """
        if self.residuals is None:
            return None
        if chunk not in self.residuals:
            self.residuals[chunk] = np.zeros(size, np.float32)
        return self.residuals[chunk]


class CompressedRings:
    """The rings of one channel, one for each codec, made when it is first needed."""

    def __init__(self) -> None:
        self._rings: dict[str, CompressedRing] = {}

    def of(self, coding: CompressionState) -> CompressedRing:
        """The ring for this coding."""
        if coding.codec not in self._rings:
            self._rings[coding.codec] = CompressedRing(create(coding.codec))
        return self._rings[coding.codec]


class CompressedRing:
    """Sums over a lane, encoded; called as the algorithms of `algorithms` are.

    Args:
        codec: one that nobody else uses while this one works.
    """

    def __init__(self, codec: Codec):
        self.codec = codec
        self._free: list[np.ndarray] = []  # buffers that no transfer uses: several may be under way

    def nbytes(self, count: int) -> int:
        """Bytes of so many numbers as encoded."""
        return self.codec.nbytes(count)

    def __call__(self, lane: Peers, data: np.ndarray, tag: int, residual: np.ndarray | None = None) -> Steps:
        """Sum a flat array of floats over the lane, in place. 2 (n-1)/n of its bytes as encoded, 2 (n-1) messages in
        a row.

        Args:
            lane: whose ranks call this with arrays of the same size and dtype.
            data: summed in place, the same bits on every rank.
            tag: of the messages.
            residual: for error feedback, see `Codec.encode`; float32, of the size of `data`, kept by the caller between
                the sums of the same tensors. Each of its numbers is used once a sum: by each rank for what it passes
                on, and by one rank for the sum itself.
        """
        codec, size, rank = self.codec, lane.size, lane.rank
        slices = np.array_split(data, size)
        left_over = np.array_split(residual, size) if residual is not None else [None] * size
        lengths = [codec.nbytes(part.size) for part in slices]
        right, left = (rank + 1) % size, (rank - 1) % size
        outgoing, incoming = self._take(lengths[0]), self._take(lengths[0])  # the first slice is the longest
        for step in range(size - 1):
            mine, theirs = (rank - step) % size, (rank - step - 1) % size
            sent, received = outgoing[: lengths[mine]], incoming[: lengths[theirs]]
            codec.encode(slices[mine], sent, left_over[mine])
            yield [*lane.receive(received, left, tag), *lane.send(sent, right, tag)]
            codec.add(received, slices[theirs])
        whole = (rank + 1) % size
        codec.encode(slices[whole], outgoing[: lengths[whole]], left_over[whole])
        codec.decode(outgoing[: lengths[whole]], slices[whole])
        for step in range(size - 1):
            mine, theirs = (rank + 1 - step) % size, (rank - step) % size
            sent, received = outgoing[: lengths[mine]], incoming[: lengths[theirs]]
            yield [*lane.receive(received, left, tag), *lane.send(sent, right, tag)]
            codec.decode(received, slices[theirs])
            outgoing, incoming = incoming, outgoing
        self._free += [outgoing, incoming]

    def _take(self, nbytes: int) -> np.ndarray:
        """A buffer of at least so many bytes, if possible one that was used before."""
        for place, buffer in enumerate(self._free):
            if buffer.size >= nbytes:
                return self._free.pop(place)
        if self._free:
            self._free.pop()  # too small now; so there are never more than were in use at one time
        return np.empty(nbytes, np.uint8)
