"""Where the collectives of a rank wait until the other ranks come for the same.

Ranks may come to collectives in different orders where several threads, or a graph of a session, run them; a rank that
has joined has nothing of its own and takes part in what the others do. Whoever talks to the others tries the oldest
collective that its rank has. Ranks that all try the same go on at once: the exchange compares two checksums, and
nothing else is sent. Where they differ, all know it, and they lay open what they have at hand:

    something that every rank has     is done next
    all have joined                   joining ends
    the same name, other tensors      is an error on every rank, and the next collective works
    the same name twice on one rank   is an error on every rank
    nothing in common                 they try again for a second, then it is an error on every rank
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.core import world as world_module
from matex_tf.core.mismatch import difference, name_ranks
from matex_tf.core.world import World
from matex_tf.errors import MatexError, RanksDisagree
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.collectives import Collectives
from matex_tf.faults import transactions
from matex_tf.features.horovod.names.core.exceptions import BadArgument, HorovodInternalError, Mismatch
from matex_tf.features.horovod.names.core.requests import PREFIX, Call, Request

#: Seconds in which another thread of a rank may still come with what the other ranks wait for.
PATIENCE = 1.0
_PAUSE = 2e-3

#: What a rank that has joined can take part in, with zeros or with no rows.
JOINED = ("allreduce", "allgather", "barrier")


@dataclasses.dataclass
class PendingCollective:
    """A collective that waits for its turn, and what came of it.

    Attributes:
        since: of a rank that joined, how often the ranks had laid open what they had until then.
    """

    request: Request
    arrays: Sequence[Any]
    plan: BucketPlan | None = None
    result: Any = None
    error: BaseException | None = None
    ended: bool = False
    since: int = -1

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Give the `result`, or the `error` to raise, to the thread that waits for it."""
        self.result, self.error, self.ended = result, error, True


