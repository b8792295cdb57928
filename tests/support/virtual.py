"""Virtual ranks: the algorithms of `matex_tf.exchange` on p ranks in one process, without MPI."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.exchange.network.codec import Codec


class VirtualLane:
    """One rank of several that hand one another messages through queues; counts what it sends.

    A message is copied when it is sent, and delivered when the receiver asks whether it has come.
    """

    def __init__(self, rank: int, size: int, queues: dict[tuple[int, int, int], deque[np.ndarray]]):
        self.rank, self.size = rank, size
        self.messages = self.bytes = 0
        self._queues = queues

    def send(self, data: np.ndarray, to: int, tag: int) -> list[Callable[[], bool]]:
        self.messages += 1
        self.bytes += data.nbytes
        self._queues.setdefault((self.rank, to, tag), deque()).append(data.view(np.uint8).copy())
        return [lambda: True]

    def receive(self, data: np.ndarray, source: int, tag: int) -> list[Callable[[], bool]]:
        came = False

        def test() -> bool:
            nonlocal came
            queue = self._queues.get((source, self.rank, tag))
            if not came and queue:
                message = queue.popleft()
                assert message.size == data.nbytes
                data.view(np.uint8)[:] = message
                came = True
            return came

        return [test]


def run(algorithm: Callable[..., Any], arrays: Sequence[np.ndarray], **by_rank: Sequence[Any]) -> list[VirtualLane]:
    """Run an algorithm on a rank for each array, in place; ranks take turns in an order that changes all the time.

    Args:
        algorithm: a generator function of lane, data and tag, as in `matex_tf.exchange.network.transport`.
        arrays: each rank's.
        by_rank: further arguments, one for each rank.
    """
    queues: dict[tuple[int, int, int], deque[np.ndarray]] = {}
    lanes = [VirtualLane(rank, len(arrays), queues) for rank in range(len(arrays))]
    given = [{name: values[rank] for name, values in by_rank.items()} for rank in range(len(arrays))]
    under_way = {rank: algorithm(lanes[rank], array, 7, **given[rank]) for rank, array in enumerate(arrays)}
    waiting: dict[int, list[Callable[[], bool]]] = {rank: [] for rank in under_way}
    random, moved = np.random.default_rng(0), True
    while under_way:
        assert moved, f"ranks {sorted(under_way)} wait for one another"
        moved = False
        for rank in random.permutation(list(under_way)):
            if all([test() for test in waiting[rank]]):
                moved = True
                try:
                    waiting[rank] = next(under_way[rank])
                except StopIteration:
                    del under_way[rank]
    assert not any(queues.values()), "messages that nobody received"
    return lanes


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


class VirtualMail:
    """What `matex_tf.exchange.network.messenger.Messenger` is for one of several ranks in one process.

    All ranks post before one of them waits; waiting moves everybody's transfers on.
    """

    def __init__(self, rank: int, size: int, office: dict[Any, Any]):
        """Args: office: empty, and the same for all ranks."""
        self.lane = VirtualLane(rank, size, office.setdefault("queues", {}))
        self._under_way = office.setdefault("under way", [])
        self._random = office.setdefault("random", np.random.default_rng(0))

    def post(self, steps: Any) -> VirtualMail.Letter:
        letter = VirtualMail.Letter(self, steps)
        self._under_way.append(letter)
        return letter

    class Letter:
        def __init__(self, mail: VirtualMail, steps: Any):
            self._mail, self._steps, self._messages, self.over = mail, steps, [], False

        def wait(self, look: Any) -> None:
            under_way = self._mail._under_way
            while not self.over:
                order = self._mail._random.permutation(len(under_way))
                moved = [under_way[place]._move() for place in order]
                assert any(moved), "ranks wait for one another"
                under_way[:] = [letter for letter in under_way if not letter.over]

        def _move(self) -> bool:
            if not all([test() for test in self._messages]):
                return False
            try:
                self._messages = next(self._steps)
            except StopIteration:
                self.over = True
            return True
