"""Where the ranks of a node find their server: a socket in a directory of the user's. The first rank starts the server.

The directory has a name that only the ranks of one job on one node have in common, and is removed as soon as all of
them have asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matex_tf.core import mismatch
from matex_tf.core.waiting import backoff
from matex_tf.errors import MatexError
from matex_tf.features.warm import messages, process, server, stand_in
from matex_tf.features.warm.process import Refused
from matex_tf.launch import lifetime
from matex_tf.storage.private_directory import Folder

_SOCKET = "socket"
#: Seconds after which a rank no longer waits for its server, or for another that looks for it, and imports for itself.
_LOCK_SECONDS = 60.0
_WAIT_SECONDS = server.LOAD_SECONDS + 60.0


def enter(imports: Callable[[], object], expected: int) -> None:
    """Be a rank that has imported: a process that the server of this node has forked. Returns in that process.

    The process that calls stands in for it from then on, and never returns.

    Args:
        imports: what the server imports.
        expected: ranks of this node; 0 where that is not known.

    Raises:
        Refused: it cannot be; this process has to import for itself.
    """
    if not hasattr(os, "pidfd_open"):
        raise Refused("this system cannot watch a process (pidfd_open)")
    said, descriptors = process.describe()
    launcher, starter, begin = lifetime.launcher(), os.getpid(), -1
    listener: socket.socket | None = None
    try:
        folder = _folder(launcher)
        _lock(folder)
        connection = _connect(folder)
        if connection is None:
            listener, path = _listen(folder), os.readlink(f"/proc/self/fd/{folder}")
            if os.fork():
                listener.close()
                listener, connection = None, _connect(folder)
        if listener is None:
            fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)
        if listener is None:
            ready, begin = os.pipe()
            _ask(connection, said, [*descriptors, ready])
            os.close(ready)
    except OSError as error:
        if listener is not None:  # there is no memory for another process
            listener.close()
        with contextlib.suppress(OSError):
            _tidy(launcher)
        raise Refused(f"the server of this node does not answer ({error})") from None
    except MatexError as error:
        raise Refused(str(error)) from None
    if connection is not None:
        stand_in.stand_in(connection, begin)
    assert listener is not None
    try:
        os.close(descriptors[0])
        _begin_server(starter)
        reason = server.load(imports)
        _leave_starter()
        forked = server.Server(
            listener,
            lambda wanted: reason or process.difference(wanted, said),
            expected,
            launcher,
            lambda: _remove(path),
        ).serve()
    except BaseException:  # this process must never go on as if it were a rank
        _remove(path)
        os._exit(1)
    forked.begin()


def _ask(connection: socket.socket | None, said: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Ask the server for a process, and wait until it is there."""
    if connection is None:
        raise ConnectionRefusedError("it has ended as it began")
    messages.send(connection, said, descriptors)
    os.close(descriptors[0])
    stand_in.wait_for_start(connection)


def _folder(launcher: int) -> int:
    """The directory of the ranks that a launcher has started on this node for one job; open."""
    what, detail = mismatch.fingerprint(lifetime.job(launcher), list(map(str, process.namespaces())))
    name = f"matex-warm-{what:08x}{detail:08x}"
    with Folder(Path(tempfile.gettempdir()), [name], "TMPDIR") as made:
        return os.open(made.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(folder: int) -> None:
    """Be the one rank that looks for the server; another has the directory for milliseconds only."""
    begin = time.perf_counter()
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.perf_counter() - begin > _LOCK_SECONDS:
                raise OSError("another rank of this node has stopped as it looked for it") from None
            backoff(begin)


def _tidy(launcher: int) -> None:
    """Remove the directory, if it is that of a server which has ended."""
    folder = _folder(launcher)
    try:
        _lock(folder)
        connection = _connect(folder)
        if connection is not None:
            connection.close()
        else:
            _remove(os.readlink(f"/proc/self/fd/{folder}"))
    finally:
        os.close(folder)


def _connect(folder: int) -> socket.socket | None:
    """A connection to the server; None where there is none."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_WAIT_SECONDS)
    try:
        connection.connect(_address(folder))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _listen(folder: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_SOCKET, dir_fd=folder)  # of a server that was killed
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_address(folder))
    listener.listen(4096)
    return listener


def _address(folder: int) -> str:
    """The path of the socket; one in a directory of a long name would not fit an address."""
    return f"/proc/self/fd/{folder}/{_SOCKET}"


def _begin_server(starter: int) -> None:
    """What a server does first: it belongs to no rank, and has nothing of the launcher's."""
    lifetime.begin_tied(number=signal.SIGKILL, parent=starter)()  # until all is imported
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in process.inheritable():
        if number > 2:
            os.close(number)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in process.asked_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for name in [name for name in os.environ if name.startswith(process.LAUNCHERS)]:
        del os.environ[name]


def _leave_starter() -> None:
    """All is imported: from now on the rank that has started the server may end before the others."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    lifetime.untie()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(path, _SOCKET))
    with contextlib.suppress(OSError):
        os.rmdir(path)