class Coordinator:
    """What one rank asks for, and what the ranks of one world do of it."""

    def __init__(self, ranks: World):
        """Args: ranks: those that take part in every collective of this coordinator."""
        self.ranks = ranks
        self._changed = threading.Condition()  # of what follows
        self._pending: list[PendingCollective] = []
        self._talking = False  # whether a thread talks to the other ranks, for all pending
        self._collectives: Collectives | None = None
        self._stuck_since = 0.0
        self._openings = 0

    def perform(self, call: Call, arrays: Sequence[np.ndarray] = (), objects: Sequence[Any] = ()) -> Any:
        """Take part in a collective; returns what it gives, a list of arrays for most.

        Args:
            arrays: the rank's tensors, which the ranks compare.
            objects: what else it gives, which they do not.

        Raises:
            Mismatch, BadArgument, RanksDisagree: on every rank.
            HorovodInternalError: a rank has died, in a job that can go on without it.
        """
        request, plan = call.of(arrays, self.ranks.size)
        with self._changed:
            if any(other.request.key == request.key for other in self._pending):
                request = request.twice()  # which of them goes with which of another rank, nobody can tell
            pending = PendingCollective(request, [*arrays, *objects], plan)
            self._pending.append(pending)
        self._see_to(pending)
        if pending.error is not None:
            if world_module.current().guard is not None and transactions.is_rank_failure(pending.error):
                raise HorovodInternalError(f"{request.what} failed, as a rank has died") from pending.error
            raise pending.error
        return pending.result

    def _see_to(self, pending: PendingCollective) -> None:
        """Wait until a collective has ended; it may be another thread that talks to the other ranks and ends it."""
        with self._changed:
            self._changed.wait_for(lambda: pending.ended or not self._talking)
            if pending.ended:
                return
            self._talking = True
        try:
            while not pending.ended:
                self._try_oldest()
        finally:
            with self._changed:
                self._talking = False
                self._changed.notify_all()

    def close(self) -> None:
        """Give communicators back. Collective over its ranks, which must not be those of the job."""
        if self._collectives is not None:
            self._collectives.free()
        self.ranks.free()

    def _try_oldest(self) -> None:
        pending = self._pending[0]
        request = pending.request
        try:
            if pending.plan is not None and not request.fault and not self.ranks.is_single:
                result: Any = process_group.sum_planned(self.ranks, pending.plan, pending.arrays)
            else:
                self.ranks.barrier(request.what, request.details)
                result = self._do(request, pending.arrays, pending)
        except RanksDisagree as error:
            if error.everyone and all(what.startswith(PREFIX) for what, _, _ in error.everyone):
                self._lay_open()
            else:
                self._end(pending, error=error)
        except BaseException as error:
            self._end(pending, error=error)
        else:
            self._end(pending, result)

    def _end(self, pending: PendingCollective, result: Any = None, error: BaseException | None = None) -> None:
        self._stuck_since = 0.0
        with self._changed:
            self._pending.remove(pending)
            pending.end(result, error)
            self._changed.notify_all()

    def _lay_open(self) -> None:
        """Agree with the other ranks, which do the same, what comes next."""
        self._openings += 1
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        with self._changed:
            mine = list(self._pending)
        for pending in mine:
            if pending.request.kind == "join" and pending.since < 0:
                pending.since = self._openings
        said = self.ranks.allgather_now(([pending.request for pending in mine], now - self._stuck_since))
        asked: list[list[Request]] = [requests for requests, _ in said]
        joined = [any(request.kind == "join" for request in requests) for requests in asked]
        others = [rank for rank in range(self.ranks.size) if not joined[rank]]
        if not others:
            joining = next(pending for pending in mine if pending.request.kind == "join")
            self._end(joining, self._last(joining))
            return
        keys = [{request.key for request in asked[rank]} for rank in others]
        common = next((one for one in asked[others[0]] if all(one.key in those for those in keys)), None)
        own = next((pending for pending in mine if common and pending.request.key == common.key), None)
        if common is None:
            self._wait_or_fail(mine, asked, others, max(waited for _, waited in said))
            return
        versions = [next(one for one in asked[rank] if one.key == common.key) for rank in others]
        error = _misfit(versions, others)
        if error is None and any(joined) and (common.kind not in JOINED or common.fault):
            error = BadArgument(
                f"{common.what} cannot be done while {name_ranks([r for r, j in enumerate(joined) if j])} "
                f"has joined: after join() ranks take part in {' and '.join(JOINED)} of other ranks alone."
            )
        if error is not None:
            if own is not None:
                self._end(own, error=error)
            return
        try:
            result = self._do(common, own.arrays if own else _nothing(common), own)
        except BaseException as failure:
            if own is not None:
                self._end(own, error=failure)
            elif not isinstance(failure, MatexError):  # which the ranks that asked for it have too
                raise
        else:
            if own is not None:
                self._end(own, result)

    def _wait_or_fail(
        self, mine: list[PendingCollective], asked: list[list[Request]], others: list[int], waited: float
    ) -> None:
        """No collective that all have: give other threads time to come with one, then fail the oldest of each rank."""
        if waited < PATIENCE:
            time.sleep(_PAUSE)  # what is waited for is another thread of some rank, which gives no sign
            return
        doing: dict[str, list[int]] = {}
        for rank, requests in enumerate(asked):
            first = "hvd.join" if rank not in others else requests[0].what
            doing.setdefault(first, []).append(rank)
        text = "; ".join(f"{name_ranks(ranks)}: {what}" for what, ranks in doing.items())
        error = Mismatch(
            f"the ranks wait for different collectives. {text}. Every rank must call the same, in one order. (In the "
            "graph of a session TensorFlow picks the order of those that do not depend on one another, and runs some "
            "tens of them at once: use the grouped ones.)"
        )
        if self.ranks.rank in others:
            self._end(mine[0], error=error)

    def _last(self, joining: PendingCollective) -> int:
        """The last rank that joined."""
        since = [opening if opening >= 0 else self._openings + 1 for opening in self.ranks.allgather_now(joining.since)]
        return max(range(len(since)), key=lambda rank: (since[rank], rank))

    def _do(self, request: Request, arrays: Sequence[Any], pending: PendingCollective | None) -> Any:
        """Carry out a collective that all ranks have agreed on."""
        if request.fault:
            raise BadArgument(request.fault)
        if request.kind in ("barrier", "add_process_sets"):
            return []
        if request.kind == "join":
            assert pending is not None
            return self._last(pending)
        if request.kind == "add_process_set":
            return self.ranks.subset(arrays[0])
        if self._collectives is None:
            self._collectives = Collectives(self.ranks)
        return _carry_out(self._collectives, request, arrays)


def _carry_out(among: Collectives, request: Request, arrays: Sequence[Any]) -> Any:
    kind = request.kind
    if kind == "allreduce":
        return [among.reduce(array, request.how) for array in arrays]
    if kind == "allgather":
        joined = [among.allgather(array) for array in arrays]
        return [*(rows for rows, _ in joined), np.array([counts for _, counts in joined], np.int32)]
    if kind == "broadcast":
        return [among.broadcast(array, request.root) for array in arrays]
    if kind == "alltoall":
        received, counts = among.alltoall(arrays[0], [int(count) for count in arrays[1]])
        return [received, np.array(counts, arrays[1].dtype)]
    if kind == "reducescatter":
        return [among.reduce_scatter(array, request.how) for array in arrays]
    if kind == "broadcast_object":
        return among.broadcast_object(arrays[0], request.root)
    if kind == "allgather_object":
        return among.allgather_object(arrays[0])
    raise MatexError(f"there is no collective {kind}; this is an error of matex_tf.")


def _misfit(versions: list[Request], ranks: list[int]) -> MatexError | None:
    """The error that says in what requests of one key differ; None where they do not."""
    if all((one.kind, one.details) == (versions[0].kind, versions[0].details) for one in versions):
        return None
    text = difference([(one.what, one.details, "") for one in versions], ranks)
    return BadArgument(text) if any(one.fault for one in versions) else Mismatch(text)


def _nothing(request: Request) -> list[np.ndarray]:
    """What a rank that has joined gives: zeros, or no rows."""
    from tensorflow import as_dtype

    result = []
    for shape, dtype in zip(request.shapes, request.dtypes, strict=True):
        shape = (0, *shape[1:]) if request.kind == "allgather" else shape
        result.append(np.zeros(shape, as_dtype(dtype).as_numpy_dtype))
    return result
