"""What ties the processes of a job to the one that started them: they end with it, however it ends.

Two ties, for SIGKILL leaves nobody time to clean up. The kernel sends mpirun a SIGTERM once `matex-tf run` is gone,
and mpirun then ends its daemons and ranks on all hosts as for any SIGTERM. Each rank watches the process that started
it (mpirun, its daemon on another host, or what a batch system has in their place) and ends once that is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from matex_tf.core import namespaces, starting

_PR_SET_PDEATHSIG = 1
_SHARED = "/dev/shm"
_OPEN_MPI, _MPICH = f"{_SHARED}/sm_segment.", f"{_SHARED}/mpich_shm_"  # seen in Open MPI 5.0.11 and MPICH 5.0.2
_PAUSE = 0.5  # between looks at the parent, where the kernel has no better way
#: What tells a rank from others of its machine. A shell that a launcher has started in front of it has the same.
_OWN = ("PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def begin_tied(
    before: Callable[[], object] = lambda: None, number: int = signal.SIGTERM, parent: int = 0
) -> Callable[[], None]:
    """What a child of this thread does first, for `preexec_fn` of subprocess: it gets SIGTERM when this thread ends, be
    it by SIGKILL. Without effect where the kernel is not Linux.

    Args:
        before: what it does first.
        number: another signal that it gets.
        parent: this process, where the child is the one that calls.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    parent = parent or os.getpid()

    def tie() -> None:
        before()
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))
            if os.getppid() != parent:  # it has ended before the kernel was asked
                os._exit(128 + number)

    return tie


def untie() -> None:
    """This process no longer ends with its parent."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(0))


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A process that ends with this thread. Args: as of `subprocess.Popen`."""
    return subprocess.Popen(command, preexec_fn=begin_tied(), **options)


def end_with_launcher() -> None:
    """From now on this rank ends, by SIGKILL, once the process that started it is gone; with it what it has started
    in its process group, such as workers that read data."""
    parent = starting.parent()
    launcher, own = _launcher(parent)
    descriptor = -1
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(launcher)
        except ProcessLookupError:
            _end(own)
        except OSError:
            pass  # the parent is looked at instead
    threading.Thread(target=_watch, args=(descriptor, parent, own), name="matex_tf launcher", daemon=True).start()


def launcher(parent: int = 0) -> int:
    """The process of the launcher that started this rank, on this machine. Args: parent: whose child this is, where it
    was forked by a server."""
    return _launcher(parent or os.getppid())[0]


def job(launcher: int) -> str:
    """What the ranks have in common that a launcher has started on this node for one job, and no others."""
    began = namespaces.stat(launcher)[19:20]
    return f"{namespaces.machine()} {launcher} {''.join(began)} {starting.given('PMIX_NAMESPACE')} {os.geteuid()}"


def _watch(descriptor: int, parent: int, own: list[int]) -> None:
    import select

    if descriptor >= 0:
        while not select.select([descriptor], [], [])[0]:
            continue
    else:
        while starting.parent() == parent and os.path.exists(f"/proc/{parent}"):
            time.sleep(_PAUSE)
    _end(own)


def _end(own: list[int]) -> None:
    with contextlib.suppress(OSError):
        remove_own_segments(_OPEN_MPI, _MPICH)
    if os.getpgrp() in own:  # and not that of a launcher which has made none
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def ends(processes: Iterable[int]) -> list[int]:
    """Descriptors that can be read from once a process has ended, of those that there are; none where the kernel has no
    such thing."""
    found = []
    for process in processes if hasattr(os, "pidfd_open") else ():
        with contextlib.suppress(OSError):
            found.append(os.pidfd_open(process))
    return found


def remove_own_segments(*starts: str) -> None:
    """Remove the files of MPI's shared memory that this rank has mapped; it is about to end, and with it the others.

    mpirun of Open MPI does that itself where it still can, MPICH's never does.

    Args:
        starts: of their paths; MPICH's where none are given.
    """
    for path in segments("self", *(starts or (_MPICH,))):
        with contextlib.suppress(OSError):
            os.unlink(path)


def segments(process: str, *starts: str) -> set[str]:
    """The files of MPI's shared memory that a process has mapped.

    Args:
        starts: of their paths; those of all MPIs where none are given.
    """
    return {path for path in _mapped(process) if path.startswith(starts or (_OPEN_MPI, _MPICH))}


def remove_unused_segments() -> None:
    """Remove the files of MPICH's shared memory that this user's ranks have left on this machine: those that nobody
    has open or mapped. Ranks that were killed leave theirs, and mpirun of MPICH does too."""
    left = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_SHARED):
            path = os.path.join(_SHARED, name)
            with contextlib.suppress(OSError):
                if path.startswith(_MPICH) and os.lstat(path).st_uid == os.geteuid():
                    left.add(path)
    if not left:
        return
    for process in filter(str.isdigit, os.listdir("/proc")):
        left -= opened(process)  # first: what is opened is mapped next, and then closed
        left -= _mapped(process)
    for path in left:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _mapped(process: str) -> set[str]:
    """The files that a process has mapped; none where that cannot be known, of another user's."""
    found: set[str] = set()
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file,
    ):
        found.update(line.split(maxsplit=5)[-1].rstrip("\n") for line in file if _SHARED in line)
    return found


def opened(process: str) -> set[str]:
    """What a process has open, as the kernel names it: files by their paths; none where that cannot be known."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{process}/fd/{number}"))
    return found


def _launcher(parent: int) -> tuple[int, list[int]]:
    """The closest ancestor that is not of this rank itself, and the processes that are: this one, and a shell in front
    of it, which does not end with the launcher."""
    mine = [starting.given(name) for name in _OWN]
    own, process = [os.getpid()], parent
    while process > 1:
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                pairs = dict(word.partition("=")[::2] for word in file.read().decode(errors="replace").split("\0"))
            if [pairs.get(name) for name in _OWN] != mine:
                break
            above = int(namespaces.stat(process)[1])
        except (OSError, IndexError):  # it belongs to somebody else, or has ended
            break
        own.append(process)
        process = above
    return process, own
