"""What one exchange moves: which tensors travel together, and where the results lie.

Tensors travel in flat buckets of one dtype, in the order in which backward makes them.

Backward goes through the layers from the last to the first, and optimizers list variables from the first to the last.
So the tensors are taken from the end, and the first bucket is complete while most of backward is still to come. The
order is a matter of speed alone: any other gives the same sums.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core.mismatch import checksum
from matex_tf.errors import MatexError
from matex_tf.exchange.network.compressed_ring import CompressionState
from matex_tf.exchange.node.reduction import SUMMED_AS

#: Tensors start at multiples of this in a bucket, in bytes: TensorFlow takes a result without a copy only there.
ALIGNMENT = 64
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel as one.

    Attributes:
        dtype: of all its tensors.
        members: positions of the tensors in the list that was packed.
        starts: where each tensor starts in the bucket, in elements.
        sizes: elements of each tensor.
        shapes: of the tensors.
        size: elements of the bucket, gaps between tensors included.
    """

    dtype: np.dtype
    members: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    size: int

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the bucket; a multiple of `ALIGNMENT`."""
        return self.size * self.dtype.itemsize

    def pieces(self, base: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """What of each tensor lies in elements `start` to `stop` of the bucket.

        Args:
            base: an element of the bucket, from which the last number of each piece counts.
            start, stop: elements of the bucket, gaps between tensors included.

        Yields:
            The tensor's place in `members`, first and last element of it, and where that starts after element `base`
            of the bucket.
        """
        for place, (begin, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            low, high = max(start, begin), min(stop, begin + size)
            if low < high:
                yield place, low - begin, high - begin, low - base


def pack(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype], limit: int) -> list[Bucket]:
    """Divide tensors among buckets.

    Args:
        shapes, dtypes: of the tensors, in the order of the optimizer's variables.
        limit: bytes of a bucket. A tensor as large as that has one of its own; small ones before and after it are
            together.

    Returns:
        The buckets, in the order in which they will be complete.
    """
    buckets: list[Bucket] = []
    open_buckets: dict[np.dtype, list[int]] = {}
    filled: dict[np.dtype, int] = {}

    def close(dtype: np.dtype) -> None:
        buckets.append(_layout(open_buckets.pop(dtype), shapes, dtype))
        del filled[dtype]

    for position in reversed(range(len(shapes))):
        dtype = np.dtype(dtypes[position])
        size = _padded(shapes[position], dtype) * dtype.itemsize
        if size >= limit:
            buckets.append(_layout([position], shapes, dtype))
            continue
        if filled.get(dtype, 0) + size > limit:
            close(dtype)
        open_buckets.setdefault(dtype, []).append(position)
        filled[dtype] = filled.get(dtype, 0) + size
    for dtype in list(open_buckets):
        close(dtype)
    return sorted(buckets, key=lambda bucket: -bucket.members[-1])


def _layout(members: Sequence[int], shapes: Sequence[tuple[int, ...]], dtype: np.dtype) -> Bucket:
    starts, sizes, place = [], [], 0
    for position in members:
        starts.append(place)
        sizes.append(math.prod(shapes[position]))
        place += _padded(shapes[position], dtype)
    members_shapes = tuple(tuple(shapes[position]) for position in members)
    return Bucket(dtype, tuple(members), tuple(starts), tuple(sizes), members_shapes, place)


def _padded(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Elements of a tensor, and of the gap after it."""
    step = max(1, ALIGNMENT // dtype.itemsize)
    return -(-math.prod(shape) // step) * step


def empty(size: int, dtype: np.dtype) -> np.ndarray:
    """A flat array that starts where TensorFlow takes it without a copy.

    Args:
        size: elements.
    """
    memory = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size * dtype.itemsize].view(dtype)


class EmptyArrays:
    """Such arrays, several at a time from one piece of memory where they are small: to make one takes longer than to
    add it up."""

    #: Bytes that are kept for as long as any array out of them is.
    PIECE = 1 << 16

    def __init__(self, size: int, dtype: np.dtype):
        """Args: size: elements of each array; a multiple of `ALIGNMENT` in bytes."""
        self._size, self._dtype = size, dtype
        self._count = max(1, self.PIECE // max(1, size * dtype.itemsize))
        self._left: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """Another one."""
        if not self._left:
            self._left = list(empty(self._count * self._size, self._dtype).reshape(self._count, self._size))
        return self._left.pop()


def slice_of(size: int, count: int, number: int, itemsize: int) -> slice:
    """One of `count` slices that start on whole cache lines.

    Args:
        size: elements of the whole.
        number: which slice, from 0.
        itemsize: bytes of an element.
    """
    step = max(1, ALIGNMENT // itemsize)
    lines = -(-size // step)
    return slice(min(size, number * lines // count * step), min(size, (number + 1) * lines // count * step))


class BucketPlan:
    """An exchange that is repeated: the same tensors, step after step.

    Attributes:
        what: the purpose, see `World.barrier`.
        described: each tensor's label, dtype and shape; what ranks must have in common.
        shapes: of the tensors.
        buckets: see `bucket.pack`; offsets: where each starts in the result, in bytes; nbytes: all together.
        codings: for each bucket, how it is encoded between nodes; None where it is not.
    """

    def __init__(
        self,
        what: str,
        labels: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[np.dtype],
        limit: int,
        codec: str = "none",
        feedback: bool = False,
    ):
        """Args: limit: bytes of a bucket. codec, feedback: for buckets of floats, between nodes (`compressed_ring`)."""
        self.what = what
        self.what_sum = checksum(what)
        self.shapes = [tuple(shape) for shape in shapes]
        self.described = [
            f"{label} {np.dtype(dtype).name} {shape}"
            for label, dtype, shape in zip(labels, dtypes, self.shapes, strict=True)
        ]
        self._joined = "\0".join(self.described).encode()
        self._detail_sum = checksum(self._joined)
        self.buckets: list[Bucket] = pack(self.shapes, dtypes, limit)
        self.codings = [
            CompressionState(codec, feedback)
            if codec != "none" and SUMMED_AS[bucket.dtype.name].startswith("float")
            else None
            for bucket in self.buckets
        ]
        self.offsets = [0]
        for bucket in self.buckets:
            self.offsets.append(self.offsets[-1] + bucket.nbytes)
        self.nbytes = self.offsets.pop()
        self._parts = [
            [
                (start, start + size, self.shapes[member])
                for member, start, size in zip(bucket.members, bucket.starts, bucket.sizes, strict=True)
            ]
            for bucket in self.buckets
        ]
        self._titles = [
            f"bucket {number} of {what}: {self.described[bucket.members[0]]}"
            + (f" and {len(bucket.members) - 1} more" if len(bucket.members) > 1 else "")
            + f", {bucket.nbytes} bytes"
            for number, bucket in enumerate(self.buckets)
        ]
        self.root: np.ndarray | None = None  # memory of the results of the exchange that is going on
        self.chosen = False

    def title(self, number: int) -> str:
        """A bucket's name in the timeline."""
        return self._titles[number]

    def place(self, number: int) -> np.ndarray | None:
        """Shared memory for the result of a bucket; None where there is none."""
        if self.root is None:
            return None
        return self.root[self.offsets[number] : self.offsets[number] + self.buckets[number].nbytes]

    def results(self, number: int, total: np.ndarray) -> list[np.ndarray]:
        """The tensors of a bucket, as read-only views of its sums.

        Args:
            number: of the bucket.
            total: its sums, flat, as the bucket lays its tensors out. It becomes read-only.
        """
        total.setflags(write=False)
        if len(self._parts[number]) == 1:
            ((start, stop, shape),) = self._parts[number]
            return [total[start:stop].reshape(shape)]
        return [total[start:stop].reshape(shape) for start, stop, shape in self._parts[number]]

    @classmethod
    def of(
        cls, what: str, labels: Sequence[str], arrays: Sequence[Any], coded: bool = False, at_once: bool = False
    ) -> BucketPlan:
        """The plan for these arrays or TensorFlow tensors, with buckets as the settings say.

        Args:
            coded: whether they may be encoded, where the settings have a codec: gradients, and nothing else.
            at_once: whether all of them are there at the same time, and so in one bucket of each dtype: where a bucket
                ends, the wire is idle until the next has begun.
        """
        chosen = settings.current()
        limit = sys.maxsize if at_once else chosen.bucket_mb * MEGABYTE
        coding = (chosen.codec, chosen.error_feedback) if coded else ()
        dtypes = [np.dtype(getattr(array.dtype, "as_numpy_dtype", array.dtype)) for array in arrays]
        return cls(what, labels, [tuple(map(int, array.shape)) for array in arrays], dtypes, limit, *coding)

    def detail_sum(self, expected: Sequence[str]) -> int:
        """The checksum of what ranks must have in common, after what the world expects already."""
        if not expected:
            return self._detail_sum
        return checksum(self._joined, checksum("\0".join(expected) + "\0"))


def check_dtypes(dtypes: Sequence[str], labels: Sequence[str]) -> None:
    """Raise MatexError, naming the tensor, for a dtype that ranks cannot add up.

    Args:
        dtypes: by name, one of each tensor.
        labels: what messages call the tensors.
    """
    for dtype, label in zip(dtypes, labels, strict=True):
        if dtype not in SUMMED_AS:
            raise MatexError(
                f"{label} is {dtype}, which cannot be summed over ranks; it can be {', '.join(sorted(SUMMED_AS))}."
            )
