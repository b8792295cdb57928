"""A rank's way to the center: its connections to the servers, and what it does where one of them has died.

The numbers of the center are in pieces, one for each server. A rank of a group has a part of the numbers, so that a
group's ranks share out what travels; it asks all servers at once, and then collects their answers. Where a server has
died its piece goes to the next one that lives, which is given the copy that a rank has from when it met the center
last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from matex_tf.errors import MatexError
from matex_tf.exchange.network import codec as codecs
from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.schedule import Range, ranges

#: Seconds from one question to the next for numbers that nobody has given to a server yet.
_PAUSE = 0.1


class Servers:
    """The servers of a job, and which of them live.

    Args:
        addresses: of each.
        token: what they ask for.
    """

    def __init__(self, addresses: Sequence[wire.Address], token: bytes):
        self.addresses = list(addresses)
        self.token = token
        self.dead: set[int] = set()

    def keeping(self, piece: int) -> int:
        """The server that keeps a piece now.

        Raises:
            MatexError: none is left.
        """
        for further in range(len(self.addresses)):
            server = (piece + further) % len(self.addresses)
            if server not in self.dead:
                return server
        raise MatexError("no server of the center is left: all ranks that kept a piece of it have died.")


class Lines:
    """Connections of one thread to the servers, made where they are needed first."""

    def __init__(self, servers: Servers):
        self._servers = servers
        self._connections: dict[int, Connection] = {}

    def send(self, piece: int, head: dict[str, Any], body: bytes) -> int | None:
        """Send to the server that keeps a piece; which that is, None where it has just died.

        Args:
            piece: its number, from 0.
            head, body: see `wire.send`.

        Raises:
            MatexError: it belongs to another job, or no server is left.
        """
        server = self._servers.keeping(piece)
        try:
            if server not in self._connections:
                self._connections[server] = wire.connect(self._servers.addresses[server], self._servers.token)
            wire.send(self._connections[server], head, body)
        except AuthenticationError as error:
            raise MatexError("a server of the center belongs to another job: it does not know the token.") from error
        except (OSError, EOFError):
            self._lost(server)
            return None
        return server

    def answer(self, server: int | None) -> tuple[dict[str, Any], bytes] | None:
        """What a server says; None where it has died."""
        if server is None or server not in self._connections:
            return None
        try:
            return wire.receive(self._connections[server])
        except (OSError, EOFError):
            self._lost(server)
            return None

    def close(self) -> None:
        """Leave."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _lost(self, server: int) -> None:
        self._servers.dead.add(server)
        if server in self._connections:
            self._connections.pop(server).close()


