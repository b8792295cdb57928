"""Collectives on arrays of any numeric dtype, among ranks that have met: what the sums of the exchange do not cover.

Bytes travel, and each rank reduces what it receives by itself, in the order of ranks: so float16, bfloat16 and bool,
which a transport need not know, are as good as any, and every rank gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.core.transport.communicator import Communicator
from matex_tf.core.world import World
from matex_tf.errors import MatexError
from matex_tf.exchange.node.reduction import add_up

_ELEMENTWISE: dict[str, np.ufunc] = {"min": np.minimum, "max": np.maximum, "product": np.multiply}


class Collectives:
    """The collectives of a world, on a communicator of their own. A `World.barrier` must come before each call."""

    def __init__(self, world: World):
        """Collective over the world."""
        self._comm: Communicator | None = None if world.is_single else world.split_all()
        self._rank, self._size = world.rank, world.size

    def reduce(self, array: np.ndarray, how: str) -> np.ndarray:
        """Reduce arrays of one shape and dtype over all ranks; each gets the result.

        Args:
            how: "sum", "min", "max", "product" or "adasum".
        """
        return _reduced(self._parts(array), how).reshape(array.shape)

    def reduce_scatter(self, array: np.ndarray, how: str) -> np.ndarray:
        """Reduce arrays over all ranks; each gets its own rows of the result, the first ranks one more if need be.

        Args:
            array: (rows, …), of the same shape and dtype on every rank.
            how: see `reduce`.
        """
        rows = len(array)
        splits = [rows // self._size + (rank < rows % self._size) for rank in range(self._size)]
        mine, _ = self.alltoall(array, splits)
        own = (splits[self._rank], *array.shape[1:])
        return _reduced(mine.reshape(self._size, -1), how).reshape(own)

    def allgather(self, array: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Arrays joined along the first axis, in the order of ranks; and the rows that each rank gave, 0 or more."""
        if self._comm is None:
            return array, [len(array)]
        return self._comm.allgather_rows(np.ascontiguousarray(array))

    def alltoall(self, array: np.ndarray, splits: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Each rank gives `splits[r]` of its rows to rank r; what it receives, and the rows from each rank.

        Args:
            array: (rows, …), of the same dtype and shape of rows on every rank.
            splits: one number of rows for each rank, 0 or more; their sum is `len(array)`.
        """
        if self._comm is None:
            return array, list(splits)
        return self._comm.alltoall_rows(np.ascontiguousarray(array), splits)

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """`root`'s array, of the same shape and dtype on every rank.

        Args:
            array: it is not changed: the result is another array.
            root: a rank of the world.
        """
        if self._comm is None:
            return array
        result = np.array(array, order="C")
        self._comm.bcast_array(result, root)
        return result

    def broadcast_object(self, value: Any, root: int) -> Any:
        """`root`'s value, any picklable object.

        Args:
            value: on other ranks than `root` it is not looked at.
            root: a rank of the world.
        """
        return value if self._comm is None else self._comm.bcast(value, root)

    def allgather_object(self, value: Any) -> list[Any]:
        """Every rank's value, any picklable object."""
        return [value] if self._comm is None else self._comm.allgather(value)

    def _parts(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, flat: (ranks, elements)."""
        joined, _ = self.allgather(np.ascontiguousarray(array).reshape(1, -1))
        return joined

    def free(self) -> None:
        """Give the communicator back. Collective over the world."""
        if self._comm is not None:
            self._comm.free()
            self._comm = None


def _reduced(parts: np.ndarray, how: str) -> np.ndarray:
    """Reduce over the first axis of (ranks, elements)."""
    if how == "sum":
        total = np.empty(parts.shape[1], parts.dtype)
        add_up(list(parts), total)
        return total
    if how == "adasum":
        return adasum(parts)
    with np.errstate(all="ignore"):
        return _ELEMENTWISE[how].reduce(parts, axis=0, dtype=parts.dtype)


def adasum(parts: np.ndarray) -> np.ndarray:
    """Adasum of gradients (arXiv 2006.02924, section 3): pairs of ranks, then pairs of pairs.

    Of two gradients a and b it is (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b: their sum where they are orthogonal, their
    mean where they are parallel.

    Args:
        parts: (ranks, elements), of a floating dtype; the number of ranks is a power of 2.
    """
    count = len(parts)
    if count & (count - 1):
        raise MatexError(f"Adasum needs a number of ranks that is a power of 2, and there are {count}.")
    rows = [part.astype(np.float64) for part in parts]
    while len(rows) > 1:
        rows = [_adasum_of_two(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]
    return rows[0].astype(parts.dtype)


def _adasum_of_two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, a_norm, b_norm = float(a @ b), float(a @ a), float(b @ b)
    a_part = 1 - dot / (2 * a_norm) if a_norm else 1.0
    b_part = 1 - dot / (2 * b_norm) if b_norm else 1.0
    return a_part * a + b_part * b
