"""One user namespace for the ranks of a node, in which each has mounts of its own.

In one of its own, a rank may not read another's memory, and MPI copies messages once more. So the first rank that comes
makes it, and hands it to those that come later; they may enter it, since they are of the same user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator

from matex_tf.layer import kernel
from matex_tf.storage.private_directory import user_of

_SECONDS = 20.0  # for all ranks of a node to be there; whoever comes later has a namespace of its own
_PAUSE = 0.002
_NAMESPACE = "/proc/self/ns/user"


def enter(job: str, expected: int) -> None:
    """Have mounts of one's own, in the user namespace of this job on this node where one is needed.

    Args:
        job: a short mark that the ranks of the job on this node have in common; `expected`: how many there are, 0 if
            that is not known.

    Raises:
        OSError: the kernel does not allow it.
    """
    if expected < 2 or kernel.can_mount():
        return kernel.leave_mounts()
    until = time.monotonic() + _SECONDS
    while (listener := _listen(job)) is None:
        with _of_the_first(job, until) as namespace:
            if namespace is not None:
                return kernel.leave_mounts(namespace)
        if time.monotonic() > until:
            return kernel.leave_mounts()
        time.sleep(_PAUSE)  # the first is there and does not listen yet
    with listener:
        kernel.leave_mounts()
        _hand_out(listener, expected - 1, until)


def _listen(job: str) -> socket.socket | None:
    """A socket that has no file; None where another rank has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address(job))
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    listener.listen(4096)
    return listener


def _hand_out(listener: socket.socket, count: int, until: float) -> None:
    namespace = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while count and (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                if user_of(connection) == os.geteuid():
                    socket.send_fds(connection, [b"1"], [namespace])
                    count -= 1
    finally:
        os.close(namespace)


@contextlib.contextmanager
def _of_the_first(job: str, until: float) -> Iterator[int | None]:
    """The namespace that the first rank hands out, open; None where nobody does, or it is another user's."""
    found: list[int] = []
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(max(_PAUSE, until - time.monotonic()))
        connection.connect(_address(job))
        if user_of(connection) == os.geteuid():
            found = socket.recv_fds(connection, 1, 1)[1]
    try:
        yield found[0] if found else None
    finally:
        for each in found:
            os.close(each)


def _address(job: str) -> str:
    return f"\0matex-users-{job}"
