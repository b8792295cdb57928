"""What the exchange needs of the ranks of a node: memory that they share. `shared_memory` has it in /dev/shm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class SharedMemory(Protocol):
    """A piece of memory that every rank of the node sees. It is kept until its last view is gone.

    Attributes:
        size: in bytes.
        address: where it lies in this process.
    """

    size: int
    address: int

    def words(self) -> memoryview:
        """The memory as 32-bit words."""

    def bytes(self) -> np.ndarray:
        """The memory as uint8; each call gives an array of its own, which lives as long as any view of it."""


class Node(Protocol):
    """The ranks of a world that share a node, as one of them sees it.

    Attributes:
        rank, size: this rank's place among them, and their number.
        ranks: their ranks in the world, in order.
        host: the name of the node.
    """

    rank: int
    size: int
    ranks: Sequence[int]
    host: str

    def segment(self, size: int) -> SharedMemory:
        """New shared memory of so many bytes, filled with zeros. Collective over the node.

        Raises:
            OutOfSharedMemory: on every rank of the node.
        """

    def still_there(self, rank: int) -> None:
        """Raise RankLost when a rank of the node has ended."""

    def kill(self, rank: int) -> None:
        """End a rank of the node that is stuck."""

    def close(self) -> None:
        """Give back what the ranks need to make memory; what was made stays good. Collective over the node."""
