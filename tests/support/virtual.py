"""Virtual ranks: a transport of p ranks in one process, without MPI, for the algorithms of `matex_tf.exchange`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.core.transport.communicator import Request
from matex_tf.core.transport.messages import MessageCommunicator
from matex_tf.exchange.network.algorithms import Steps
from matex_tf.exchange.network.codec import Codec
from matex_tf.exchange.network.lane import Lane
from matex_tf.exchange.network.messenger import Messenger, Transfer
from matex_tf.exchange.node.interface import SharedMemory

#: Messages that were sent and have not been received, by context, sender, receiver and tag.
Queues = dict[tuple[Any, ...], deque[np.ndarray]]


class VirtualCommunicator(MessageCommunicator):
    """One rank of several that hand one another messages through queues; counts what it sends.

    A message is copied when it is sent, and delivered when the receiver asks whether it has come.

    Attributes:
        messages, bytes: that were sent so far.
    """

    def __init__(self, rank: int, size: int, queues: Queues, context: tuple[Any, ...] = ()):
        """Args: queues: the same for all ranks. context: what tells communicators of the same ranks apart."""
        self.rank, self.size = rank, size
        self.messages = self.bytes = 0
        self._queues, self._context = queues, context

    def isend(self, data: np.ndarray, to: int, tag: int) -> Request:
        self.messages += 1
        self.bytes += data.nbytes
        self._queues.setdefault((self._context, self.rank, to, tag), deque()).append(data.copy())
        return _Sent()

    def irecv(self, data: np.ndarray, source: int, tag: int) -> Request:
        return _Receiving(data, self._queues, (self._context, source, self.rank, tag))

    def among(self, ranks: Sequence[int], number: int) -> VirtualCommunicator:
        context = (*self._context, number, tuple(ranks))
        return VirtualCommunicator(ranks.index(self.rank), len(ranks), self._queues, context)

    def abort(self, code: int) -> None:
        raise AssertionError(f"a virtual rank has ended with {code}")


class _Sent:
    def test(self) -> bool:
        return True


class _Receiving:
    def __init__(self, data: np.ndarray, queues: Queues, key: tuple[Any, ...]):
        self._data, self._queues, self._key = data, queues, key
        self._came = False

    def test(self) -> bool:
        queue = self._queues.get(self._key)
        if not self._came and queue:
            message = queue.popleft()
            assert message.size == self._data.nbytes
            self._data[:] = message
            self._came = True
        return self._came


def run(
    algorithm: Callable[..., Any], arrays: Sequence[np.ndarray], **by_rank: Sequence[Any]
) -> list[VirtualCommunicator]:
    """Run an algorithm on a rank for each array, in place; ranks take turns in an order that changes all the time.

    Args:
        algorithm: a generator function of lane, data and tag, as in `matex_tf.exchange.network.algorithms`.
        arrays: each rank's.
        by_rank: further arguments, one for each rank.
    """
    queues: Queues = {}
    ranks = [VirtualCommunicator(rank, len(arrays), queues) for rank in range(len(arrays))]
    given = [{name: values[rank] for name, values in by_rank.items()} for rank in range(len(arrays))]
    under_way = {rank: algorithm(Lane(ranks[rank]), array, 7, **given[rank]) for rank, array in enumerate(arrays)}
    waiting: dict[int, Sequence[Request]] = {rank: [] for rank in under_way}
    random, moved = np.random.default_rng(0), True
    while under_way:
        assert moved, f"ranks {sorted(under_way)} wait for one another"
        moved = False
        for rank in random.permutation(list(under_way)):
            if all([request.test() for request in waiting[rank]]):
                moved = True
                try:
                    waiting[rank] = next(under_way[rank])
                except StopIteration:
                    del under_way[rank]
    assert not any(queues.values()), "messages that nobody received"
    return ranks


def coded_allreduce(
    arrays: Sequence[np.ndarray], codec: Codec, residuals: Sequence[np.ndarray] | None = None
) -> np.ndarray:
    """What a coded ring gives on every rank, by its definition: slice s goes round from rank s, each rank adds its own.

    Args:
        arrays: each rank's; left as they are.
        codec: what is between two ranks.
        residuals: each rank's, changed.
    """
    size = len(arrays)
    slices = [np.array_split(array, size) for array in arrays]
    left_over = [np.array_split(array, size) if residuals else [None] * size for array in residuals or arrays]
    total = np.empty_like(arrays[0])

    def over_the_wire(values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        wire, said = np.empty(codec.nbytes(values.size), np.uint8), np.empty_like(values)
        codec.encode(values, wire, residual)
        codec.decode(wire, said)
        return said

    for number, result in enumerate(np.array_split(total, size)):
        sum_so_far = slices[number][number]
        for hop in range(1, size):
            sender, here = (number + hop - 1) % size, (number + hop) % size
            with np.errstate(all="ignore"):
                sum_so_far = slices[here][number] + over_the_wire(sum_so_far, left_over[sender][number])
        result[:] = over_the_wire(sum_so_far, left_over[(number - 1) % size][number])
    return total


class VirtualMessenger(Messenger):
    """A `Messenger` for one of several ranks in one process, without a thread.

    All ranks post before one of them waits; waiting moves everybody's transfers on.
    """

    def __init__(self, rank: int, size: int, shared: dict[Any, Any]):
        """Args: shared: empty, and the same for all ranks."""
        self.comm = VirtualCommunicator(rank, size, shared.setdefault("queues", {}))
        self.lane = Lane(self.comm)
        self._under_way = shared.setdefault("under way", [])
        self._random = shared.setdefault("random", np.random.default_rng(0))

    def post(self, steps: Steps) -> Transfer:
        transfer = _VirtualTransfer(self, steps)
        self._under_way.append(transfer)
        return transfer


class _VirtualTransfer(Transfer):
    def __init__(self, messenger: VirtualMessenger, steps: Steps):
        self._messenger, self._steps, self.over = messenger, steps, False
        self._messages: Sequence[Request] = []

    def wait(self, look: Callable[[float], None]) -> None:
        under_way = self._messenger._under_way
        while not self.over:
            order = self._messenger._random.permutation(len(under_way))
            moved = [under_way[place]._move() for place in order]
            assert any(moved), "ranks wait for one another"
            under_way[:] = [transfer for transfer in under_way if not transfer.over]

    def _move(self) -> bool:
        if not all([message.test() for message in self._messages]):
            return False
        try:
            self._messages = next(self._steps)
        except StopIteration:
            self.over = True
        return True


class VirtualNode:
    """A `Node` whose ranks are threads of this process: what they share is memory of the process."""

    ranks: Sequence[int]
    host = "virtual"

    def __init__(self, rank: int, size: int, shared: dict[Any, Any]):
        """Args: shared: empty, and the same for all ranks."""
        self.rank, self.size, self.ranks = rank, size, range(size)
        self._shared, self._made = shared, 0

    def segment(self, size: int) -> SharedMemory:
        self._made += 1
        return self._shared.setdefault(self._made, _VirtualSegment(size))  # one step: the first of the threads makes it

    def still_there(self, rank: int) -> None:
        pass

    def kill(self, rank: int) -> None:
        raise AssertionError(f"rank {rank} is a thread of this process")

    def close(self) -> None:
        pass


class _VirtualSegment:
    def __init__(self, size: int):
        self.size = size
        self._memory = np.zeros(size, np.uint8)
        self.address = self._memory.ctypes.data

    def words(self) -> memoryview:
        return memoryview(self._memory).cast("I")

    def bytes(self) -> np.ndarray:
        return self._memory[:]
