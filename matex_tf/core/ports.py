"""By which addresses this host can be reached, and who knocks at its ports."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def addresses() -> list[str]:
    """The IPv4 addresses of this host, without those that mean this host everywhere."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)[20:24]))
    return [address for address in found if not address.startswith("127.")]


def connect(addresses: Iterable[str], port: int, seconds: float) -> socket.socket:
    """A connection to a port of a host, by the first of its addresses that answers.

    Args:
        addresses: of the host, the likeliest first.
        port: at which it listens.
        seconds: that each of them has to answer.

    Raises:
        OSError: none does.
    """
    failure = OSError("has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=seconds)
        except OSError as error:
            failure = error
    raise failure


#: Seconds that whoever connects has to show that it belongs to the job.
GREETING_SECONDS = 5.0

_MOST = 64
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
_PAUSE = 0.05


class Door:
    """A port at which anybody who can reach the host may knock, also by opening connections and saying nothing.

    Those who have not yet shown who they are have 64 descriptors, or a sixteenth of those that this process may have.
    Where there are more the oldest is sent away: whoever belongs to the job greets at once. One descriptor is kept
    back, so that somebody can be sent away where a script has used up the others.

    Args:
        listener: the port.
        make: makes of a connection what `accept` returns.
        end: ends that, also where a thread or a loop waits for it, who then closes it.

    Attributes:
        most: of whom nothing is known.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[socket.socket], Any] = lambda connection: connection,
        end: Callable[[Any], object] = lambda connection: connection.shutdown(socket.SHUT_RDWR),
    ):
        self._listener, self._make, self._end = listener, make, end
        self.most = max(4, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16))
        self._strangers: dict[Any, None] = {}  # the oldest first
        self._lock = threading.Lock()
        self._spare = _nothing()

    def accept(self) -> Any:
        """The next one who knocks, of whom `known` must be said later; None where there was no descriptor for it.

        Raises:
            OSError: the port is closed, or nobody knocks and it does not block.
        """
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
            self._send_away()
            return None
        made, oldest = self._make(connection), None
        with self._lock:
            self._strangers[made] = None
            if len(self._strangers) > self.most:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
        if oldest is not None:
            with contextlib.suppress(OSError):
                self._end(oldest)
        return made

    def known(self, made: Any) -> None:
        """It has shown who it is, or is about to be closed."""
        with self._lock:
            self._strangers.pop(made, None)

    def close(self) -> None:
        """Let nobody in any more; a thread that waits in `accept` gets an OSError."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._spare.close()

    def _send_away(self) -> None:
        """Take a connection and end it, by the descriptor that is kept back: it would wait for ever, and wake us."""
        self._spare.close()
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        while True:
            try:
                self._spare = _nothing()
                return
            except OSError:  # another thread has taken it
                time.sleep(_PAUSE)


def _nothing() -> Any:
    return open(os.devnull, "rb", buffering=0)
