"""All collectives, for a transport that can only send and receive.

Each rank sends to each other one: simple, and good for few ranks. A transport that knows better ways overrides them.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.core.transport.communicator import (
    LARGEST_TAG,
    Communicator,
    Operation,
    Request,
    messages_of,
    wait,
    wait_all,
)

_TAG = LARGEST_TAG  # of all collectives: they come in the same order on every rank


class MessageCommunicator(Communicator):
    """A communicator made of `isend`, `irecv`, `among` and `abort`."""

    _splits = 0
    _free = False

    @abstractmethod
    def among(self, ranks: Sequence[int], number: int) -> Communicator:
        """A communicator of some of these ranks, this one among them. Called by each of them.

        Args:
            ranks: in their order in it.
            number: the same on all of these ranks, and another one for each communicator that is made of this one and
                has a rank in common with it: the messages of two communicators are not mixed up.
        """

    def ibarrier(self) -> Request:
        return self.iallreduce(np.zeros(1, np.uint8), np.empty(1, np.uint8))

    def iallreduce(self, array: np.ndarray, total: np.ndarray, op: Operation = "sum") -> Request:
        parts = np.empty((self.size, *array.shape), array.dtype)
        begun = self._swap([array] * self.size, list(parts.reshape(self.size, -1)))
        reduce = np.add if op == "sum" else np.maximum
        return _Then(begun, lambda: np.copyto(total, reduce.reduce(parts, axis=0, dtype=array.dtype)))

    def allreduce(self, array: np.ndarray, total: np.ndarray) -> None:
        wait(self.iallreduce(array, total))

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self.alltoall([value if self.rank == root else None] * self.size)[root]

    def bcast_array(self, array: np.ndarray, root: int = 0) -> None:
        nothing = array.reshape(-1)[:0]
        mine = [array if self.rank == root and rank != root else nothing for rank in range(self.size)]
        theirs = [array if rank == root and self.rank != root else nothing for rank in range(self.size)]
        wait_all(self._swap(mine, theirs))

    def allgather(self, value: Any) -> list[Any]:
        return self.alltoall([value] * self.size)

    def alltoall(self, values: Sequence[Any]) -> list[Any]:
        """Give `values[r]`, any picklable object, to rank r; what each rank has given to this one."""
        texts = [np.frombuffer(pickle.dumps(value), np.uint8) for value in values]
        lengths = np.empty(self.size, np.int64)
        wait_all(self._swap([np.array(text.size, np.int64) for text in texts], np.split(lengths, self.size)))
        theirs = [np.empty(length, np.uint8) for length in lengths]
        wait_all(self._swap(texts, theirs))
        return [pickle.loads(text.tobytes()) for text in theirs]

    def scatter(self, values: Sequence[Any] | None, root: int = 0) -> Any:
        return self.alltoall(values if values is not None and self.rank == root else [None] * self.size)[root]

    def allgather_rows(self, array: np.ndarray) -> tuple[np.ndarray, list[int]]:
        counts = self.allgather(len(array))
        return self._rows([array] * self.size, array, counts), counts

    def alltoall_rows(self, array: np.ndarray, splits: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        counts = self.alltoall(list(splits))
        return self._rows(np.split(array, np.cumsum(splits)[:-1]), array, counts), counts

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        self._splits += 1
        everyone = self.allgather((color, key))
        if color is None:
            return None
        return self.among(
            [rank for _, rank in sorted((key, rank) for rank, (its, key) in enumerate(everyone) if its == color)],
            self._splits,
        )

    def free(self) -> None:
        self._free = True

    @property
    def is_free(self) -> bool:
        return self._free

    def _rows(self, given: Sequence[np.ndarray], like: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        received = np.empty((sum(counts), *like.shape[1:]), like.dtype)
        wait_all(self._swap(given, np.split(received, np.cumsum(counts)[:-1])))
        return received

    def _swap(self, mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[Request]:
        """Begin to give `mine[r]` to rank r, and to receive `theirs[r]` from it, as many bytes; nothing of no bytes."""
        begun: list[Request] = []
        for rank in range(self.size):
            if rank == self.rank:
                np.copyto(_bytes(theirs[rank]), _bytes(mine[rank]))
            elif theirs[rank].nbytes:
                begun += [self.irecv(message, rank, _TAG) for message in messages_of(theirs[rank])]
        for rank in range(self.size):
            if rank != self.rank and mine[rank].nbytes:
                begun += [self.isend(message, rank, _TAG) for message in messages_of(mine[rank])]
        return begun


class _Then:
    """A request that is complete when others are, and something is done then."""

    def __init__(self, requests: Sequence[Request], then: Callable[[], object]):
        self._requests, self._then = list(requests), then
        self._over = False

    def test(self) -> bool:
        if not self._over and all(request.test() for request in self._requests):
            self._then()
            self._over = True
        return self._over


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
