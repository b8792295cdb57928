"""Exchanges that go on while later steps compute: one thread, with a process group of its own.

Nothing in this thread meets the ranks elsewhere than in its own group: the others' threads may be anywhere. So what
ranks have to find out together, where they differ, is left to those that wait for a sum.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from matex_tf.core.mismatch import fingerprint
from matex_tf.core.world import World
from matex_tf.errors import MatexError
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.process_group import ProcessGroup

_SETTLE = "end what is under way"


class PendingAllreduce:
    """What will come of one exchange; a list of arrays in the order of the tensors, the same bits on every rank."""

    def __init__(self, what: str, details: Sequence[str]):
        self._what, self._details = what, details
        self.future: Future[list[np.ndarray] | None] = Future()

    def get(self, world: World) -> list[np.ndarray]:
        """Wait for the sums. Collective: every rank takes the same ones, in the same order.

        Raises:
            RanksDisagree: on every rank: they were not about to do the same.
        """
        sums = self.future.result()
        if sums is None:
            world.barrier(self._what, self._details)  # others may be anywhere, and find out where they next meet
            raise world.disagreement(self._what, self._details) or MatexError(f"an exchange was lost: {self._what}.")
        return sums


class AsyncAllreducer:
    """The thread and its process group. Every rank posts the same plans in the same order."""

    def __init__(self, world: World):
        """Collective over the world, which has more than one rank."""
        self._group = ProcessGroup(world)
        self._tasks: queue.SimpleQueue[tuple[PendingAllreduce, Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name="matex_tf background", daemon=True).start()
        self.stop = weakref.finalize(self, self._tasks.put, None)

    def post(self, world: World, plan: BucketPlan, arrays: Sequence[np.ndarray]) -> PendingAllreduce:
        """Begin to sum the arrays of a plan, after what was posted before; does not wait for the sums.

        The ranks meet first, as they do for all else: if only their threads met, a rank that went another way would
        wait for the others in one place, and they for it in the other.

        Args:
            arrays: they must not change until the sums are there.

        Raises:
            RanksDisagree: on every rank, where one is about to do something else.
        """
        expected = tuple(world.step_signature)
        world.barrier(f"{plan.what}, in the background")
        sums = PendingAllreduce(plan.what, (*expected, *plan.described))
        given = [arrays]  # a list, so that the tensors are let go when they have been summed

        def work() -> list[np.ndarray] | None:
            return self._group.sum_whole(plan, given.pop(), expected)

        self._tasks.put((sums, work))
        return sums

    def flush(self, world: World) -> None:
        """Wait until all that was posted has been summed, on every rank.

        Raises:
            RanksDisagree: a rank has posted more than another one.
        """
        world.barrier(_SETTLE)
        sums = PendingAllreduce(_SETTLE, ())

        def work() -> list[np.ndarray] | None:
            return [] if self._group.checked_barrier(*fingerprint(_SETTLE, ())) else None

        self._tasks.put((sums, work))
        sums.get(world)

    def revoke(self) -> None:
        """Let no rank of this node wait any longer."""
        self._group.revoke()

    def close(self) -> None:
        """End the thread and give communicators back. Collective over the world; nothing is under way."""
        self.stop()
        self._group.close()


def of(world: World, plan: BucketPlan) -> AsyncAllreducer:
    """The background of a world; made at the first call, once the ranks have found that they all mean to exchange.

    Args:
        plan: what is to be exchanged, for the comparison of ranks.

    Raises:
        RanksDisagree: on every rank.
    """
    main = process_group.of(world, plan)
    if main.background is None:
        world.barrier(f"{plan.what}, in the background", plan.described)
        main.background = AsyncAllreducer(world)
    return main.background


def _work(tasks: queue.SimpleQueue[tuple[PendingAllreduce, Callable[[], Any]] | None]) -> None:
    failed: Exception | None = None
    parted = False  # ranks have gone different ways: nobody may wait for another one here any more
    while (task := tasks.get()) is not None:
        sums, work = task
        result = None
        if failed is None and not parted:
            try:
                result = work()
                parted = result is None
            except Exception as error:
                failed = error
        if failed is None:
            sums.future.set_result(result)
        else:
            sums.future.set_exception(MatexError(f"an exchange in the background failed: {failed}"))
        del task, sums, work, result  # or the last sums are held until the next
