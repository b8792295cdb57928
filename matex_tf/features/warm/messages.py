"""Messages over a UNIX socket, with open files: a length, JSON, and descriptors beside them."""

from __future__ import annotations

import array
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

#: The most descriptors that Linux hands on in one message (SCM_MAX_FD).
MOST_FILES = 253
_LENGTH = struct.Struct("!Q")
_PIECE = 1 << 16
_CLOSED = "the other side has closed the connection"


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message.

    Args:
        message: what JSON can hold; text may have bytes of no encoding, as the environment may.
        descriptors: open files that the other side gets too, `MOST_FILES` at most.

    Raises:
        OSError: the other side is gone.
    """
    text = json.dumps(message).encode()
    data = _LENGTH.pack(len(text)) + text
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = connection.sendmsg([data], rights)
    if sent < len(data):  # who has all may have answered and closed the connection: sending nothing fails then
        connection.sendall(data[sent:])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message, and the descriptors that came with it; no program that is started inherits them.

    Raises:
        OSError: the other side is gone, or says nothing in the time that the socket has.
    """
    found = array.array("i")
    space = socket.CMSG_SPACE(MOST_FILES * found.itemsize)
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, space, socket.MSG_CMSG_CLOEXEC)
    for _, _, received in ancillary:
        found.frombytes(received[: len(received) - len(received) % found.itemsize])
    head += _exactly(connection, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise ConnectionResetError(_CLOSED)
    return json.loads(_exactly(connection, _LENGTH.unpack(head)[0])), list(found)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, and none of the next message."""
    data = b""
    while len(data) < count:
        more = connection.recv(min(count - len(data), _PIECE))
        if not more:
            raise ConnectionResetError(_CLOSED)
        data += more
    return data
