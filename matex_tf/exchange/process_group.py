"""The ranks of a world as they exchange: their channels, and the memory in which results lie.

Results are handed out as views of shared memory. TensorFlow keeps such a view for as long as it needs the tensor, which
is usually until the optimizer has applied it, but a script may keep a gradient for ever, and a variable may even take
it over as its value. So results lie in one of up to three generations, and before each exchange every rank says which
of them it still has a view of. A generation that no rank holds is taken; where there is none, the ranks copy.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from matex_tf import settings
from matex_tf.core import trace
from matex_tf.core.waiting import StallDetector
from matex_tf.core.world import World
from matex_tf.errors import MatexError
from matex_tf.exchange.allreduce import Channel
from matex_tf.exchange.bucket import ALIGNMENT, BucketPlan
from matex_tf.exchange.network.lane import Lane
from matex_tf.exchange.node import futex
from matex_tf.exchange.node.barrier import Meeting
from matex_tf.exchange.node.interface import Node, SharedMemory
from matex_tf.exchange.node.reduction import some
from matex_tf.exchange.node.shared_memory import NodeMemory, OutOfSharedMemory

if TYPE_CHECKING:  # both are made of a process group
    from matex_tf.exchange.async_allreduce import AsyncAllreducer
    from matex_tf.exchange.overlap import ExchangeThreads

GENERATIONS = 3
#: Bytes of the chunks of all ranks of a node, two each: what stays in the last level of a processor's cache.
CHUNKS = 1 << 24
#: Bytes of all parts of a small bucket together, see `Channel`; more than that is added up in shares. Where ranks share
#: cores a second wait takes longer than adding, for a rank that has come must get a core again.
SMALL, SMALL_ON_SHARED_CORES = 1 << 19, 1 << 20
SMALLEST_CHUNK, LARGEST_CHUNK = 1 << 16, 1 << 22


class _Generation:
    """Shared memory for the results of one exchange."""

    def __init__(self) -> None:
        self.segment: SharedMemory | None = None
        self.lease: weakref.ref[np.ndarray] | None = None

    @property
    def held(self) -> bool:
        """Whether something in this process still uses its results."""
        return self.lease is not None and self.lease() is not None


class ProcessGroup:
    """What a world needs to exchange; made at its first exchange, and closed with it.

    Attributes:
        threads: see `matex_tf.exchange.overlap`; None until they are needed.
        background: see `matex_tf.exchange.async_allreduce`; the same.
    """

    def __init__(self, world: World):
        """Collective over the world.

        Args:
            world: more than one rank.

        Raises:
            OutOfSharedMemory: on every rank, if a node has next to no shared memory.
        """
        self._world: World = weakref.proxy(world)
        self._node: Node = NodeMemory(world)
        sizes = [len(ranks) for ranks in world.nodes]
        self._lanes = min(sizes)
        self._networked = len(sizes) > 1
        oversubscribed = futex.oversubscribed(self._node.size)
        self._lock = threading.RLock()
        self._generations = [_Generation() for _ in range(GENERATIONS)]
        self._turn = 0
        self._roomless = False
        sharing = world.allgather(oversubscribed, "say whether ranks share cores")
        most = SMALL_ON_SHARED_CORES if any(sharing) and not self._networked else SMALL
        self._small = max(1 << 14, most // max(sizes) // ALIGNMENT * ALIGNMENT)
        chunk = min(LARGEST_CHUNK, CHUNKS // (2 * max(sizes)))
        chunk = max(SMALLEST_CHUNK, chunk // ALIGNMENT * ALIGNMENT)
        chosen = settings.current()
        stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, world.log, world.guard is not None)
        self._meeting = Meeting(self._node, self._lanes, None, self._networked, oversubscribed, stalls)
        self._lanes_made = [self._make_lane()]
        self._channel = self._open(chunk, self._lanes_made[0])
        self._apart: list[Channel] = []
        self.threads: ExchangeThreads | None = None
        self.background: AsyncAllreducer | None = None

    def _make_lane(self) -> Lane | None:
        """This rank's counterparts on other nodes, by a communicator of their own. Collective over the world."""
        world = self._world
        if not self._networked:
            return None
        comm = world.split(world.local_rank if world.local_rank < self._lanes else None, world.node)
        return None if comm is None else Lane(comm, settings.current().reproducible > 0)

    def _open(self, chunk: int, lane: Lane | None) -> Channel:
        """A channel with chunks of this size, or smaller ones, the same on every node, where a node has no room."""
        while True:
            channel, failure = None, ""
            try:
                channel = Channel(self._meeting._replace(lane=lane), min(self._small, chunk), chunk)
            except OutOfSharedMemory as error:
                failure = str(error)
            failures = [text for text in self._world.allgather(failure, "make room for the exchange") if text]
            if not failures:
                assert channel is not None
                return channel
            if chunk <= SMALLEST_CHUNK:
                raise OutOfSharedMemory(failures[0])
            chunk = max(SMALLEST_CHUNK, chunk // 4 // ALIGNMENT * ALIGNMENT)

    def checked_barrier(self, what: int, detail: int) -> bool:
        """Wait until every rank is here; whether all are about to do the same. For `World.barrier`.

        Args:
            what, detail: checksums of 32 bits, see `mismatch.fingerprint`.
        """
        self._channel.doing = self._world.location or "a meeting"
        return self._channel.wait(what, detail)[0]

    def sum(self, plan: BucketPlan, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sum one bucket of a plan over all ranks; the buckets of a plan come one after the other, from the first.

        Args:
            plan: the same on every rank.
            number: of the bucket.
            arrays: its tensors, in the order of its members; may be `Weighted`.

        Returns:
            The sums, in the same order; read-only, the same bits on every rank.

        Raises:
            RanksDisagree: on every rank.
        """
        expected = self._world.step_signature
        self._world.on_wait()
        while (total := self._sum(plan, number, arrays, expected)) is None:
            if error := self._world.disagreement(plan.what, [*expected, *plan.described]):
                raise error
        return plan.results(number, total)

    def sum_whole(
        self, plan: BucketPlan, arrays: Sequence[np.ndarray], expected: Sequence[str]
    ) -> list[np.ndarray] | None:
        """Sum all tensors of a plan over all ranks, and meet nowhere else: for a thread of its own.

        Args:
            expected: what the world expected when they were given, see `World.step_signature`.

        Returns:
            The sums; None, on every rank, where the ranks are not about to do the same.
        """
        sums: list[Any] = [None] * len(arrays)
        for number, bucket in enumerate(plan.buckets):
            total = self._sum(plan, number, [arrays[member] for member in bucket.members], expected)
            if total is None:
                return None
            for member, result in zip(bucket.members, plan.results(number, total), strict=True):
                sums[member] = result
        return sums

    def _sum(
        self, plan: BucketPlan, number: int, arrays: Sequence[np.ndarray], expected: Sequence[str]
    ) -> np.ndarray | None:
        """The sums of a bucket; None where the ranks are not about to do the same."""
        bucket, channel, coding = plan.buckets[number], self._channel, plan.codings[number]
        if number == 0:
            plan.root, plan.chosen = None, False
        with trace.span("exchange", plan.title(number)):
            channel.doing = plan.title(number)
            if bucket.nbytes <= channel.small:
                total = channel.allreduce_small(bucket, arrays, plan.what_sum, plan.detail_sum(expected), coding)
            else:
                total = self._sum_large(plan, number, arrays, expected)
        if number == len(plan.buckets) - 1:
            plan.root = None
        return total

    def _sum_large(
        self, plan: BucketPlan, number: int, arrays: Sequence[np.ndarray], expected: Sequence[str]
    ) -> np.ndarray | None:
        """The sums of a bucket, which lie in shared memory; None if the ranks are not about to do the same."""

        def choose(held: int) -> np.ndarray | None:
            if not plan.chosen:
                plan.root, plan.chosen = self._take(plan.nbytes, held), True
            return plan.place(number)

        with self._lock:
            return self._channel.allreduce(
                plan.buckets[number],
                arrays,
                plan.what_sum,
                plan.detail_sum(expected),
                self._held(),
                choose,
                plan.codings[number],
            )

    def begin(self, plan: BucketPlan) -> None:
        """Meet for a plan whose buckets will be summed by `sum_apart`.

        Raises:
            RanksDisagree: on every rank.
        """
        expected = self._world.step_signature
        self._world.on_wait()
        while True:
            with self._lock:
                agreed, held = self._channel.wait(plan.what_sum, plan.detail_sum(expected), self._held())
                if agreed:
                    plan.root, plan.chosen = self._take(plan.nbytes, held), True
                    return
            if error := self._world.disagreement(plan.what, [*expected, *plan.described]):
                raise error

    def sum_apart(self, channel: int, plan: BucketPlan, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sum one bucket of a plan that has begun, in a channel of its own; see `sum`.

        Args:
            channel: each takes the same buckets in the same order on every rank; they know nothing of one another.
        """
        with trace.span("exchange", plan.title(number)):
            self._apart[channel].doing = plan.title(number)
            total = self._apart[channel].allreduce(
                plan.buckets[number], arrays, plan.what_sum, number, 0, lambda held: plan.place(number),
                plan.codings[number],
            )  # fmt: skip
        if total is None:
            raise MatexError(
                f"bucket {number} of {plan.what!r} met another one on its way; this is an error of matex_tf."
            )
        return plan.results(number, total)

    def join(self, plan: BucketPlan, parts: Sequence[np.ndarray], lows: Sequence[int]) -> list[np.ndarray] | None:
        """Join flat arrays of which each rank has a part: each writes its own to memory that all share.

        Args:
            plan: of the whole arrays, the same on every rank.
            parts: what this rank has of each; lows: where that begins.

        Returns:
            The whole arrays, read-only; None, on every rank, if there are several nodes or no shared memory.
        """
        if self._networked:
            return None
        self.begin(plan)
        with self._lock, trace.span("exchange", plan.title(0)):
            if plan.root is None:
                return None
            totals = []
            for number, bucket in enumerate(plan.buckets):
                total = plan.place(number).view(bucket.dtype)  # type: ignore[union-attr]
                for member, start in zip(bucket.members, bucket.starts, strict=True):
                    low = start + lows[member]
                    total[low : low + parts[member].size] = parts[member]
                totals.append(total)
            self._channel.wait(plan.what_sum, 0)
            plan.root = None
        wholes: list[Any] = [None] * len(parts)
        for number, bucket in enumerate(plan.buckets):
            for member, whole in zip(bucket.members, plan.results(number, totals[number]), strict=True):
                wholes[member] = whole
        return wholes

    def open_channels(self, count: int) -> None:
        """Have this many channels for `sum_apart`. Collective over the world."""
        while len(self._apart) < count:
            lane = self._make_lane()
            self._lanes_made.append(lane)
            self._apart.append(self._open(self._channel.chunk, lane))

    def _held(self) -> int:
        """The generations of which this process still uses a result, as bits."""
        return sum(generation.held << place for place, generation in enumerate(self._generations))

    def _take(self, nbytes: int, held: int) -> np.ndarray | None:
        """Memory for results that no rank of the node uses; None where there is none. Collective over the node."""
        if self._roomless:
            return None
        for step in range(1, GENERATIONS + 1):
            place = (self._turn + step) % GENERATIONS
            if not held >> place & 1 and (place < 2 or held & 3 == 3):  # the third only where it is needed
                break
        else:
            return None
        generation = self._generations[place]
        if generation.segment is None or generation.segment.size < nbytes:
            generation.segment = None
            try:
                generation.segment = self._node.segment(-(-nbytes // 4096) * 4096)
            except OutOfSharedMemory as error:
                self._roomless = True
                if self._node.rank == 0 and settings.current().notes:
                    print(f"matex_tf: {error} Results are copied out of a smaller part.", file=sys.stderr, flush=True)
                return None
        self._turn = place
        root = generation.segment.bytes()
        generation.lease = weakref.ref(root)
        return root

    def revoke(self) -> None:
        """Let no rank of this node wait any longer: a rank has died, and this group with it."""
        for channel in (self._channel, *self._apart):
            channel.revoke()
        if self.threads is not None:
            self.threads.stop()
        if self.background is not None:
            self.background.revoke()

    def close(self) -> None:
        """Give communicators back; views of results stay good. Collective over the world."""
        if self.threads is not None:
            self.threads.stop()
        if self.background is not None:
            self.background.close()
        self._node.close()
        for lane in self._lanes_made:
            if lane is not None:
                lane.close()


def of(world: World, plan: BucketPlan, make: Callable[[World], ProcessGroup] = ProcessGroup) -> ProcessGroup:
    """The process group of a world; made at the first call, once the ranks have found that they all mean to exchange.

    Args:
        plan: what is to be exchanged, for the comparison of ranks.
        make: makes the group of a world that has none.

    Raises:
        RanksDisagree: on every rank.
    """
    if world.exchange is None:
        world.barrier(plan.what, plan.described)
        world.exchange = make(world)
    return cast(ProcessGroup, world.exchange)


def sum_arrays(world: World, arrays: Sequence[np.ndarray], what: str, labels: Sequence[str]) -> list[np.ndarray]:
    """Sum each array over all ranks.

    Args:
        world: the ranks that take part; each must call this with arrays of the same shapes and dtypes.
        arrays: any shapes, dtypes of `reduction.SUMMED_AS`.
        what: the purpose, see `World.barrier`.
        labels: a name for each array; ranks whose labels, dtypes or shapes differ get RanksDisagree.

    Returns:
        The sums, in the dtypes of `arrays`; read-only, the same bits on every rank.
    """
    if world.is_single or not arrays:
        return list(arrays)
    plan = BucketPlan.of(what, labels, arrays, at_once=True)
    return world.run_atomically(lambda: sum_planned(world, plan, arrays))


def sum_planned(world: World, plan: BucketPlan, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Sum each array over all ranks, by a plan.

    Args:
        plan: of these arrays, the same on every rank; `BucketPlan.of` makes it.
        arrays: may be `Weighted`.
    """
    group = of(world, plan)
    if len(arrays) == 1:
        return group.sum(plan, 0, arrays)
    sums: list[np.ndarray | None] = [None] * len(arrays)
    for number, bucket in enumerate(plan.buckets):
        totals = group.sum(plan, number, some(arrays, bucket.members))
        for member, total in zip(bucket.members, totals, strict=True):
            sums[member] = total
    return sums  # type: ignore[return-value]
