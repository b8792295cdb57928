"""A rank that comes to a running job (`matex-tf join`): its way to the first rank of the job, until it is one of them.

What both sides say to one another is lines of JSON, each with bytes after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from matex_tf.core import namespaces, ports
from matex_tf.errors import Refused

#: Seconds between two questions whether the job has come to a `fit`; and between two looks whether it is there.
_PAUSE = 0.2
#: Seconds in which the job is reached.
_SECONDS = 10.0


class Line:
    """A connection on which lines of JSON travel, each with bytes after it."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        self._socket, self._file = connection, connection.makefile("rwb")

    def say(self, words: dict[str, Any], data: bytes = b"") -> None:
        """Send `words`, plain values of JSON, and then the bytes of `data`.

        Raises:
            OSError: nobody is there.
        """
        self._file.write(json.dumps({**words, "bytes": len(data)}).encode() + b"\n" + data)
        self._file.flush()

    def hear(self, seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
        """What the other side says. Args: seconds: how long to wait for it; None for ever.

        Raises:
            OSError, ValueError: nobody is there, or not in time.
        """
        self._socket.settimeout(seconds)
        line = self._file.readline()
        if not line:
            raise ConnectionError("the connection was closed")
        said = json.loads(line)
        data = self._file.read(int(said["bytes"]))
        if len(data) != said["bytes"]:
            raise ConnectionError("the connection was closed")
        return said, data

    @property
    def is_closed(self) -> bool:
        """Whether the other side is gone. Waits until it has said something or is."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def cut(self) -> None:
        """Let nobody wait for the other side any longer; in any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()


class Arrival:
    """What a rank that comes has of the job.

    Attributes:
        bridge: see `Communicator.extend`.
        place: how many ranks of the job were on this host before it.
        dealt: see `growth.Growth`, of the `fit` that was asked for last.
        log: prints a line for the user, once it has come.
    """

    log: Callable[[str], None]

    def __init__(self, told: dict[str, Any], bridge: Any):
        """Args: told: by the job, see `growth.Growth`.

        Raises:
            OSError: it cannot be reached any more.
        """
        self.bridge, self.place = bridge, int(told["place"])
        self._there = False
        self.dealt: list[Any] | None = None
        self._begun: set[int] = set()
        self._line = Line(ports.connect(told["addresses"], told["port"], _SECONDS))
        own = {"number": told["number"], "process": namespaces.process()}
        self._line.say({"token": told["token"], "ask": "arrive", **own})
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """End this process with the job; nobody else would until it is at its `fit`."""
        while not self._there:
            if self._line.is_closed and not self._there:
                _end()
            time.sleep(_PAUSE)

    def where(self, fit: float, calls: int = 0) -> tuple[dict[str, Any], bytes]:
        """Where the job is in one of its calls of `fit` or loops, see `growth.Growth.at`; waits until that has begun.

        Where the call is over, it is what that has left. Of a loop it is what its steps have returned since so many
        `calls`.
        """
        while (answer := self._ask({"where": fit, "calls": calls}))[0].get("wait"):
            time.sleep(_PAUSE)
        self.dealt = answer[0].get("dealt")
        return self._held(fit, answer)

    def has_begun(self, fit: int) -> bool:
        """Whether the job has come to one of its calls of `fit`; asked for until it has."""
        if fit not in self._begun and not self._ask({"where": fit, "calls": 0})[0].get("wait"):
            self._begun.add(fit)
        return fit in self._begun

    def take(self, fit: float, calls: int = 0) -> tuple[dict[str, Any], bytes]:
        """Be ready in a call of `fit` or a loop; what the job then gives, see `growth.Growth.hand_over`."""
        return self._held(fit, self._ask({"ready": fit, "calls": calls}))

    def _held(self, fit: float, answer: tuple[dict[str, Any], bytes]) -> tuple[dict[str, Any], bytes]:
        if answer[0].get("lost") and fit % 1:
            raise Refused("its script is in a loop of its own that is over in the job")
        if answer[0].get("lost"):
            raise Refused(
                f"fit {fit} is over in the job, which has not kept what it left: that is too large, or died "
                "with another rank"
            )
        return answer

    def enter(self) -> None:
        """This rank has taken what it was given, and is about to meet the others."""
        self._line.say({"here": True})

    def joined(self) -> None:
        """It is one of the job's ranks."""
        self._there = True

    def refuse(self, why: str) -> None:
        """Say why this rank cannot come, and end."""
        with contextlib.suppress(OSError):
            self._line.say({"refused": why})
            self._line.hear(_SECONDS)  # which comes to nothing, once that was heard
        _end()

    def _ask(self, words: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            self._line.say(words)
            return self._line.hear()
        except (OSError, ValueError):
            _end()
            raise


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # Open MPI ends whoever goes without MPI_Finalize, and that waits for the job
