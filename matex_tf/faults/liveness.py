"""Ranks that are out of reach: dead, or alive behind a link that is cut?

MPI takes a rank on another host for dead when it hears nothing of it. Where a link is cut both sides do that, and both
would go on: two trainings that write the same files. So of two parts of a job the larger one goes on, of equal ones
that with the lowest rank; the other one ends, unless all ranks of the larger one are dead for sure.

What is sure? Not that a host does not answer, and not that it refuses a connection: a firewall refuses as well (a
reset, "port unreachable") in the name of a host that is alive. What nobody but the kernel of the other host can say is
that a connection that was there has come to its end in good order: TCP's FIN, which it sends for a process however
that ends, and which has to carry the right numbers. So when a job begins each rank connects to each rank of the other
hosts. Nothing is ever sent on these lines, and no rank closes one while it lives. A line that ends by a FIN says that
the process is gone; one that is silent, or broken off by a reset, says nothing, and the rank counts as alive.

The ports on which ranks wait for one another are open while the lines are made, on the addresses by which hosts of the
job reach one another, and take nobody who does not know a number that is drawn for the job and travels by MPI.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from matex_tf.core import starting
from matex_tf.core.ports import addresses
from matex_tf.core.world import World
from matex_tf.faults.peer_sockets import PeerSocket, connect, inodes

#: Seconds in which the news of an end arrive from a host that can be reached.
ANSWER_SECONDS = 2.0
#: Seconds of silence after which MPI takes a rank for dead, as `launch.ulfm` has told it; where it has not, so many.
_SILENCE, _SILENCE_SECONDS = "OMPI_MCA_mpi_ft_detector_timeout", 10.0


class LivenessProbe:
    """Finds out which ranks are gone for sure."""

    def __init__(self, world: World):
        """Collective over the world; its ranks are known by their present numbers until `keep`."""
        everyone = world.allgather((world.host, addresses()), "tell how they can be reached")
        self._known = [_own(host, known, everyone) for host, known in everyone]
        self._lines = connect(world, self._known)

    def keep(self, survivors: Sequence[int]) -> None:
        """Number the ranks anew. Args: survivors: their former numbers, in order."""
        self._known = [self._known[rank] for rank in survivors]
        self._lines = [self._lines[rank] for rank in survivors]

    def lines(self, ranks: Iterable[int]) -> list[PeerSocket | None]:
        """The lines to ranks, for `alive`; whoever is left behind keeps them open, see above."""
        return [self._lines[rank] for rank in ranks]

    def addresses(self, rank: int) -> list[str]:
        """The addresses of the host of a rank."""
        return self._known[rank]

    def notice_silence(self, came: Sequence[bool], own: int) -> None:
        """From now on find out which hosts fall silent, and end all connections to them, by which MPI hears of it.

        MPI itself listens for the heartbeats of those alone that have begun the job with a rank, so this is done where
        one of the two has come later.

        Args:
            came: whether each rank has come later.
            own: this rank.
        """
        seconds = float(starting.given(_SILENCE) or _SILENCE_SECONDS)
        lines = {}
        for rank, line in enumerate(self._lines):
            if line is not None and (came[rank] or came[own]):
                line.ask_host(seconds)
                lines[line] = self._known[rank]
        threading.Thread(target=self._notice, args=(lines,), name="matex_tf silence", daemon=True).start()

    def _notice(self, lines: Mapping[PeerSocket, Sequence[str]]) -> None:
        with selectors.DefaultSelector() as waiting:
            for line in lines:
                waiting.register(line.socket, selectors.EVENT_READ, line)
            while waiting.get_map():
                for key, _ in waiting.select():
                    key.data.look()
                    if not key.data.open:
                        waiting.unregister(key.fileobj)
                    if key.data.silent:
                        self.stop_listening(lines[key.data])

    def take_back(self) -> None:
        """Let nothing that this process has sent, and that is still under way, arrive once it has ended.

        A rank that is cut off has told the others that they are dead. When the link is back, Open MPI ends who hears
        that.
        """
        for line in self._others():
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def stop_listening(self, to: Iterable[str]) -> None:
        """End this process's connections to these addresses, so that nothing arrives from there any more; for the same
        reason, and on the other side."""
        unwanted = set(to)
        for line in self._others():
            with contextlib.suppress(OSError):  # one that listens has no peer
                if line.getpeername()[0] in unwanted:
                    line.shutdown(socket.SHUT_RDWR)

    def _others(self) -> Iterator[socket.socket]:
        """The TCP sockets of this process but for such lines, of this probe and of others, whoever has opened them."""
        lines = inodes()
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                found = os.fstat(descriptor)
                if not stat.S_ISSOCK(found.st_mode) or found.st_ino in lines:
                    continue
                with socket.socket(fileno=os.dup(descriptor)) as line:
                    if line.family == socket.AF_INET and line.type == socket.SOCK_STREAM:
                        yield line


def alive(lines: Sequence[PeerSocket | None], seconds: float = ANSWER_SECONDS) -> list[bool]:
    """Whether each process may be alive: True as well where nothing can be found out.

    Args:
        lines: to the processes, see `LivenessProbe.lines`.
        seconds: how long to wait for the news.
    """
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as waiting:
        for line in lines:
            if line is not None and line.open:
                waiting.register(line.socket, selectors.EVENT_READ, line)
        while waiting.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                key.data.look()
                waiting.unregister(key.fileobj)
    return [line is None or not line.ended for line in lines]


def wins_split(here: Sequence[int], elsewhere: Sequence[int]) -> bool:
    """Whether the ranks of this part of a job go on, where those elsewhere may do so too.

    Args:
        here, elsewhere: ranks, by their numbers in the job before it fell apart; `here` is not empty.
    """
    if len(here) != len(elsewhere):
        return len(here) > len(elsewhere)
    return min(here) < min(elsewhere)


def _own(host: str, known: list[str], everyone: Sequence[tuple[str, list[str]]]) -> list[str]:
    """The addresses that no other host has as well, as bridges of containers do."""
    others = {address for other, theirs in everyone if other != host for address in theirs}
    return [address for address in known if address not in others]
