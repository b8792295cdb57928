"""Ranks that are out of reach: dead, or alive behind a link that is cut?

MPI takes a rank on another host for dead when it hears nothing of it. Where a link is cut both sides do that, and both
would go on: two trainings that write the same files. So each rank listens on a port, for nothing but this: a
connection that is refused says that the process is gone; one that is taken, or not answered, that it may go on. Of two
parts of a job the larger one goes on, of equal ones that with the lowest rank; the other one ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence

from matex_tf.world import World

#: Seconds in which a host that can be reached answers.
ANSWER_SECONDS = 2.0

_REFUSED = errno.ECONNREFUSED
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class Reach:
    """Finds out which ranks are gone for sure."""

    def __init__(self, world: World):
        """Collective over the world; its ranks are known by their present numbers until `keep`."""
        self._listener = socket.create_server(("", 0))
        mine = world.host, self._listener.getsockname()[1], addresses()
        everyone = world.gather(mine, "tell how they can be reached")
        self._ports = [(port, _own(host, known, everyone)) for host, port, known in everyone]

    def keep(self, survivors: Sequence[int]) -> None:
        """Number the ranks anew. Args: survivors: their former numbers, in order."""
        self._ports = [self._ports[rank] for rank in survivors]

    def ports(self, ranks: Iterable[int]) -> list[tuple[int, list[str]]]:
        """How ranks can be reached, for `alive`: a port and addresses each."""
        return [self._ports[rank] for rank in ranks]


def alive(ports: Sequence[tuple[int, list[str]]], seconds: float = ANSWER_SECONDS) -> list[bool]:
    """Whether each process may be alive: True as well where nothing can be found out.

    Args:
        ports: a port and addresses of each, see `Reach.ports`.
        seconds: how long to wait for an answer.
    """
    gone = [False] * len(ports)
    with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as opened:
        for place, (port, known) in enumerate(ports):
            for address in known:
                line = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                line.setblocking(False)
                error = line.connect_ex((address, port))
                gone[place] |= error == _REFUSED
                if error == errno.EINPROGRESS:
                    waiting.register(line, selectors.EVENT_WRITE, place)
        end = time.monotonic() + seconds
        while waiting.get_map() and time.monotonic() < end:
            for key, _ in waiting.select(max(0.0, end - time.monotonic())):
                error = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
                gone[key.data] |= error == _REFUSED
                waiting.unregister(key.fileobj)
    return [not one for one in gone]


def take_back() -> None:
    """Let nothing that this process has sent, and that is still under way, arrive once it has ended.

    A rank that is cut off has told the others that they are dead. When the link is back, Open MPI ends who hears that.
    """
    for line in _connections():
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def stop_listening(to: Iterable[str]) -> None:
    """End this process's connections to these addresses, so that nothing arrives from there any more; for the same
    reason, and on the other side."""
    unwanted = set(to)
    for line in _connections():
        with contextlib.suppress(OSError):  # one that listens has no peer
            if line.getpeername()[0] in unwanted:
                line.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[socket.socket]:
    """The TCP sockets of this process, whoever has opened them."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
            if line.family == socket.AF_INET and line.type == socket.SOCK_STREAM:
                yield line


def goes_on(here: Sequence[int], elsewhere: Sequence[int]) -> bool:
    """Whether the ranks of this part of a job go on, where those elsewhere may do so too.

    Args:
        here, elsewhere: ranks, by their numbers in the job before it fell apart; `here` is not empty.
    """
    if len(here) != len(elsewhere):
        return len(here) > len(elsewhere)
    return min(here) < min(elsewhere)


def addresses() -> list[str]:
    """The IPv4 addresses of this host, without those that mean this host everywhere."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _own(host: str, known: list[str], everyone: Sequence[tuple[str, int, list[str]]]) -> list[str]:
    """The addresses that no other host has as well, as bridges of containers do."""
    others = {address for other, _, theirs in everyone if other != host for address in theirs}
    return [address for address in known if address not in others]
