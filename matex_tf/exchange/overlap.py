"""Exchanges in threads of their own, while the step computes (arXiv 1802.06949).

A step posts its buckets as their gradients are there, and collects the sums later. Posting never waits. Buckets of a
plan may be posted in any order, and in another order on another rank: each thread takes its own in a fixed order, and
waits for one that is not there yet. So no rank ever waits in one bucket for a rank that waits in another.

    funneled      one thread, one channel: 0 1 2 3 …
    concurrent    several threads, a channel (and a communicator) each: 0 2 4 … and 1 3 5 …
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from matex_tf.errors import MatexError
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.process_group import ProcessGroup

#: Threads of the schedule `concurrent`.
CONCURRENT = 2


class BucketQueue:
    """One exchange of a plan: what was posted, and what came of it."""

    def __init__(self, group: ProcessGroup, plan: BucketPlan):
        self.group, self.plan = group, plan
        count = len(plan.buckets)
        self.given: list[Sequence[np.ndarray] | None] = [None] * count
        self._posted = [threading.Event() for _ in range(count)]
        self._summed = [threading.Event() for _ in range(count)]
        self._sums: list[list[np.ndarray] | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()
        self.begun = threading.Event()
        self.error: Exception | None = None

    def posted(self, number: int) -> bool:
        """Whether a bucket has been posted."""
        return self._posted[number].is_set()

    @property
    def complete(self) -> bool:
        """Whether all sums are there, or an error."""
        return self._left == 0 or self.error is not None

    def post(self, number: int, arrays: Sequence[np.ndarray]) -> None:
        """Give a bucket's tensors; they must not change until its sums are there.

        Args:
            number: of the bucket.
            arrays: in the order of its members; may be `Weighted`.
        """
        self.given[number] = arrays
        self._posted[number].set()

    def collect(self, number: int) -> list[np.ndarray]:
        """Wait for a bucket's sums; they can be had once.

        Raises:
            MatexError: what the exchange raised.
        """
        self._summed[number].wait()
        sums, self._sums[number] = self._sums[number], None
        if sums is None:
            raise self.error or MatexError(f"the sums of bucket {number} of {self.plan.what!r} were collected before.")
        return sums

    def wait_for(self, number: int) -> Sequence[np.ndarray] | None:
        """A bucket's tensors, once they are posted; None where the job has failed."""
        self._posted[number].wait()
        arrays, self.given[number] = self.given[number], None
        return None if self.error else arrays

    def done(self, number: int, sums: list[np.ndarray]) -> None:
        """A bucket's sums are there.

        Args:
            number: of the bucket.
            sums: in the order of its members.
        """
        self._sums[number] = sums
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.plan.root = None
        self._summed[number].set()

    def fail(self, error: Exception) -> None:
        """Nothing comes of what is left of this job."""
        self.error = self.error or error
        for event in (*self._posted, *self._summed, self.begun):
            event.set()


class ExchangeThreads:
    """The threads that exchange for one process group."""

    def __init__(self, group: ProcessGroup, count: int):
        """Args: count: 1 for `funneled`, more for `concurrent`."""
        self._group = group
        self.count = count
        self._jobs: dict[int, BucketQueue] = {}  # by plan: the last one of each
        self._lock = threading.Lock()
        self._queues: list[queue.SimpleQueue[BucketQueue | None]] = [queue.SimpleQueue() for _ in range(count)]
        for number, jobs in enumerate(self._queues):
            threading.Thread(target=_work, args=(jobs, number, count), name=f"matex_tf {number}", daemon=True).start()
        self.stop = weakref.finalize(self, _stop, self._queues)

    def post(self, plan: BucketPlan, number: int, arrays: Sequence[np.ndarray]) -> None:
        """Give the tensors of one bucket; the first bucket of a plan that is posted begins its exchange.

        Plans begin in the same order on every rank.

        Args:
            plan: the same on every rank.
            number: of the bucket.
            arrays: in the order of its members; they must not change until `collect` has returned.
        """
        with self._lock:
            job = self._jobs.get(id(plan))
            if job is None or job.posted(number):
                if job is not None and not job.complete:  # the step was given up, and is run again
                    job.fail(MatexError(f"an exchange of {plan.what!r} was given up."))
                job = self._jobs[id(plan)] = BucketQueue(self._group, plan)
                weakref.finalize(plan, self._jobs.pop, id(plan), None)
                for jobs in self._queues:
                    jobs.put(job)
        job.post(number, arrays)

    def collect(self, plan: BucketPlan, number: int) -> list[np.ndarray]:
        """Wait for the sums of one bucket, which was posted before.

        Args:
            plan, number: as they were given to `post`.

        Raises:
            MatexError: what the exchange raised.
        """
        with self._lock:
            job = self._jobs[id(plan)]
        return job.collect(number)


def threads_of(group: ProcessGroup, count: int) -> ExchangeThreads:
    """The threads of a process group, started when they are first needed.

    Args:
        count: how many threads, if none has been started.
    """
    if group.threads is None or group.threads.count != count:
        if group.threads is not None:
            group.threads.stop()
        group.threads = ExchangeThreads(group, count)
    return group.threads


def _stop(queues: Sequence[queue.SimpleQueue[BucketQueue | None]]) -> None:
    for jobs in queues:
        jobs.put(None)


def _work(jobs: queue.SimpleQueue[BucketQueue | None], number: int, count: int) -> None:
    while (job := jobs.get()) is not None:
        group, plan = job.group, job.plan
        try:
            if count > 1 and number == 0:
                group.begin(plan)
                group.open_channels(count)
                job.begun.set()
            if count > 1:
                job.begun.wait()
            for bucket in range(number, len(plan.buckets), count):
                arrays = job.wait_for(bucket)
                if arrays is None:
                    break
                sums = group.sum_apart(number, plan, bucket, arrays) if count > 1 else group.sum(plan, bucket, arrays)
                job.done(bucket, sums)
                del arrays, sums
        except Exception as error:
            job.fail(error)
        del job, group, plan
