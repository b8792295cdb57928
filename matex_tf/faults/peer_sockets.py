"""A line between each two ranks of different hosts, on which nothing is sent: its end says that a process has ended.

See `matex_tf.faults.liveness` for what they are good for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence

from matex_tf.core.world import World
from matex_tf.state import notes

#: Seconds in which all lines are there; a host that none leads to cannot be asked later.
SETUP_SECONDS = 5.0

#: How many more than there are ranks may have connected and not said who they are; the oldest of others are dropped.
_STRANGERS = 16

#: What TCP says of a host that does not answer, or that the network does not find.
_SILENCE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)

_TOKEN_BYTES = 16
_RANK_BYTES = 4
_CHOSEN = b"1"


class PeerSocket:
    """A connection to a rank.

    Attributes:
        open: whether nothing has come of it yet.
        ended: whether the process at its other end is gone.
        silent: whether its host has not answered, see `ask_host`.
    """

    def __init__(self, connection: socket.socket):
        self.socket = connection
        self.open = True
        self.ended = self.silent = False
        self._looking = threading.Lock()
        notes.put(self, _Open())

    def look(self) -> None:
        """See what has come of it."""
        with self._looking:
            if not self.open:
                return
            try:
                said = self.socket.recv(1)
            except BlockingIOError:
                return
            except OSError as error:  # broken off, by whomever: after the first such error TCP says that it has ended
                self.open, self.silent = False, error.errno in _SILENCE
                return
            self.open, self.ended = False, not said

    def ask_host(self, seconds: float) -> None:
        """Have the kernel ask that of the other end whether it is there, and break off if it is silent for so long."""
        each = max(1, round(seconds / 10))
        for name, value in (
            *((socket.TCP_KEEPIDLE, max(1, round(seconds / 2))), (socket.TCP_KEEPINTVL, each)),
            (socket.TCP_KEEPCNT, max(1, round(seconds / 2 / each))),
        ):
            self.socket.setsockopt(socket.IPPROTO_TCP, name, value)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def inodes() -> set[int]:
    """Of all that are open in this process."""
    return {os.fstat(line.socket.fileno()).st_ino for line in notes.having(_Open) if line.socket.fileno() >= 0}


class _Open:
    """Of a line: that a child of this process must not hold it."""


def _close_in_child() -> None:
    """A child of a rank that is gone must not hold its lines."""
    for line in notes.having(_Open):
        line.socket.close()


os.register_at_fork(after_in_child=_close_in_child)


def connect(world: World, addresses: Sequence[Sequence[str]]) -> list[PeerSocket | None]:
    """A line to each rank of another host; None for others, and where none could be made. Collective over the world.

    Args:
        addresses: of the host of each rank, which no other host has.
    """
    token = world.broadcast(os.urandom(_TOKEN_BYTES), "draw a number for the job")
    away = [rank for rank, host in enumerate(world.hosts) if host != world.host]
    with contextlib.ExitStack() as opened:
        listeners = []
        for address in _sources({address for rank in away for address in addresses[rank]}):
            with contextlib.suppress(OSError):
                listener = socket.create_server((address, 0), backlog=len(away))
                listeners.append(opened.enter_context(listener))
        ports = world.allgather([listener.getsockname() for listener in listeners], "wait for one another")
        made = _Meeting(world.rank, token, away, listeners).make(ports, time.monotonic() + SETUP_SECONDS)
        # What one side has given up must not look like an end to the other.
        complete = world.allgather(set(made), "have lines to one another")
    return [
        PeerSocket(made[rank]) if rank in made and world.rank in theirs else None
        for rank, theirs in enumerate(complete)
    ]


def _sources(targets: set[str]) -> set[str]:
    """The addresses of here by which others are reached; nothing is sent to find out."""
    found = set()
    for target in targets:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((target, 9))
            found.add(asking.getsockname()[0])
    return found


class _Meeting:
    """Makes the lines of a rank. The lower rank of a pair takes what the higher one connects, and of several ways
    between two hosts the first one that answers, which the higher rank names."""

    def __init__(self, rank: int, token: bytes, away: Sequence[int], listeners: Sequence[socket.socket]):
        self._mine = token + rank.to_bytes(_RANK_BYTES, "little")
        self._token = token
        self._rank = rank
        self._away = set(away)
        self._waiting = selectors.DefaultSelector()
        self._made: dict[int, socket.socket] = {}
        self._trying: dict[socket.socket, tuple[int, bytes]] = {}  # the other rank, -1 for unknown; what it has said
        self._listeners = set(listeners)
        for listener in listeners:
            listener.setblocking(False)
            self._waiting.register(listener, selectors.EVENT_READ)

    def make(self, ports: Sequence[Sequence[tuple[str, int]]], end: float) -> dict[int, socket.socket]:
        """The lines. Args: ports: where each rank waits; end: when to give up."""
        for rank in self._away:
            for place in ports[rank] if rank < self._rank else ():
                line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                line.setblocking(False)
                line.connect_ex(place)
                self._trying[line] = rank, b""
                self._waiting.register(line, selectors.EVENT_WRITE)
        with self._waiting:
            while set(self._made) != self._away and (left := end - time.monotonic()) > 0:
                for key, mask in self._waiting.select(left):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready in self._listeners:
                        self._accept(ready)
                    elif ready in self._trying and not self._step(ready, mask):
                        self._drop(ready)
        for line in self._trying:
            line.close()
        return self._made

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            line, _ = listener.accept()
            line.setblocking(False)
            self._trying[line] = -1, b""
            self._waiting.register(line, selectors.EVENT_READ)
        unknown = [line for line, (rank, _) in self._trying.items() if rank < 0]
        if len(unknown) > len(self._away) + _STRANGERS:
            self._drop(unknown[0])  # a rank says at once who it is

    def _drop(self, line: socket.socket) -> None:
        self._waiting.unregister(line)
        del self._trying[line]
        line.close()

    def _step(self, line: socket.socket, mask: int) -> bool:
        """Go on with one that is being made; whether it may still become one."""
        rank, said = self._trying[line]
        try:
            if mask & selectors.EVENT_WRITE:
                line.sendall(self._mine)
                self._waiting.modify(line, selectors.EVENT_READ)
                return True
            wanted = _TOKEN_BYTES if rank >= 0 and rank < self._rank else len(self._mine) if rank < 0 else len(_CHOSEN)
            heard = line.recv(wanted - len(said))
            said += heard
            self._trying[line] = rank, said
            if not heard or len(said) < wanted:
                return bool(heard)
            if rank < 0:
                return self._greet(line, said)
            if rank in self._made or (rank < self._rank and said != self._token):
                return False
            if rank < self._rank:
                line.sendall(_CHOSEN)
        except OSError:
            return False
        self._waiting.unregister(line)
        del self._trying[line]
        self._made[rank] = line
        return True

    def _greet(self, line: socket.socket, said: bytes) -> bool:
        rank = int.from_bytes(said[_TOKEN_BYTES:], "little")
        if said[:_TOKEN_BYTES] != self._token or rank not in self._away or rank < self._rank:
            return False
        line.sendall(self._token)
        self._trying[line] = rank, b""
        return True
