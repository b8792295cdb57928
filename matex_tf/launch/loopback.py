"""A job on one machine listens to nobody else.

Open MPI listens on all addresses of a machine, also where all ranks are on it, and no parameter of it says otherwise
(5.0.11: `prte_if_include` and `btl_tcp_if_include` choose what is announced, not what is listened on). MPICH's mpirun
does so too. So their sockets are tied to the loopback interface here, which the kernel allows whoever owns them:
SO_BINDTODEVICE, from Linux 5.7 on without any privilege. What reaches them then are connections to 127.0.0.1, so that
is what ranks must announce to one another: `PARAMETER`, which `matex-tf run` gives to jobs on one machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: In the environment of ranks that talk to one another over the loopback interface, where it is not shared memory.
PARAMETER, INTERFACE = "OMPI_MCA_btl_tcp_if_include", "lo"

_PIDFD_GETFD = 438  # Linux 5.6: the same number on all architectures; Python has no name for it
_SO_BINDTODEVICE = 25
_LOOPBACK = INTERFACE.encode()
_PAUSE = 0.02
_SECONDS_MORE = 1.0


def narrow_own() -> list[str]:
    """Let sockets of this process that listen do so for this machine alone; what still listens for others, as
    ADDRESS:PORT, where the kernel does not allow that."""
    return _narrow("self", os.dup)  # by its number /proc of another namespace may know another process


def narrow(process: int) -> list[str]:
    """Let sockets that listen in a process, which this one may trace, do so for this machine alone.

    Raises:
        OSError: there is no such process, or the kernel does not let this one have its sockets.
    """
    pidfd = os.pidfd_open(process)
    call = ctypes.CDLL(None, use_errno=True).syscall

    def take(descriptor: int) -> int:
        taken = call(ctypes.c_long(_PIDFD_GETFD), ctypes.c_long(pidfd), ctypes.c_long(descriptor), ctypes.c_long(0))
        if taken < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(taken)

    try:
        return _narrow(process, take)
    finally:
        os.close(pidfd)


def narrow_when_up(process: int) -> None:
    """Call `narrow` in a thread, for an mpirun that is starting: it listens before it starts ranks."""
    if hasattr(os, "pidfd_open"):
        threading.Thread(target=_narrow_when_up, args=(process,), name="matex_tf loopback", daemon=True).start()


def _narrow_when_up(process: int) -> None:
    end = float("inf")
    with contextlib.suppress(OSError):  # it has ended, or the kernel forbids it
        while time.monotonic() < end:
            narrow(process)
            if end == float("inf") and _children(process):
                end = time.monotonic() + _SECONDS_MORE
            time.sleep(_PAUSE)


def _children(process: int) -> bool:
    return any(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children"))


def _narrow(process: int | str, take: Callable[[int], int]) -> list[str]:
    left = []
    for line in _sockets(process, take):
        if not _listens(line):
            continue
        try:
            line.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, _LOOPBACK)
        except OSError:
            address, port = line.getsockname()[:2]
            left.append(f"{address}:{port}")
    return left


def _sockets(process: int | str, take: Callable[[int], int]) -> Iterator[socket.socket]:
    for name in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            if not os.readlink(f"/proc/{process}/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=take(int(name))) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6):
                    yield line


def _listens(line: socket.socket) -> bool:
    """Whether others could reach it: not on the loopback interface alone already."""
    address, port = line.getsockname()[:2]
    if not port or address == "::1" or address.startswith("127."):
        return False
    if line.getsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, 16).rstrip(b"\0") == _LOOPBACK:
        return False
    if line.type == socket.SOCK_STREAM:
        return bool(line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    try:
        line.getpeername()
    except OSError:
        return line.type == socket.SOCK_DGRAM
    return False
