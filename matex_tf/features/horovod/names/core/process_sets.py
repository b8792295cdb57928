"""Process sets: collectives among some of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf.core.world import World
from matex_tf.features.horovod.names.core import basics
from matex_tf.features.horovod.names.core.coordinator import Coordinator
from matex_tf.features.horovod.names.core.exceptions import BadArgument
from matex_tf.features.horovod.names.core.requests import Call
from matex_tf.state import run_state


class ProcessSet:
    """Some ranks, which run collectives among themselves.

    Attributes:
        process_set_id: 0 for that of all ranks; None before the set was added, and after it was removed.
        ranks: in rising order.
    """

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Sequence[int]):
        """Args: ranks_or_comm: ranks.

        Raises:
            ValueError: it is something else.
            NotImplementedError: it is a communicator.
        """
        if not isinstance(ranks_or_comm, Iterable):
            if hasattr(ranks_or_comm, "Get_size"):
                raise NotImplementedError("matex_tf makes a ProcessSet of a list of ranks, not of a communicator.")
            raise ValueError("ProcessSet should be initialized with a list of process ranks.")
        ranks = list(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError("ProcessSet should be initialized with a list of process ranks.")
        self.ranks: list[int] = sorted(ranks)

    def size(self) -> int | None:
        """The number of its ranks; None before it was added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's place in it; None before it was added.

        Raises:
            ValueError: this rank is not in it.
        """
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {basics.rank()} is not in {self}.")
        return self.ranks.index(basics.rank())

    def included(self) -> bool:
        """Whether this rank is in it."""
        return basics.rank() in self.ranks

    @property
    def coordinator(self) -> Coordinator:
        """Where its collectives are done.

        Raises:
            ValueError: it was not added.
            BadArgument: this rank is not in it.
        """
        everyone = basics.coordinator()  # says so where there was no init
        if self.process_set_id is None or self.process_set_id not in _sets().known:
            raise ValueError(
                f"{self} is not known: call hvd.add_process_set, or give it to hvd.init(process_sets=[…])."
            )
        if self.process_set_id == 0:
            return everyone
        coordinator = _sets().known[self.process_set_id][1]
        if coordinator is None:
            raise BadArgument(f"rank {basics.rank()} is not in {self}, and cannot take part in its collectives.")
        return coordinator

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"

    __repr__ = __str__


#: All ranks.
global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


class _Sets:
    """Of a run.

    Attributes:
        known: those that were added, by number, each with its coordinator if this rank is in it.
        free: numbers of sets that were removed, the next to be given first.
        left: sets that a shutdown left behind, each beside the world that it is of: to be closed where that comes
            together again.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[ProcessSet, Coordinator | None]] = {}
        self.free: list[int] = []
        self.left: list[tuple[World, Coordinator]] = []


def _sets() -> _Sets:
    return run_state.part(_Sets)


def begin(everyone: Coordinator) -> None:
    """Know all ranks, and no other set."""
    end()
    global_process_set.ranks = list(range(everyone.ranks.size))
    _sets().known[0] = global_process_set, everyone


def end() -> None:
    """Forget all sets."""
    for process_set, coordinator in _sets().known.values():
        if process_set is not global_process_set:
            process_set.process_set_id = None
            everyone = _sets().known[0][1]
            if coordinator is not None and everyone is not None:
                _sets().left.append((everyone.ranks, coordinator))
    _sets().known.clear()
    _sets().free.clear()


def close_left() -> None:
    """Give back the communicators of sets that a shutdown left behind. Every rank of the job must call it."""
    everyone = basics.coordinator().ranks
    for ranks, coordinator in list(_sets().left):
        if ranks is everyone:
            _sets().left.remove((ranks, coordinator))
            _close(coordinator)


def forget_left() -> None:
    """Leave them as they are: ranks of theirs have died."""
    _sets().left.clear()


def _close(coordinator: Coordinator) -> None:
    if coordinator.ranks is not basics.coordinator().ranks:
        coordinator.close()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a process set known. Every rank of the job must call it, with the same ranks in the same order of calls.

    Raises:
        ValueError: on every rank, ranks that are not there, or a set that is.
    """
    return add_all([process_set])[0]


def add_all(process_sets: Sequence[ProcessSet | Sequence[int]]) -> list[ProcessSet]:
    """Make several process sets known: all of them are added, or none is."""
    everyone = basics.coordinator()
    added = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in process_sets]
    if not added:
        return []
    fault = _fault(added, everyone.ranks.size)
    asked = ", ".join(f"ranks {one.ranks}" for one in added)
    everyone.perform(Call("add_process_sets", params=asked, check=lambda arrays, size: fault))
    for one in added:
        ranks = everyone.perform(Call("add_process_set", params=f"ranks {one.ranks}"), objects=[one.ranks])
        one.process_set_id = _sets().free.pop(0) if _sets().free else len(_sets().known)
        _sets().known[one.process_set_id] = one, Coordinator(ranks) if one.included() else None
    return added


def _fault(sets: Sequence[ProcessSet], size: int) -> str:
    """What is wrong with sets to be added; empty where nothing is."""
    there = [known.ranks for known, _ in _sets().known.values()]
    for one in sets:
        ranks = one.ranks
        if not ranks or len(set(ranks)) < len(ranks) or min(ranks) < 0 or max(ranks) >= size:
            return f"a process set of ranks {ranks} cannot be: there are ranks 0 to {size - 1}"
        if ranks in there:
            return f"Attempted to add a duplicate process set: {one}"
        there.append(ranks)
    return ""


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a process set. Every rank of the job must call it. Whether there was one to forget."""
    number = process_set.process_set_id
    if number is None or number == 0 or number not in _sets().known:
        return False
    basics.coordinator().perform(Call("barrier", f"remove {process_set.ranks}"))
    _, coordinator = _sets().known.pop(number)
    process_set.process_set_id = None
    _sets().free.append(number)
    if coordinator is not None:
        _close(coordinator)
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every set that is known, by its number."""
    basics.coordinator()
    return {number: list(process_set.ranks) for number, (process_set, _) in _sets().known.items()}


def by_id(number: int) -> Any:
    """The set of this number; None where there is none."""
    return _sets().known[number][0] if number in _sets().known else None
