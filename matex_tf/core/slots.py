"""What others put into a `World`: it knows what it may ask of them, and not who they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")
_Committed = TypeVar("_Committed")


class Exchange(Protocol):
    """What moves gradients between the ranks: `exchange.process_group.ProcessGroup`.

    Attributes:
        background: what does so while ranks compute, or None.
    """

    background: Any

    def checked_barrier(self, what: int, detail: int) -> bool:
        """Wait until every rank is here; whether all are about to do the same.

        Args:
            what, detail: checksums of 32 bits, see `mismatch.fingerprint`.
        """

    def revoke(self) -> None:
        """Let no rank of this node wait any longer: a rank has died."""

    def close(self) -> None:
        """Give communicators and shared memory back. Collective over the world."""


class Guard(Protocol):
    """What carries on where a rank has died: `faults.transactions.TransactionGuard`, which says more of each."""

    on_change: list[Callable[[list[int]], None]]
    shares_batches: bool

    @property
    def inside(self) -> bool:
        """Whether a transaction is under way."""

    def run(self, operation: Callable[[], _Result]) -> _Result:
        """Run one or more collectives such that all survivors complete them or none does."""

    def transaction(
        self,
        prepare: Callable[[], _Result],
        commit: Callable[[], _Committed],
        undo: Callable[[], None] = ...,
        catch_up: Any = ...,
    ) -> tuple[_Result, _Committed]:
        """Run a piece of work that all survivors complete or none does.

        Args:
            prepare: the rank's own part; may have collectives in it.
            commit: a collective in which every rank waits for every other, with the same result on each.
            undo: called before `prepare` runs again.
            catch_up: given the result of `commit` of another rank, if this one has failed: completes its own part.
        """

    def mark_committed(self) -> None:
        """In a transaction, after its last collective: it counts."""

    def let_go(self, leaving: Sequence[int]) -> None:
        """Go on without ranks that leave of their own will."""

    def extend(self, bridge: Any, leader: int = 0) -> bool:
        """Let a rank come, or come to others; whether it has.

        Args:
            bridge, leader: see `Communicator.extend`.
        """

    def leave_guests(self, everyone: Sequence[Any], why: str) -> None:
        """Leave ranks behind that have come and differ from all that began the job.

        Args:
            everyone: what each rank is about to do, in the order of ranks.
            why: in words that its last message has.
        """

    def end(self, code: int) -> None:
        """End all ranks at once."""


class Checkpoints(Protocol):
    """The checkpoints of a job that a feature starts again.

    Attributes:
        path: the directory.
        resumed: whether to go on from what is there.
        seconds: between checkpoints within an epoch; with 0 there is one at the end of each epoch.
        asked_to_end: whether this rank was asked for a checkpoint with which the job ends.
        told_to_end: when this rank was told to end, by the monotonic clock; 0.0 where nobody has.
    """

    path: Path
    resumed: bool
    seconds: float
    asked_to_end: bool
    told_to_end: float

    @property
    def busy(self) -> bool:
        """Whether one is being written."""

    def heeding_the_end(self) -> AbstractContextManager[None]:
        """Inside, SIGTERM asks for a checkpoint, see `told_to_end`."""

    def seed(self, drawn: int) -> int:
        """The seed of the job."""

    def find(self, fit: int, what: str = ...) -> tuple[Any, Any] | None:
        """The last one of these.

        Args:
            fit: which `fit` of the job, from 0.
            what: the state that the checkpoint has.
        """

    def save(self, place: Any, state: Callable[[], Any]) -> None:
        """Write one in the background.

        Args:
            place: where the job is, a `faults.place.Place`; `find` returns it.
            state: returns what to write, a plain value; called in the background.
        """

    def finish(self) -> None:
        """Wait until all are written."""

    def end(self) -> None:
        """The script has come to its end."""

    def leave(self) -> None:
        """The script has ended well on all ranks: its checkpoints are of no use any more. For one rank."""