class Client:
    """What one rank asks the servers about one training. For one thread at a time.

    Attributes:
        copy: float32, this rank's part of the center as it was when the rank met it last.
        sent, received: bytes of numbers so far, without heads.
        replaced: how often a server was replaced by the next one.
    """

    def __init__(
        self,
        servers: Servers,
        training: int,
        name: str,
        values: np.ndarray,
        part: tuple[int, int],
        codec: str = "none",
        clock: float = 0,
        offers: bool = True,
        first: int = 0,
    ):
        """Offer the numbers with which training begins.

        Args:
            training: its number, counted alike on all ranks.
            name: of this rank among all clients.
            values: all numbers of the center, float32 and flat.
            part: first and one past the last of those of this rank.
            codec: what encodes what travels.
            clock: how many steps its group has made; infinite where nobody shall wait for it yet.
            offers: whether it has numbers to offer; else it may ask for those that are known alone.
            first: the piece with which it begins when it meets the center, see `schedule.ranges`.
        """
        self._clock, self._offers = clock, offers
        self._servers, self._of, self._name, self._codec_name = servers, f"{training}.", name, codec
        self._codec = None if codec == "none" else codecs.create(codec)
        self._lines = Lines(servers)
        self.copy = values[part[0] : part[1]].copy()
        self._told = self.copy.copy()  # with a codec: what this rank and the servers both know
        self._residual = np.zeros_like(self.copy)
        self.sent = self.received = self.replaced = self._resets = 0
        self._ranges = ranges(values.size, len(servers.addresses), part, first)
        for one in self._ranges if offers else ():
            self._offer(one)

    def elastic(self, weights: np.ndarray, alpha: float) -> np.ndarray:
        """Meet the center: this rank's part of d, by which the group moves towards it (see `Piece.elastic`)."""
        moves = np.empty_like(weights)

        def ask(one: Range) -> tuple[dict[str, Any], bytes]:
            head, own, told = {"ask": "elastic", "alpha": alpha}, weights[one.here], self._told[one.here]
            return head, own.tobytes() if self._codec is None else self._encode(own - told, told)

        def take(one: Range, body: bytes) -> None:
            d, told = moves[one.here], weights[one.here] if self._codec is None else self._told[one.here]
            self._decode(body, d)
            # c before was w - d / alpha, and is d more now: the copy costs no byte.
            self.copy[one.here] = told - d * np.float32(1 / alpha - 1)

        self._ask_all(ask, take)
        return moves

    def push_and_pull(self, moved: np.ndarray, clock: int, staleness: int) -> np.ndarray:
        """Add how far the group has moved to the center, and wait until no group is too far behind.

        Args:
            moved: float32, of this rank's part; how far its group has moved since the last time.
            clock: steps of the group, with these.
            staleness: by how many steps the slowest group may be behind `clock` at most.

        Returns:
            This rank's part of the center, `copy`.
        """

        def ask(one: Range) -> tuple[dict[str, Any], bytes]:
            head = {"ask": "push", "clock": clock, "staleness": staleness}
            own = moved[one.here]
            if self._codec is None:
                return head, own.tobytes()
            said = np.empty(self._codec.nbytes(own.size), np.uint8)
            self._codec.encode(own, said, self._residual[one.here])
            return head, said.tobytes()

        def take(one: Range, body: bytes) -> None:
            if self._codec is None:
                self.copy[one.here] = np.frombuffer(body, np.float32)
            else:
                self._codec.add(np.frombuffer(body, np.uint8), self._told[one.here])
                self.copy[one.here] = self._told[one.here]

        self._ask_all(ask, take)
        return self.copy

    def pull(self) -> np.ndarray:
        """This rank's part of the center, to the bit."""

        def take(one: Range, body: bytes) -> None:
            self.copy[one.here] = np.frombuffer(body, np.float32)

        self._ask_all(lambda one: ({"ask": "pull"}, b""), take)
        return self.copy

    def over(self) -> None:
        """Tell the servers that this group makes no more steps this epoch."""
        self._ask_all(lambda one: ({"ask": "over"}, b""), lambda one, body: None)

    def close(self) -> None:
        """Leave."""
        self._lines.close()

    def _encode(self, distance: np.ndarray, told: np.ndarray) -> bytes:
        """Encode how far something is from what was told, and note what has been told now."""
        assert self._codec is not None
        said = np.empty(self._codec.nbytes(distance.size), np.uint8)
        self._codec.encode(distance, said)
        self._codec.add(said, told)
        return said.tobytes()

    def _decode(self, body: bytes, values: np.ndarray) -> None:
        if self._codec is None:
            values[:] = np.frombuffer(body, np.float32)
        else:
            self._codec.decode(np.frombuffer(body, np.uint8), values)

    def _ask_all(self, ask: Any, take: Any) -> None:
        """Ask the servers of all ranges, then collect the answers; then once more where a server has died."""
        asked, again = [], []
        for one in self._ranges:
            head, body = ask(one)
            self.sent += len(body)
            asked.append((one, self._send(one, head, body)))
        for one, server in asked:
            answer = self._answer(server)
            if answer is None or answer[0].get("unknown"):
                again.append(one)
                continue
            self.received += len(answer[1])
            take(one, answer[1])
        for one in again:
            while True:
                self.replaced += 1
                if self._offers:
                    self._offer(one)
                else:  # until a group of the job has given them to the server that has taken the place of another
                    time.sleep(_PAUSE)
                answer = self._answer(self._send(one, *ask(one)))
                if answer is not None and not answer[0].get("unknown"):
                    break
            take(one, answer[1])

    def _offer(self, one: Range) -> None:
        """Give the server of a range the copy that this rank has, until one takes it."""
        self._told[one.here] = self.copy[one.here]
        head = {"ask": "offer", "size": one.size, "reset": self._resets, "clock": self._clock}
        while self._answer(self._send(one, head, self.copy[one.here].tobytes())) is None:
            pass

    def reset(self, values: np.ndarray) -> None:
        """Let the center be these numbers of this rank's part: the script has set weights."""
        self.copy[:] = values
        self._resets += 1
        for one in self._ranges:
            self._offer(one)

    def _send(self, one: Range, head: dict[str, Any], body: bytes) -> int | None:
        """Send to the server that keeps a range; which that is, None where it has just died."""
        words = {"of": self._of, "client": self._name, "piece": one.piece, "low": one.low, "high": one.high}
        return self._lines.send(one.piece, {**head, **words, "codec": self._codec_name}, body)

    def _answer(self, server: int | None) -> tuple[dict[str, Any], bytes] | None:
        return self._lines.answer(server)


class Dealer:
    """Asks which part of which batch a group shall train on next. For one thread at a time.

    Args:
        group: the name of the group.
    """

    def __init__(self, servers: Servers, training: int, group: str):
        self._lines = Lines(servers)
        self._training, self._group = training, group
        self._epoch = self._number = self._seen = 0
        self._at_once, self._at_hand = 1, range(0)

    def begin_epoch(self, epoch: int, seen: int = 0, at_once: int = 1) -> None:
        """Parts are dealt out anew.

        Args:
            seen: how many of them, the first ones, are not.
            at_once: how many a group gets when it asks; the same for all groups, see `schedule.parts_at_once`.
        """
        self._epoch, self._number, self._seen = epoch, 0, seen
        self._at_once, self._at_hand = at_once, range(0)

    def next_part(self) -> int:
        """A number: the batch of the epoch times the parts of a batch, and the part of it."""
        if not self._at_hand:
            first = self._ask()
            self._at_hand = range(first, first + self._at_once)
        part, self._at_hand = self._at_hand[0], self._at_hand[1:]
        self._seen = part + 1
        return part

    def _ask(self) -> int:
        head: dict[str, Any] = {"ask": "part", "epoch": f"{self._training}.{self._epoch}", "group": self._group}
        head |= {"number": self._number, "count": self._at_once, "seen": self._seen}
        answer = None
        while answer is None:
            answer = self._lines.answer(self._lines.send(0, head, b""))
        self._number += 1
        return int(answer[0]["part"])

    def close(self) -> None:
        """Leave."""
        self._lines.close()
