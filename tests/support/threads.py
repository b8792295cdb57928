"""Ranks as threads of one process: for tests that open hundreds of files, too many for ranks of MPI."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any


class ThreadWorld:
    """What readers use of `World`, among threads."""

    def __init__(self, rank: int, size: int, shared: dict[str, Any]):
        self.rank, self.size, self.hosts = rank, size, ["here"] * size
        self._shared = shared

    @property
    def is_single(self) -> bool:
        return self.size == 1

    def allgather(self, value: Any, what: str) -> list[Any]:
        self._shared["values"][self.rank] = (what, pickle.dumps(value))  # as MPI has it: nothing is shared
        self._shared["barrier"].wait(20)
        values = list(self._shared["values"])
        self._shared["barrier"].wait(20)
        assert {purpose for purpose, _ in values} == {what}, values
        return [pickle.loads(value) for _, value in values]

    def broadcast(self, value: Any, what: str, root: int = 0) -> Any:
        return self.allgather(value, what)[root]

    def scatter(self, values: Any, what: str, root: int = 0) -> Any:
        return self.allgather(values, what)[root][self.rank]


def on_threads(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """What the function returns, or the exception that it raises, on each of `size` ranks."""
    shared = {"values": [None] * size, "barrier": threading.Barrier(size)}
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadWorld(rank, size, shared))
        except threading.BrokenBarrierError as error:
            results[rank] = error
        except Exception as error:
            results[rank] = error
            shared["barrier"].abort() if type(error).__name__ != "DataError" else None

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results
