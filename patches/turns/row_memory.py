"""Memory of a node in which a rank leaves a batch, and from which the other ranks of the node copy their rows.

A rank has room for one batch. It may leave the next one when every other rank of the node has taken its rows: whoever
uses this has to know that.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

import numpy as np

from matex_tf.core import world
from matex_tf.exchange.node import shared_memory
from matex_tf.exchange.node.shared_memory import NodeMemory, OutOfSharedMemory

_ALIGNED = 64
#: The part of what is free that batches may take at most: the exchange of gradients needs room as well.
_PART = 8


class Left(NamedTuple):
    """Where a batch lies.

    Attributes:
        places: of each array: the offset of its first byte, its dtype and its shape.
        total: rows of the batch.
    """

    places: list[tuple[int, str, tuple[int, ...]]]
    total: int


class RowMemory:
    """The memory, mapped by the ranks of a node.

    Attributes:
        ranks: those that share it, this one among them; none where there is no room, or only one rank on the node.
    """

    def __init__(self, nbytes: int):
        """Collective over all ranks. Args: nbytes: of this rank's largest batch, as far as it is known."""
        ranks = world.current()
        self._node = NodeMemory(ranks)
        self._places = {rank: place for place, rank in enumerate(self._node.ranks)}
        everyone = ranks.allgather((nbytes, _free()), "make room for batches")
        here = [everyone[rank] for rank in self._node.ranks]
        # A batch has as many arrays as it likes, each from an aligned place on.
        self._room = (max(most for most, _ in here) // _ALIGNED + 1) * _ALIGNED + 4096
        self._bytes: np.ndarray | None = None
        needed = self._room * len(here)
        if len(here) > 1 and needed <= min(free for _, free in here) // _PART:
            with contextlib.suppress(OutOfSharedMemory):  # on every rank of the node: rows travel as messages there
                self._bytes = self._node.segment(needed).bytes()
        self.ranks = [] if self._bytes is None else list(self._node.ranks)

    def leave(self, batch: list[np.ndarray], total: int) -> Left | None:
        """Leave a batch for the others; None where it does not fit, or holds words.

        Args:
            batch: arrays. total: its rows.
        """
        room = self._of(world.current().rank)
        if room is None or any(array.dtype.hasobject for array in batch):
            return None
        places, offset = [], 0
        for array in batch:
            end = offset + array.nbytes
            if end > self._room:
                return None
            places.append((offset, array.dtype.str, array.shape))
            offset = -(-end // _ALIGNED) * _ALIGNED
        for array, place in zip(batch, places, strict=True):
            np.copyto(_view(room, place), array)
        return Left(places, total)

    def take(self, owner: int, left: Left, rows: slice) -> list[np.ndarray]:
        """Copy rows of a batch; parts of it that have no rows are copied whole.

        Args:
            owner: the rank that has left it. left: where it lies. rows: which are copied.
        """
        room = self._of(owner)
        assert room is not None
        views = [_view(room, place) for place in left.places]
        return [_copied(view[rows] if view.ndim and len(view) == left.total else view) for view in views]

    def close(self) -> None:
        """Give the memory back. Collective over the ranks of the node."""
        self._bytes = None
        self._node.close()

    def _of(self, rank: int) -> np.ndarray | None:
        if self._bytes is None:
            return None
        begin = self._places[rank] * self._room
        return self._bytes[begin : begin + self._room]


def _view(room: np.ndarray, place: tuple[int, str, tuple[int, ...]]) -> np.ndarray:
    offset, dtype, shape = place
    count = int(np.prod(shape, dtype=np.int64))
    return room[offset : offset + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def _copied(view: np.ndarray) -> np.ndarray:
    """A copy that begins where TensorFlow takes an array as it is; of another one it makes one copy more."""
    room = np.empty(view.nbytes + _ALIGNED, np.uint8)
    begin = -room.ctypes.data % _ALIGNED
    copy = room[begin : begin + view.nbytes].view(view.dtype).reshape(view.shape)
    np.copyto(copy, view)
    return copy


def _free() -> int:
    try:
        found = os.statvfs(shared_memory.DIRECTORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
