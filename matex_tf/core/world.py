"""Who we are: rank, world size, nodes; the only module that owns communicators.

Every collective of the runtime passes through `World.barrier`, in which the ranks first tell one another, in two
checksums, what they are about to do. Ranks that went different ways (one left the loop early, one has another model)
find that out there, in words, instead of hanging or adding up the wrong numbers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from matex_tf.core.mismatch import difference, fingerprint
from matex_tf.core.slots import Checkpoints, Exchange, Guard
from matex_tf.core.transport import registry
from matex_tf.core.transport.communicator import Communicator, wait, wait_all
from matex_tf.errors import CommunicationError, RanksDisagree, harmless

#: What a rank is about to do begins with this where the others may be elsewhere, see `World.barrier_at`.
CALL = "come to "

_Result = TypeVar("_Result")


def _guarded(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that all ranks complete, or none, where a rank may die in it; see `World.guard`."""

    @functools.wraps(collective)
    def call(self: World, *args: Any, **kwargs: Any) -> Any:
        if self.guard is None:
            return collective(self, *args, **kwargs)
        return self.guard.run(lambda: collective(self, *args, **kwargs))

    return call


class World:
    """The ranks that train together, and the plain collectives among them.

    Attributes:
        rank, size: this rank and the number of ranks.
        local_rank, local_size: the same among the ranks of this node.
        host: name of this node; hosts: the node of every rank.
        nodes: the ranks of each node, in the order of their first ranks; node: this rank's place in that.
        exchange: what moves gradients between these ranks (`matex_tf.exchange`); None until it is first needed.
        guard: what carries on where a rank has died (`matex_tf.faults.transactions`); None where all ranks end with it.
        restarts: whether the job is started again where a rank has died.
        checkpoints: those of such a job, see `slots.Checkpoints`; None for others.
        holds_shard: whether the script has a part of the rows of some files, which other ranks do not have.
        log: prints a line for the user, from whichever rank.
        log_to: the file descriptor that such lines are written to.
        generation: how often ranks have been left behind; with it `rank`, `size` and what follows from them change.
        first_ranks: the rank that each had before any was left behind.
        founders: how many ranks the job began with; those that come have higher `first_ranks`.
        location, step_signature: where this rank is, and what the ranks agree on there; see `at`.
        within: worlds that a feature has made of this one, and their name; None until it asks for them.
        part_of: the world of which this is a group; None for others.
        forked_from: the world of the rank that has forked this process, which is none itself; None in a rank.
        growth: lets ranks come, kept by a feature; None where none can.
        arrival: in a rank that has come, and is not yet among the others, its way to them.
        compared: checksums of what ranks have compared since this was emptied, by purpose: the first of each.
        center: what groups that train apart have in common, kept by a feature; None until it is asked for.
        on_wait: called before this rank waits for all others, where others may be held up by what it has not said yet.
        on_meeting: called after this rank has met all others for the same purpose.
        on_end: called once all ranks have ended a piece of the script's work, before any of them goes on.
    """

    def __init__(self, comm: Communicator | None = None, host: str = ""):
        """A world of the ranks of a communicator.

        Args:
            comm: what the world owns from now on, or None for a world of one rank.
            host: the name of this node; the machine's where it is empty.
        """
        self._lock = threading.RLock()
        self._split: list[Communicator] = []  # what came from `split`
        self.location = ""
        self.step_signature: tuple[str, ...] = ()
        self.exchange: Exchange | None = None
        self.guard: Guard | None = None
        self.restarts = False
        self.checkpoints: Checkpoints | None = None
        self.holds_shard = False
        self.within: tuple[str, Any] | None = None
        self.part_of: World | None = None
        self.forked_from: World | None = None
        self.center: Any = None
        self.growth: Any = None
        self.arrival: Any = None
        self.compared: dict[str, tuple[int, int]] = {}
        self.on_wait: Callable[[], None] = lambda: None
        self.on_meeting: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.log: Callable[[str], None] = _print
        self.log_to = 2
        self.generation = 0
        self.host = host or socket.gethostname()
        self._settle(comm, [self.host] if comm is None else comm.allgather(self.host))
        self.first_ranks, self.founders = list(range(self.size)), self.size

    def _settle(self, comm: Communicator | None, hosts: Sequence[str]) -> None:
        """Take a communicator, whose ranks are on these hosts."""
        self._comm = comm
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        self.hosts = list(hosts)
        here = [r for r, host in enumerate(self.hosts) if host == self.host]
        self.local_rank, self.local_size = here.index(self.rank), len(here)
        names = list(dict.fromkeys(self.hosts))
        self.nodes = [[r for r, host in enumerate(self.hosts) if host == name] for name in names]
        self.node = names.index(self.host)

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, host={self.host!r})"

    @property
    def is_single(self) -> bool:
        """Whether there is nobody to talk to."""
        return self.size == 1

    @property
    def guests(self) -> list[int]:
        """Ranks that have come while the job ran, as long as one is there that began it."""
        came = [rank for rank, first in enumerate(self.first_ranks) if first >= self.founders]
        return came if len(came) < self.size else []

    @property
    def _connected(self) -> Communicator:
        """The communicator of a world of several ranks, or of one that has had several."""
        assert self._comm is not None
        return self._comm

    def at(self, location: str, *agreed: str) -> None:
        """Note where this rank is in its script, and what the ranks must agree on until it is elsewhere.

        Args:
            location: such as "train step 3 of cnn"; shown where ranks disagree.
            agreed: what each `barrier` compares besides its own details, such as "a batch of 32 rows".
        """
        self.location, self.step_signature = location, agreed

    @contextlib.contextmanager
    def during(self, location: str, *agreed: str) -> Iterator[None]:
        """Note a step as `at` does, until its end: nothing of it need be agreed on then, nor after an error in it."""
        self.at(location, *agreed)
        try:
            yield
        finally:
            self.step_signature = ()

    @property
    def can_shrink(self) -> bool:
        """Whether the ranks can go on without those that have died, see `shrink`."""
        return self._comm is not None and self._comm.can_shrink

    @property
    def can_grow(self) -> bool:
        """Whether ranks can come, see `extend`."""
        return self._comm is not None and self._comm.can_grow

    def start(self, words: Sequence[str], told: Any) -> Any:
        """Start a rank that may come, see `Communicator.start`."""
        return self._connected.start(words, told)

    @property
    def exit_may_hang(self) -> bool:
        """See `Communicator`."""
        return self._comm is not None and self._comm.exit_may_hang

    @property
    def survives_failures(self) -> bool:
        """Whether training goes on where a rank has died, be it without it or in a job that is started again."""
        return self.guard is not None or self.restarts

    @_guarded
    def barrier(self, what: str, detail: Sequence[str] = ()) -> None:
        """Wait until every rank is here, for the same purpose.

        Args:
            what: the purpose, in words that fit after "rank 3"; the same on every rank.
            detail: what the ranks must agree on, item by item (such as "dense/kernel float32 (8, 4)").

        Raises:
            RanksDisagree: on every rank, naming what differs and on which ranks.
        """
        if self._comm is None:
            return
        if what.startswith("compare ") and what not in self.compared:
            self.compared[what] = fingerprint(what, detail)
        details = (*self.step_signature, *detail)
        while not self._agree(*fingerprint(what, details)):
            if error := self.disagreement(what, details):
                raise error
        self.on_meeting()

    def end_together(self, what: str) -> None:
        """End a piece of the script's work, such as a `fit`: what the first rank has written, all see from then on."""
        self.barrier(what)
        self.on_end()
        self.barrier(f"{what}, with its files")

    def barrier_at(self, call: str, detail: Sequence[str] = ()) -> Sequence[tuple[str, tuple[str, ...], str]] | None:
        """Wait in a call of the script's that the others may not come to: whoever is elsewhere goes on waiting.

        Args:
            call: what every rank would be about to do; `detail`: as for `barrier`.

        Returns:
            None where all ranks are here for the same; otherwise, on every rank, what each is about to do, as
            `RanksDisagree.everyone` has it. Ranks that are in `barrier` or in an exchange wait there again.
        """
        if self._comm is None:
            return None
        what, details = CALL + call, tuple(detail)
        return None if self._agree(*fingerprint(what, details)) else self._tell(what, details)

    def _agree(self, what: int, detail: int) -> bool:
        """Wait until every rank is here; whether all have these checksums."""
        self.on_wait()
        if self.exchange is not None:  # they may be waiting there, in shared memory
            return self.exchange.checked_barrier(what, detail)
        said = np.array([what, detail, -what, -detail], np.int64)
        heard = np.empty_like(said)
        with self._lock:
            wait(self._connected.iallreduce(said, heard, "max"))
        return bool(heard[0] == -heard[2] and heard[1] == -heard[3])

    def _tell(self, what: str, details: Sequence[str]) -> list[tuple[str, tuple[str, ...], str]]:
        with self._lock:
            return self._connected.allgather((what, tuple(details), self.location))

    def disagreement(self, what: str, details: Sequence[str]) -> RanksDisagree | None:
        """The error that says in what the ranks differ, the same on each; to be called where all know that they do.

        None where one of them is in `barrier_at`: it will come, and the others meet again for what they were about to
        do.

        Args:
            what, details: what this rank is about to do, see `barrier`.
        """
        everyone = self._tell(what, details)
        if any(doing.startswith(CALL) for doing, _, _ in everyone):
            return None
        error = RanksDisagree(difference(everyone))
        error.everyone = everyone
        if self.guard is not None:
            self.guard.leave_guests(everyone, str(error))
        return error

    @_guarded
    def allreduce(self, array: np.ndarray, what: str) -> np.ndarray:
        """Sum an array of the same shape and dtype over all ranks; the result is the same on each.

        Args:
            array: of integers, float32, float64 or complex numbers.
            what: the purpose, see `barrier`.
        """
        if self._comm is None:
            return array.copy()
        array = np.asarray(array, order="C")
        with self._lock:
            self.barrier(what, [f"{array.dtype} {array.shape}"])
            total = np.empty_like(array)
            self._comm.allreduce(array, total)
        return total

    def allreduce_in_place(self, array: np.ndarray) -> None:
        """Sum a flat, contiguous array into itself over all ranks; a `barrier` must have come before."""
        if self._comm is not None:
            np.copyto(array, self._sum_whole(array)) if self.guard else self._sum_onto(array)

    @_guarded
    def _sum_whole(self, array: np.ndarray) -> np.ndarray:
        total = array.copy()
        self._sum_onto(total)
        return total

    def _sum_onto(self, array: np.ndarray) -> None:
        with self._lock:
            self._connected.allreduce(array, array)

    @_guarded
    def broadcast(self, value: Any, what: str, root: int = 0) -> Any:
        """Give `root`'s value, any picklable object, to every rank.

        Args:
            what: the purpose, see `barrier`.
        """
        if self._comm is None:
            return value
        with self._lock:
            self.barrier(what)
            return self._comm.bcast(value, root)

    @_guarded
    def broadcast_array(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Give `root`'s array to every rank; shape and dtype are the same on all (a `barrier` must have checked).

        Args:
            array: of any dtype without objects; on other ranks than `root` only its shape and dtype count.
            root: a rank of this world.
        """
        if self._comm is None:
            return array
        buffer = np.array(array, order="C")
        with self._lock:
            if self.guard is not None:  # the root must not run ahead of ranks that still wait for it
                self.barrier("share an array")
            self._comm.bcast_array(buffer, root)
        return buffer

    @_guarded
    def allgather(self, value: Any, what: str) -> list[Any]:
        """Every rank's value, any picklable object, in the order of ranks, on every rank.

        Args:
            what: the purpose, see `barrier`.
        """
        if self._comm is None:
            return [value]
        with self._lock:
            self.barrier(what)
            return self._comm.allgather(value)

    @_guarded
    def compare(self, mark: Any, what: str) -> list[Any]:
        """Every rank's mark of what should be alike, as by `allgather`. A rank that has come and has another one than
        all that began the job is left behind, before anybody sees it.

        Args:
            what: begins with "compare ".
        """
        if what not in self.compared:
            self.compared[what] = fingerprint(what, [repr(mark)])
        everyone = self.allgather(mark, what)
        if self.guard is not None:
            self.guard.leave_guests(everyone, f"it would {what.removeprefix('compare ')} differently")
        return everyone

    def allgather_now(self, value: Any) -> list[Any]:
        """Every rank's value as by `allgather`, without a meeting: for ranks that know already that all are here."""
        if self._comm is None:
            return [value]
        with self._lock:
            return self._comm.allgather(value)

    def scatter(self, values: Sequence[Any] | None, what: str, root: int = 0) -> Any:
        """Give each rank its own of `root`'s values, one picklable object (below 2 GB) for each; others pass None.

        Args:
            what: the purpose, see `barrier`.
        """
        if self._comm is None:
            assert values is not None
            return values[0]
        with self._lock:
            self.barrier(what)
            return self._comm.scatter(values, root)

    @_guarded
    def allgather_rows(self, array: np.ndarray, what: str) -> np.ndarray:
        """Join arrays along the first axis, in the order of ranks; rows may differ between ranks, the rest may not.

        Args:
            array: of any dtype and one dimension or more; of (rows, …).
            what: the purpose, see `barrier`.
        """
        if self._comm is None:
            return array
        array = np.ascontiguousarray(array)
        with self._lock:
            self.barrier(what, [f"{array.dtype} {array.shape[1:]}"])
            if array.dtype.hasobject:
                return np.concatenate(self._comm.allgather(array))
            return self._comm.allgather_rows(array)[0]

    @_guarded
    def alltoall_rows(self, array: np.ndarray, splits: Sequence[int], what: str) -> tuple[np.ndarray, list[int]]:
        """Give each rank rows of an array; what this rank receives, in the order of ranks, and the rows from each.

        Args:
            array: of any dtype without objects; of (rows, …), the same but for the number of rows on every rank.
            splits: one number of rows for each rank, 0 or more; their sum is `len(array)`.
            what: the purpose, see `barrier`.
        """
        if self._comm is None:
            return array, list(splits)
        with self._lock:
            self.barrier(what, [f"{array.dtype} {array.shape[1:]}"])
            return self._comm.alltoall_rows(np.ascontiguousarray(array), splits)

    @_guarded
    def swap(self, data: np.ndarray, to: int, received: np.ndarray, source: int, what: str) -> None:
        """Send an array to one rank, and receive one from another. All ranks must call.

        Args:
            data, received: flat and contiguous. what: the purpose, see `barrier`.
        """
        with self._lock:
            self.barrier(what)
            self._connected.sendrecv(data, to, received, source)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same color. Every rank must call it.

        Whoever asked for it may give it back; what is left is given back with the world.

        Args:
            color: 0 or more; None for a rank that takes part in none, which gets None.
            key: the order of the ranks in it; by rank where that is equal.
        """
        comm = self._connected.split(color, key)
        if comm is not None:
            self._split = [*(one for one in self._split if not one.is_free), comm]
        return comm

    def split_all(self) -> Communicator:
        """A communicator of all ranks, for messages that must not meet those of others. Every rank must call it."""
        comm = self.split(0, self.rank)
        assert comm is not None
        return comm

    def split_node(self) -> tuple[Communicator, bool]:
        """A communicator of the ranks of this node, and whether it is one of its own, to be freed. Collective.

        On one node, where ranks may die, it is that of the world: Open MPI 5.0.11 was seen to crash in ranks that are
        in MPI_Comm_split when another one dies.
        """
        if self.guard is not None and len(self.nodes) == 1:
            return self._connected, False
        comm = self.split(self.node)
        assert comm is not None
        return comm, True

    def run_atomically(self, operation: Callable[[], _Result]) -> _Result:
        """Run several collectives as one: if a rank dies in one of them, the others run them all again.

        Args:
            operation: ends in a collective in which every rank waits for every other; gives the same on every rank.
        """
        return operation() if self.guard is None else self.guard.run(operation)

    def revoke(self) -> None:
        """Let no rank wait any longer in a communicator of this world."""
        if self.exchange is not None:
            self.exchange.revoke()
        for comm in (self._connected, *self._split):
            with contextlib.suppress(CommunicationError):
                comm.revoke()

    def shrink(
        self, said: Any, last: Callable[[list[Any]], int | None], value: Any
    ) -> tuple[list[int], list[Any], Any]:
        """Go on without the ranks that have died; every rank that is left must call. Needs `can_shrink`.

        Args:
            said: what each tells the others, any picklable object.
            last: from what all have said, the rank whose `value` all shall have; None for none. The same on every
                rank.
            value: any picklable object.

        Returns:
            The former ranks of those that are left; what each has said; the value of the rank that `last` named.
        """
        self.revoke()
        comm = self._connected
        while True:
            comm = comm.shrink()
            everyone: list[Any] = []
            shared, complete = None, False
            with contextlib.suppress(CommunicationError):
                everyone = comm.allgather((self.rank, self.host, said))
                root = last([words for _, _, words in everyone])
                if root is not None:
                    shared = comm.bcast(value if comm.rank == root else None, root)
                complete = True
            with contextlib.suppress(CommunicationError):
                if comm.agree(complete) and complete:
                    break
            with contextlib.suppress(CommunicationError):
                comm.revoke()
        self._split, self.exchange = [], None
        self.generation += 1
        self._settle(comm, [host for _, host, _ in everyone])
        self.first_ranks = [self.first_ranks[rank] for rank, _, _ in everyone]
        return [rank for rank, _, _ in everyone], [words for _, _, words in everyone], shared

    def extend(self, bridge: Any, said: Any, leader: int = 0) -> list[Any]:
        """Become one world with another one, of a rank that has come; every rank of both must call. Needs `can_grow`.

        Args:
            bridge, leader: see `Communicator.extend`.
            said: what each tells the others, any picklable object.

        Returns:
            What each has said.

        Raises:
            CommunicationError: a rank is gone, and nothing has changed.
        """
        comm = self._connected.extend(bridge, leader)
        everyone: list[Any] = []
        with contextlib.suppress(CommunicationError):
            _greet(comm)
            everyone = comm.allgather((self.host, self.first_ranks[self.rank], self.generation, said))
        complete = False
        with contextlib.suppress(CommunicationError):
            complete = comm.agree(bool(everyone))
        if not complete:
            with contextlib.suppress(CommunicationError):
                comm.revoke()
            raise CommunicationError("a rank is gone.")
        with contextlib.suppress(CommunicationError):
            self.close_exchange()
        self._split, self.exchange = [], None
        self.generation = 1 + max(generation for _, _, generation, _ in everyone)
        self._settle(comm, [host for host, _, _, _ in everyone])
        self.first_ranks = [first for _, first, _, _ in everyone]
        return [words for _, _, _, words in everyone]

    def leave_together(self) -> None:
        """Wait until all ranks that are left are about to end, so that none is taken for dead where others still hear
        of the last thing that they did together. Needs `can_shrink`."""
        try:
            wait(self._connected.ibarrier())
        except CommunicationError:  # another one has died, or has seen one die, and is gone
            with contextlib.suppress(CommunicationError):
                self._connected.revoke()

    def subset(self, ranks: Sequence[int], host: str = "") -> World | None:
        """A world of some of these ranks; None on a rank that is not among them. Every rank must call it.

        Args:
            ranks: in the order that they shall have.
            host: see `World`.
        """
        if self._comm is None:
            return self
        member = self.rank in ranks
        comm = self._comm.split(0 if member else None, ranks.index(self.rank) if member else 0)
        return None if comm is None else World(comm, host)

    def part(self, color: int, key: int) -> World:
        """A world of the ranks that give the same color, as `split` has it. Every rank must call it.

        It is a part of this one, and goes on as it is where ranks of other colors die.

        Args:
            color: 0 or more.
            key: the order of the ranks in it; by rank where that is equal.
        """
        comm = None if self._comm is None else self._comm.split(color, key)
        world = World(comm, self.host)
        world.part_of = self
        world.log, world.log_to = self.log, self.log_to
        return world

    def free(self) -> None:
        """Give the communicators back; for worlds that came from `subset`. Collective."""
        self.close_exchange()
        if self.center is not None:
            self.center.close()
        if self._comm is not None:
            if self.within is not None:
                self.within[1].world.free()
            for comm in (*self._split, self._comm):
                comm.free()
            self._split, self._comm = [], None

    def close_exchange(self) -> None:
        """Give back what moves gradients. Collective."""
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None

    def abort(self, code: int) -> None:
        """End every rank of the job at once with this exit code. Does not return under MPI."""
        if self.guard is not None:
            self.guard.end(code)
        if self._comm is not None:
            self._comm.abort(code)
        os._exit(code)


def _greet(comm: Communicator) -> None:
    """Let the last rank have a connection to each other one, by whose end MPI hears of a host that is out of reach."""
    last, nothing = comm.size - 1, np.empty(0, np.uint8)
    others = range(last) if comm.rank == last else [last]
    receives = [comm.irecv(nothing, other, 0) for other in others]
    wait_all([*receives, *(comm.isend(nothing, other, 0) for other in others)])


def _print(line: str) -> None:
    print(f"matex_tf: {harmless(line)}", file=sys.stderr, flush=True)


def started() -> bool:
    """Whether this process was started as one of several ranks."""
    return registry.started()


# The world of the process, as MPI has one: a script asks for its rank without an argument, and so does what Keras,
# TensorFlow and its threads call. What is called by us is given its world.
_current: World | None = None
_of_thread = threading.local()  # `world`: what `alone` has put in its place for one thread


def init() -> World:
    """The world of this process: all ranks of the job, or one rank if no launcher started it.

    Raises:
        MissingPackage: what connects the ranks cannot be loaded, or is not the right one.
    """
    if _current is None:
        adopt(World(registry.connect()))
    return current()


def arrive() -> tuple[World, Any, Any]:
    """In a program that a running job has started by `World.start`: a world of this rank alone, the bridge to the rank
    that has started it, and what that tells."""
    comm, bridge, told = registry.arrive()
    return World(comm), bridge, told


def finalize() -> None:
    """End what connects the ranks; this process leaves without Python's own end. Collective."""
    registry.finalize()


def adopt(world: World | None) -> None:
    """Let this be the world of the process, in place of the one that `init` would make; None: let `init` make it."""
    global _current
    _current = world


def current() -> World:
    """The world that collectives use now, in this thread."""
    return getattr(_of_thread, "world", None) or of_job()


def of_job() -> World:
    """The world of the process, also in a thread that is `alone`."""
    return _current if _current is not None else init()


def is_alone() -> bool:
    """Whether this thread is `alone`."""
    return getattr(_of_thread, "world", None) is not None


def forked() -> bool:
    """Whether a rank has forked this process, which is none of the job: MPI belongs to the process that began it."""
    return _current is not None and _current.forked_from is not None


def _leave_job() -> None:
    """In a process that was forked: be alone from now on."""
    if _current is not None:
        world = World(host=_current.host)
        world.forked_from = _current.forked_from or _current
        world.log, world.log_to = _current.log, _current.log_to
        adopt(world)


os.register_at_fork(after_in_child=_leave_job)


@contextlib.contextmanager
def use(world: World) -> Iterator[World]:
    """Let another world, such as a `subset`, be the current one inside a `with` block."""
    before = _current
    adopt(world)
    try:
        yield world
    finally:
        adopt(before)


@contextlib.contextmanager
def alone() -> Iterator[World]:
    """Let this thread be the only rank of a world inside a `with` block, as the Python of a step that is traced for one
    rank is. Threads beside it, such as those that make batches, still have the world of the job."""
    before, world = getattr(_of_thread, "world", None), World(host=of_job().host)
    _of_thread.world = world
    try:
        yield world
    finally:
        _of_thread.world = before


def _asked_for() -> World:
    """What a script is told of: in a process that it has forked, the rank that has."""
    return current().forked_from or current()


def rank() -> int:
    """This rank, 0 to `size() - 1`."""
    return _asked_for().rank


def size() -> int:
    """The number of ranks that train together."""
    return _asked_for().size


def local_rank() -> int:
    """This rank among the ranks of its node."""
    return _asked_for().local_rank
