"""Memory that the ranks of a node share: files in /dev/shm that have no name once every rank has mapped them.

Without a name nothing stays behind, however a rank ends; the kernel frees the memory with the last process that maps
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.core import namespaces
from matex_tf.core.world import World
from matex_tf.errors import MatexError, RankLost

DIRECTORY = "/dev/shm"


class OutOfSharedMemory(MatexError):
    """The shared memory of a node is too small."""


class Segment:
    """A piece of shared memory, mapped by every rank of the node. It is unmapped when its last view is gone."""

    def __init__(self, mapped: mmap.mmap):
        self._mapped = mapped
        self.size = len(mapped)
        holder = ctypes.c_char.from_buffer(mapped)
        self.address = ctypes.addressof(holder)

    def words(self) -> memoryview:
        """The memory as 32-bit words."""
        return memoryview(self._mapped).cast("B").cast("I")

    def bytes(self) -> np.ndarray:
        """The memory as uint8; each call gives an array of its own, which lives as long as any view of it."""
        return np.frombuffer(memoryview(self._mapped), np.uint8)


class NodeMemory:
    """The ranks of a world that share a node.

    Attributes:
        ranks: their ranks in the world, in order; `rank` and `size` are this one's place and their number.
    """

    def __init__(self, world: World):
        """Collective over the world."""
        self.ranks: Sequence[int] = world.nodes[world.node]
        self.rank, self.size = world.local_rank, world.local_size
        self.host = world.host
        self._directory = DIRECTORY
        self._comm, self._own = world.split_node()
        self._processes = [_watched(*mark) for mark in self._comm.allgather(namespaces.process())]

    def segment(self, size: int) -> Segment:
        """New shared memory, filled with zeros. Collective over the node.

        Args:
            size: in bytes.

        Raises:
            OutOfSharedMemory: on every rank of the node.
        """
        # A file without a name is found through the first rank's descriptor; a container may forbid that, or mean
        # another process by its number.
        for named in (False, True):
            handle, path, mark, failure = -1, "", None, ""
            if self.rank == 0:
                try:
                    handle, path = self._create(size, named)
                    mark = namespaces.file(handle)
                except OSError as error:
                    failure = self._describe(size, error)
            path, mark, failure = self._comm.bcast((path, mark, failure))
            mapped = None
            if not failure:
                rank = self.ranks[self.rank]
                try:
                    mapped = _map(path, size, mark)
                except OSError as error:
                    failure = f"{path} on {self.host} cannot be mapped by rank {rank}: {error.strerror}."
                if not failure and mapped is None:
                    failure = (
                        f"{path} is another file for rank {rank} than for rank {self.ranks[0]}, though both are on "
                        f"{self.host}: containers of one job share {self._directory} (docker run --ipc=host), or have "
                        "a --hostname each."
                    )
            failures = self._comm.allgather(failure)
            if handle >= 0:
                os.close(handle)
                if named:
                    os.unlink(path)
            if not any(failures):
                assert mapped is not None
                return Segment(mapped)
        raise OutOfSharedMemory(next(filter(None, failures)))

    def still_there(self, rank: int) -> None:
        """Raise RankLost when the process of a local rank has ended."""
        process = self._processes[rank]
        if process is not None and process.poll(0):
            raise RankLost(
                f"rank {self.ranks[rank]} on {self.host} has ended; the exchange waits for it. A job with "
                "--faults shrink or --faults restart survives that."
            )

    def kill(self, rank: int) -> None:
        """End the process of a local rank that is stuck."""
        process = self._processes[rank]
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Give the communicator back."""
        if self._own:
            self._comm.free()
        self._processes = []

    def _create(self, size: int, named: bool) -> tuple[int, str]:
        """A new file: a descriptor of it, and a path under which the other ranks find it."""
        if named:
            handle, path = tempfile.mkstemp(prefix=f"matex-{os.getuid()}-", dir=self._directory)
        else:
            handle = os.open(self._directory, os.O_TMPFILE | os.O_RDWR, 0o600)
            path = f"/proc/{os.getpid()}/fd/{handle}"
        try:
            # A sparse file would be granted whatever the disk has, and kill with SIGBUS who writes to it.
            os.posix_fallocate(handle, 0, size)
        except OSError:
            os.close(handle)
            if named:
                os.unlink(path)
            raise
        return handle, path

    def _describe(self, size: int, error: OSError) -> str:
        free = 0
        with contextlib.suppress(OSError):
            found = os.statvfs(self._directory)
            free = found.f_bavail * found.f_frsize
        return (
            f"{self._directory} on {self.host} has no room for {_megabytes(size)} ({error.strerror}; "
            f"{_megabytes(free)} are free). A container can be given more (docker run --shm-size=1g)."
        )


class _Process:
    """Another process, seen through a descriptor: that tells an ended process from one that took over its number."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        self.poll = poll.poll

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _watched(machine: str, space: int, pid: int) -> Any:
    """None where the process cannot be seen (another container, where its number is another's here), or is this one."""
    if (machine, space) != namespaces.process()[:2] or pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return _Process(os.pidfd_open(pid))
    except OSError:
        return None


def _map(path: str, size: int, mark: tuple[str, int, int]) -> mmap.mmap | None:
    """None where the path is another file here than where it was made."""
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # whatever it may be, it is not waited for
    try:
        if namespaces.file(handle) != mark:
            return None
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return mmap.mmap(handle, size, flags=flags)
    finally:
        os.close(handle)


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.3g} MB"
