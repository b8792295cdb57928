"""What stands in a rank's place for its launcher, while the rank itself is a process that the server has forked."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from typing import NoReturn

from matex_tf.features.warm import messages
from matex_tf.features.warm.process import Refused, inheritable

#: What a process brings upon itself, and what cannot be caught.
_OWN = {
    *("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPIPE"),
    *("SIGTTIN", "SIGTTOU", "SIGTSTP"),
}

_ENDED = (
    "the server of this node, which had imported TensorFlow for its ranks, has ended: killed, or out of memory. Its "
    "ranks have ended with it. Start the job again, or without --warm-imports"
)


def wait_for_start(connection: socket.socket) -> None:
    """Wait until the server has forked the process.

    Raises:
        Refused: it has not.
        OSError: the server has ended, or says nothing in the time that the socket has.
    """
    said, _ = messages.receive(connection)
    if "refused" in said:
        raise Refused(said["refused"])


def stand_in(connection: socket.socket, begin: int) -> NoReturn:
    """Hand signals on to the process that was forked, and end as it ends.

    Args:
        connection: to the server; as it closes, the server kills the process.
        begin: of a pipe; the process waits for a byte from it.
    """
    connection.settimeout(None)  # the rank takes as long as its script
    for number in signal.valid_signals():
        named = isinstance(number, signal.Signals) and number.name not in _OWN
        if named and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda got, _: _hand_on(connection, got))
    with contextlib.suppress(OSError):  # it has ended, as its status will say
        os.write(begin, b"1")
    stderr = os.dup(2)
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in inheritable():  # what the rank closes shall be closed, such as its connection to the launcher
        os.dup2(nothing, file) if file <= 2 else os.close(file)
    try:
        said, _ = messages.receive(connection)
    except OSError:
        with contextlib.suppress(OSError):
            os.write(stderr, f"matex_tf: error: {_ENDED}\n".encode())
        _end_by(signal.SIGKILL)
    if os.WIFSIGNALED(said["status"]):
        _end_by(os.WTERMSIG(said["status"]))
    os._exit(os.WEXITSTATUS(said["status"]))


def _hand_on(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.send(bytes([number]))


def _end_by(number: int) -> NoReturn:
    """End by a signal, without a second core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    signal.pause()  # what comes first, the signal or this
    sys.exit(128 + number)
