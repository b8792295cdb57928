"""The elements of a generator that the first rank of a node makes, or their rows; the others of the node ask for them.

Who wants an element that nobody has made yet has the first rank make it: the ranks read ahead by as much as each likes,
and leave off where each likes. An element is kept until every rank that walks over the generator has taken it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pickle
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.waiting import StallDetector
from matex_tf.errors import MatexError
from matex_tf.exchange.node import shared_memory
from matex_tf.patches.common import carried_error
from matex_tf.patches.turns import read_ahead

#: Bytes of the elements that are handed on at once, and of those that are kept for a rank which has yet to take them.
_AT_ONCE, _KEPT = 1 << 20, 256 << 20
_LOOK_SECONDS = 0.5
#: What a rank says: which one it is, and then which walk and which element it asks for. And how long a reply's head is.
_RANK, _ASKED, _LENGTH = struct.Struct("<q"), struct.Struct("<qq"), struct.Struct("<q")

OfRank = Callable[[Any, int], Any]


class _Reply(NamedTuple):
    """What is known of a walk from some element on.

    Attributes:
        elements: as bytes of pickle; in the head of a reply that is sent, how many bytes each has.
        end: whether there are no others.
        error: what the generator raised in the place of the next, packed; None where it raised nothing.
        gone: whether the element is not kept any more.
    """

    elements: list[Any]
    end: bool = False
    error: bytes | None = None
    gone: bool = False


class _Walk:
    """One walk, on the rank that makes the elements."""

    def __init__(self, begin: Callable[[], Iterator[Any]], of_rank: OfRank | None, readers: Sequence[int]):
        self._begin, self._of_rank, self._readers = begin, of_rank, readers
        self._generator: Iterator[Any] | None = None
        self._kept: collections.deque[dict[int, bytes]] = collections.deque()
        self._first = self._nbytes = 0  # the number of the element that is kept longest
        self._next = dict.fromkeys(readers, 0)  # by rank: the element that it takes next
        self._last: _Reply | None = None
        self._making, self._changing = threading.Lock(), threading.Lock()

    def take(self, reader: int, number: int) -> _Reply:
        """Elements from one on: those that there are, or else that one alone, which is made."""
        while (known := self._known(reader, number)) is None:
            with self._making:
                if number >= self._first + len(self._kept) and self._last is None:
                    self._make()
        return known

    def leave(self, reader: int) -> bool:
        """A rank takes no more. Returns: whether no rank does."""
        with self._changing:
            self._next.pop(reader, None)
            self._drop()
            return not self._next

    def _known(self, reader: int, number: int) -> _Reply | None:
        with self._changing:
            begin = number - self._first
            if begin < 0:
                return _Reply([], gone=True)
            if begin >= len(self._kept):
                return self._last
            found: list[bytes] = []
            nbytes = 0
            for packed in itertools.islice(self._kept, begin, None):
                nbytes += len(packed[reader])
                if found and nbytes > _AT_ONCE:
                    break
                found.append(packed[reader])
            self._next[reader] = number + len(found)
            self._drop()
            return _Reply(found)

    def _make(self) -> None:
        made: dict[int, bytes] = {}
        last = None
        try:
            if self._generator is None:
                self._generator = self._begin()
            made = self._packed(next(self._generator))
        except StopIteration:
            last = _Reply([], end=True)
        except Exception as error:  # which every rank that asks for it raises
            last = _Reply([], error=carried_error.pack(error))
        with self._changing:
            self._last = last
            if last is None:
                self._kept.append(made)
                self._nbytes += _bytes(made)
                while self._of_rank is None and self._nbytes > _KEPT and len(self._kept) > 1:
                    self._drop_first()

    def _packed(self, element: Any) -> dict[int, bytes]:
        if self._of_rank is None:
            return dict.fromkeys(self._readers, pickle.dumps(element, protocol=5))
        return {rank: pickle.dumps(self._of_rank(element, rank), protocol=5) for rank in self._readers}

    def _drop(self) -> None:
        """Drop what every rank has taken."""
        taken = min(self._next.values(), default=self._first + len(self._kept))
        while self._kept and self._first < taken:
            self._drop_first()

    def _drop_first(self) -> None:
        self._nbytes -= _bytes(self._kept.popleft())
        self._first += 1


def _bytes(made: dict[int, bytes]) -> int:
    return sum(map(len, {id(one): one for one in made.values()}.values()))


class Elements:
    """What connects the ranks of a node, for one generator, until it is closed.

    A rank numbers its walks. Where ranks count them differently, as one that has read further ahead does, the generator
    runs once more than it had to.

    Args:
        begin: begins a walk over the generator on this rank.
        may_run_again: whether another walk gives the same elements.
        of_rank: what a rank gets of an element, for ranks that take as many at a time; None if each gets all of it.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], may_run_again: bool, of_rank: OfRank | None = None):
        """Collective.

        Raises:
            OSError: a rank cannot be reached by the first of its node; on every rank.
        """
        chosen, ranks = settings.current(), world.current()
        here = ranks.nodes[ranks.node]
        self._begin, self._may_run_again, self._of_rank = begin, may_run_again, of_rank
        self._rank, self._first, self._readers = ranks.rank, here[0], here
        self._stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, ranks.log)
        self._walks: dict[int, _Walk | None] = {}  # None for one that every rank has left
        self._changing, self._asking = threading.Lock(), threading.Lock()
        self._begun, self._over = 0, False
        self._connections = _connect(here)
        self._threads = [
            threading.Thread(target=self._serve, args=(one,), name="matex_tf elements", daemon=True)
            for one in (self._connections if self._rank == self._first else ())
        ]
        for thread in self._threads:
            thread.start()

    def walk(self) -> Iterator[Any]:
        """The elements of a new walk."""
        with self._changing:
            number = self._begun
            self._begun += 1
        return self._elements(number)

    def close(self) -> None:
        """End all walks, when every rank has come here."""
        world.current().barrier("end the walks over a generator")
        self.abandon()
        for thread in self._threads:
            thread.join(read_ahead.PATIENCE)

    def abandon(self) -> None:
        """End them at once."""
        self._over = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # which wakes who waits on it

    def _elements(self, walk: int) -> Iterator[Any]:
        number = 0
        while True:
            reply = self._take(self._rank, walk, number) if self._rank == self._first else self._ask(walk, number)
            for packed in reply.elements:
                number += 1
                yield pickle.loads(packed)
            if reply.error is not None:
                raise carried_error.unpack(reply.error)
            if reply.gone and not self._may_run_again:
                raise MatexError(
                    f"this rank is more than {_KEPT >> 20} MB of elements of a generator behind the first rank of its "
                    "node, which runs it: let every rank run it with --generators rank."
                )
            if reply.gone:
                yield from itertools.islice(self._begin(), number, None)
            if reply.gone or reply.end:
                return

    def _ask(self, walk: int, number: int) -> _Reply:
        begin, (connection, *_) = time.perf_counter(), self._connections

        def look() -> None:
            self._stalls.check([self._first], time.perf_counter() - begin, "an element of a generator")

        with self._asking:
            try:
                connection.sendall(_ASKED.pack(walk, number))
                length = _LENGTH.unpack(_receive(connection, _LENGTH.size, look))[0]
                head: _Reply = pickle.loads(_receive(connection, length, look))
                return head._replace(elements=[_receive(connection, nbytes, look) for nbytes in head.elements])
            except (EOFError, OSError):
                over = "the passes over a generator are over." if self._over else f"rank {self._first} has gone."
                raise MatexError(over) from None

    def _serve(self, connection: socket.socket) -> None:
        """Give one of the other ranks what it asks for. Ends with the connection."""
        with contextlib.suppress(EOFError, OSError):
            reader = _RANK.unpack(_receive(connection, _RANK.size))[0]
            while True:
                reply = self._take(reader, *_ASKED.unpack(_receive(connection, _ASKED.size)))
                head = pickle.dumps(reply._replace(elements=[len(one) for one in reply.elements]))
                connection.sendall(_LENGTH.pack(len(head)) + head)
                for one in reply.elements:
                    connection.sendall(one)

    def _take(self, reader: int, number: int, element: int) -> _Reply:
        with self._changing:
            for earlier, walk in self._walks.items():
                if earlier < number and walk is not None and walk.leave(reader):
                    self._walks[earlier] = None
            if number not in self._walks:
                self._walks[number] = _Walk(self._begin, self._of_rank, self._readers)
            asked = self._walks[number]
        return _Reply([], gone=True) if asked is None else asked.take(reader, element)


