"""A server: the pieces of the center that this process keeps, and the threads that serve them.

There is a thread for each connection. What it is asked:

    offer    take these numbers, where none are known yet
    elastic  meet a group's weights, see `Piece.elastic`
    push     add how far a group has moved; answer with the center once the staleness allows it
    pull     the center as it is
    part     which part of which batch a group shall train on next
    over     a group has no more parts this epoch: nobody waits for it
    roster   which groups train, see `Roster`
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import numpy as np

from matex_tf.core import ports
from matex_tf.exchange.network import codec as codecs
from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.piece import Piece
from matex_tf.features.groups.center.roster import Roster
from matex_tf.features.groups.center.schedule import answered_at

Answer = tuple[dict[str, Any], bytes]

#: What a server answers that does not have what it is asked for: it has taken the place of one that has died.
UNKNOWN: Answer = ({"unknown": True}, b"")

#: The part that a group gets of an epoch that is over: none.
NO_PART = 1 << 60


class Service:
    """Serves until it is closed.

    Attributes:
        address: where.
        serving: the connections that are open.
    """

    def __init__(self, host: str, token: bytes, port: int = 0, log: Callable[[str], None] = lambda line: None):
        """Args: host: the address to listen on; token: what clients must know; port: 0 for any; log: prints a line."""
        listener = wire.listen(host, port)
        self._door = ports.Door(listener, lambda accepted: Connection(accepted.detach()), wire.shut)
        self._token, self._log = token, log
        self.address: wire.Address = listener.getsockname()
        self.serving: set[Connection] = set()
        self.served = 0  # how many connections there have been
        self._changed = threading.Condition()
        self._pieces: dict[str, Piece] = {}
        self._clocks: dict[str, dict[str, float]] = {}  # of each training, by client
        self._parts: dict[str, _Parts] = {}
        self.roster = Roster(self._changed, log, self._holds, self._slowest)
        self._closed = False
        threading.Thread(target=self._accept, name="matex_tf center", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self._closed = True
        self._door.close()

    def wait(self, least: int) -> None:
        """Wait until there have been so many connections, and all of them are closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.served >= least and not self.serving)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._door.accept()
            except ConnectionError:
                continue
            except OSError:
                return
            if connection is not None:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        try:
            wire.prepare(connection)
            wire.wait_at_most(connection, ports.GREETING_SECONDS)
            deliver_challenge(connection, self._token)
            answer_challenge(connection, self._token)
            wire.wait_at_most(connection, 0)
        except AuthenticationError:
            self._log(f"a connection to the center from {wire.peer(connection)} was refused: it has another token")
            connection.close()
            return
        except (EOFError, OSError):
            connection.close()
            return
        finally:
            self._door.known(connection)
        with self._changed:
            self.serving.add(connection)
            self.served += 1
        held: dict[str, codecs.Codec] = {}  # a codec is one thread's own
        clients: set[tuple[str, str]] = set()
        joined = ""
        try:
            while True:
                head, body = wire.receive(connection)
                name = head.get("codec", "none")
                if name != "none" and name not in held:
                    held[name] = codecs.create(name)
                if head["ask"] == "roster":
                    joined = joined or head.get("client", "")
                elif "client" in head:
                    clients.add((head["of"], head["client"]))
                ask: Callable[..., Answer] = getattr(self, f"_{head['ask']}")
                wire.send(connection, *ask(head, body, held.get(name)))
        except (EOFError, OSError):
            pass  # the client has ended, or has died
        finally:
            with self._changed:
                self.serving.discard(connection)
                for of, client in clients:
                    self._clocks.get(of, {}).pop(client, None)
                    for key, piece in self._pieces.items():
                        if key.startswith(f"{of}/"):
                            piece.forget(client)
                self.roster.left(joined)
                self._changed.notify_all()
            connection.close()

    def _piece(self, head: dict[str, Any]) -> Piece | None:
        piece = self._pieces.get(f"{head['of']}/{head['piece']}")
        return piece if piece is not None and piece.has(head["low"], head["high"]) else None

    def _offer(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        values = np.frombuffer(body, np.float32)
        with self._changed:
            for key in [key for key in self._pieces if _is_before(key, head["of"])]:
                del self._pieces[key]  # of an earlier training
            piece = self._pieces.setdefault(f"{head['of']}/{head['piece']}", Piece(head["size"]))
            piece.offer(head["low"], values, head["reset"])
            if codec is not None:
                piece.remember(head["client"], head["low"], values)
            self._clocks.setdefault(head["of"], {}).setdefault(head["client"], head.get("clock", 0))
        return {}, b""

    def _elastic(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        with self._changed:
            piece = self._piece(head)
            if piece is None:
                return UNKNOWN
            return {}, piece.elastic(head["low"], head["high"], head["alpha"], body, codec, head["client"])

    def _push(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        with self._changed:
            piece = self._piece(head)
            if piece is None:
                return UNKNOWN
            piece.add(head["low"], head["high"], body, codec)
            clocks = self._clocks.setdefault(head["of"], {})
            clocks[head["client"]] = head["clock"]
            self._changed.notify_all()
            behind = answered_at(head["clock"], head["staleness"])
            self._changed.wait_for(lambda: all(clock >= behind for clock in clocks.values()))
            return {}, piece.tell(head["low"], head["high"], codec, head["client"])

    def _pull(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        with self._changed:
            piece = self._piece(head)
            return UNKNOWN if piece is None else ({}, piece.tell(head["low"], head["high"], None, ""))

    def _over(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        with self._changed:
            self._clocks.setdefault(head["of"], {})[head["client"]] = np.inf
            self._changed.notify_all()
        return {}, b""

    def _part(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        with self._changed:
            for key in [key for key in self._parts if _is_before(key, head["epoch"])]:
                del self._parts[key]
            if any(_is_before(head["epoch"], key) for key in self._parts):
                return {"part": NO_PART}, b""
            parts = self._parts.setdefault(head["epoch"], _Parts())
            return {"part": parts.of(head["group"], head["number"], head["seen"], head["count"])}, b""

    def _roster(self, head: dict[str, Any], body: bytes, codec: codecs.Codec | None) -> Answer:
        with self._changed:
            return self.roster.answer(head, body)

    def _holds(self, epoch: str, group: str, below: int) -> bool:
        parts = self._parts.get(epoch)
        return parts is not None and parts.holds(group, below)

    def _slowest(self, training: int) -> float:
        clocks = [clock for clock in self._clocks.get(f"{training}.", {}).values() if np.isfinite(clock)]
        return min(clocks, default=0)


class _Parts:
    """The parts of an epoch's batches, dealt out one after the other to whichever group asks."""

    def __init__(self) -> None:
        self._next = 0
        self._dealt: dict[tuple[str, int], int] = {}

    def holds(self, group: str, below: int) -> bool:
        """Whether a group has got one of the parts that come before this one."""
        return any(own == group and part < below for (own, _), part in self._dealt.items())

    def of(self, group: str, number: int, seen: int, count: int) -> int:
        """The first of the parts that a group gets when it asks for the `number`-th time; the same for each of its
        ranks.

        Args:
            seen: of the parts before this one the group knows that they were dealt, by a server that has died since.
            count: how many it gets.
        """
        if (group, number) not in self._dealt:
            self._next = max(self._next, seen)
            self._dealt[group, number] = self._next
            self._next += count
        return self._dealt[group, number]


def _is_before(key: str, other: str) -> bool:
    """Whether a training, or an epoch of one, came before another: they begin with a number, and a dot."""

    def number(text: str) -> tuple[int, ...]:
        return tuple(int(one) for one in text.partition("/")[0].split(".") if one.isdigit())

    return number(key) < number(other)
