"""The server of a node: a process that has imported what the ranks need, and forks one for each that asks.

It has one thread, and so can be forked. It ends with its last rank, with the launcher of the job, or when nobody has
asked for a while; a rank ends with it. What a rank would not get from it as from Python itself is a reason to refuse:
the rank then imports for itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from matex_tf.core.waiting import backoff
from matex_tf.features.warm import messages, process
from matex_tf.launch import lifetime
from matex_tf.storage import private_directory

#: Seconds in which all must be imported, on a slow file system too. A rank that waits gives up a little later.
LOAD_SECONDS = 300
_IDLE_SECONDS = 60.0  # without a rank, while some of the node have not asked yet
_ASK_SECONDS = 30.0  # for a rank that has connected to say what it wants
_GRACE_SECONDS = 5.0  # for ranks to clean up when the launcher is gone

_END_SECONDS = 1.0  # for threads that have ended: the kernel shows them a little longer than whoever has joined them
_OF_JEMALLOC = "jemalloc_bg_thd"

#: Where devices are, of NVIDIA, AMD and others: what has one open must not be forked.
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")


@dataclass
class Forked:
    """A process as the server has forked it: what it shall be, and the connection of who asked for it.

    The last of the descriptors is that of a pipe, from which it gets a byte when its signals are handed on.
    """

    wanted: Mapping[str, Any]
    descriptors: list[int]
    connection: socket.socket

    def begin(self) -> None:
        """Become what was asked for, and say so; ends where that cannot be. Returns once signals are handed on."""
        ready = self.descriptors.pop()
        try:
            try:
                process.become(self.wanted, self.descriptors)
            except Exception as reason:  # of what kind ever: the rank can import for itself
                messages.send(self.connection, {"refused": str(reason)})
                os._exit(0)
            messages.send(self.connection, {"started": os.getpid()})
            if not os.read(ready, 1):
                os._exit(1)
        except OSError:  # who asked for it is gone
            os._exit(1)
        os.close(ready)
        self.connection.close()


class Server:
    """Forks processes that are asked for on a socket.

    Args:
        listener: of the socket.
        difference: from what is asked for, why it cannot be had; empty where it can.
        expected: how many will ask; 0 where that is not known.
        launcher: the process with which it ends; 0 for none.
        settled: called once no more can come, and at the end: removes the socket.
        stays: whether it goes on without ranks until it is ended.
    """

    def __init__(
        self,
        listener: socket.socket,
        difference: Callable[[Mapping[str, Any]], str],
        expected: int = 0,
        launcher: int = 0,
        settled: Callable[[], None] = lambda: None,
        stays: bool = False,
    ):
        self._listener, self._difference, self._expected, self._settled = listener, difference, expected, settled
        self._came, self._deadline, self._stays = 0, 0.0, stays
        self._children: dict[int, socket.socket] = {}
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ)
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._events.register(self._woken, selectors.EVENT_READ)
        self._launcher = os.pidfd_open(launcher) if launcher else -1
        if launcher:
            self._events.register(self._launcher, selectors.EVENT_READ)

    def serve(self) -> Forked:
        """Fork what is asked for. Returns in the forked processes, and there alone: the server itself ends here."""
        gc.collect()
        gc.freeze()  # what was imported stays, and its pages are shared
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        last = time.monotonic()
        while True:
            for key, _ in self._events.select(self._seconds(last)):
                if key.fileobj is self._listener:
                    forked = self._accept()
                    if forked is not None:
                        return forked
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.fileobj == self._launcher:
                    self._events.unregister(self._launcher)
                    self._deadline = time.monotonic() + _GRACE_SECONDS
                else:
                    self._pass_on(key.fileobj)  # type: ignore[arg-type]
                last = time.monotonic()
            self._reap()
            if self._deadline and time.monotonic() >= self._deadline:
                for pid in self._children:
                    os.kill(pid, signal.SIGKILL)
            all_came = self._expected and self._came >= self._expected
            idle = time.monotonic() - last >= _IDLE_SECONDS
            if not self._children and not self._stays and (all_came or idle or self._deadline):
                self._settled()
                os._exit(0)

    def _seconds(self, last: float) -> float | None:
        """How long nothing need be looked at."""
        if self._deadline:
            return max(0.05, self._deadline - time.monotonic())
        return None if self._children or self._stays else max(0.0, last + _IDLE_SECONDS - time.monotonic())

    def _accept(self) -> Forked | None:
        connection, _ = self._listener.accept()
        connection.settimeout(_ASK_SECONDS)
        descriptors: list[int] = []
        try:
            if private_directory.user_of(connection) != os.geteuid():
                connection.close()
                return None
            self._came += 1
            if self._came == self._expected:
                self._settled()
            wanted, descriptors = messages.receive(connection)
            reason = self._difference(wanted)
            pid = 0 if reason else self._fork()
            if reason:
                messages.send(connection, {"refused": reason})
            elif pid == 0:
                return Forked(wanted, descriptors, connection)
            else:
                self._children[pid] = connection
                self._events.register(connection, selectors.EVENT_READ)
        except OSError:  # it has ended, or there is no memory for another process
            connection.close()
        _close(descriptors)
        if connection not in self._children.values():
            connection.close()
        return None

    def _fork(self) -> int:
        """Fork; 0 in the new process, which ends with this one, and has nothing of what is this one's."""
        tie = lifetime.begin_tied(number=signal.SIGKILL)
        pid = os.fork()
        if pid == 0:
            tie()
            signal.set_wakeup_fd(-1)
            self._events.close()
            for other in (self._listener, self._woken, self._wake, *self._children.values()):
                other.close()
            if self._launcher >= 0:
                os.close(self._launcher)
        return pid

    def _pass_on(self, connection: socket.socket) -> None:
        """Signals for a process; or it is killed, because who asked for it is gone."""
        try:
            numbers = connection.recv(4096)
        except OSError:
            numbers = b""
        if not numbers:
            self._events.unregister(connection)
        for pid, other in self._children.items():
            if other is connection:
                for number in numbers or [signal.SIGKILL]:
                    os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self._children.pop(pid)
                with contextlib.suppress(KeyError):
                    self._events.unregister(connection)
                with contextlib.suppress(OSError):
                    messages.send(connection, {"status": status})
                connection.close()


def load(imports: Callable[[], object]) -> str:
    """Import, in a process that will be forked; returns why it must not be, empty where it can.

    Args:
        imports: does it.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LOAD_SECONDS)
    try:
        imports()
    except BaseException as error:
        return f"importing in the server of the node failed ({type(error).__name__}: {error})"
    finally:
        signal.alarm(0)
    return cannot_fork()


def cannot_fork() -> str:
    """Why this process must not be forked; empty where it can: it has one thread, and no device is open.

    OpenBLAS ends its threads before a fork, and starts new ones when it needs them; others' would be missing. That of
    jemalloc, which comes with pyarrow, only gives back memory, and jemalloc knows after a fork that it is gone.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    begin = time.perf_counter()
    while (more := len([name for name in _threads() if name != _OF_JEMALLOC]) - 1) > 0:
        if time.perf_counter() - begin > _END_SECONDS:
            return f"what was imported in the server of the node has started {more} threads"
        backoff(begin)
    devices = [path for path in _opened() if path.startswith(_DEVICES)]
    return f"what was imported in the server of the node has opened {devices[0]}" if devices else ""


def _threads() -> list[str]:
    """The names of the threads of this process."""
    found = []
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{name}/comm", encoding="utf-8") as file:
            found.append(file.read().strip())
    return found


def _opened() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _close(descriptors: Iterable[int]) -> None:
    """Close open files."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