def _receive(connection: socket.socket, nbytes: int, look: Callable[[], None] | None = None) -> memoryview:
    """So many bytes, in memory of their own. Args: look: called now and then, where the connection has a timeout.

    Raises:
        EOFError, OSError: the connection has ended.
    """
    received, count = np.empty(nbytes, np.uint8).data, 0
    while count < nbytes:
        try:
            more = connection.recv_into(received[count:])
        except TimeoutError:
            if look is not None:
                look()
            continue
        if not more:
            raise EOFError
        count += more
    return received


def _connect(here: Sequence[int]) -> list[socket.socket]:
    """Connect the first rank of each node with the others: its connections with them, or theirs with it. Collective.

    Raises:
        OSError: there is no way; on every rank.
    """
    ranks, what = world.current(), "share the elements of a generator"
    connections: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        place, problem, listener = "", "", None
        own = socket.socket(socket.AF_UNIX)
        if ranks.rank == here[0]:
            listener = stack.enter_context(own)
            try:
                # Others may not enter it, so whoever connects belongs to this user. No rank has a layer over it.
                made = tempfile.TemporaryDirectory(prefix="matex-tf-", dir=shared_memory.DIRECTORY)
                place = os.path.join(stack.enter_context(made), "elements")
                listener.bind(place)
                listener.listen(len(here))
            except OSError as error:
                problem = str(error)
        place = ranks.allgather(place, what)[here[0]]
        if listener is None:
            try:
                own.connect(place)
                own.sendall(_RANK.pack(ranks.rank))
                own.settimeout(_LOOK_SECONDS)
                connections.append(own)
            except OSError as error:
                problem = str(error)
        problem = next(filter(None, ranks.allgather(problem, what)), "")
        if problem:
            own.close()
            raise OSError(problem)
        if listener is not None:
            connections = [listener.accept()[0] for _ in here[1:]]
    return connections
