"""Messages between a group and a server: a head of a few words, and the bytes of an array.

Connections are those of Python's `multiprocessing.connection` over TCP: each side shows that it knows the token of the
job before anything else is read. A head is JSON and nothing is unpickled. Nothing is encrypted: networks of a cluster
are private, and a server listens on loopback or on one address of a private network.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from multiprocessing.connection import Client, Connection
from typing import Any

from matex_tf.errors import MatexError, SettingError

Address = tuple[str, int]

_BACKLOG = 64
_SILENT = 20  # seconds after which a host is asked whether it is still there


def send(connection: Connection, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
    """Send a message.

    Args:
        connection: to the other side.
        head: a few words, plain values of JSON.
        body: the bytes of an array; may be none.

    Raises:
        OSError: the other side is gone.
    """
    connection.send_bytes(json.dumps({**head, "bytes": len(body)}).encode())
    if body:
        connection.send_bytes(body)


def receive(connection: Connection) -> tuple[dict[str, Any], bytes]:
    """Wait for a message.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    head = json.loads(connection.recv_bytes())
    return head, connection.recv_bytes() if head["bytes"] else b""


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen on an address of this machine. Whoever accepts a connection has to ask it for the token.

    Args:
        host: the address, in numbers.
        port: 0 for any that is free.

    Raises:
        SettingError: the address is one that others than this machine's private network may reach.
        MatexError: nothing can listen there.
    """
    if not ipaddress.ip_address(host).is_private:
        raise SettingError(
            f"a server of the center would listen on {host}, which is not an address of a private network: what "
            "travels is not encrypted. Name a private network with --center-network, such as 10.0.0.0/8."
        )
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise MatexError(f"a server of the center cannot listen on {host}:{port}: {error}.") from error


def connect(address: Address, token: bytes) -> Connection:
    """Connect to a server.

    Args:
        address: its host and port.
        token: of the job, which both sides show that they know.

    Raises:
        OSError, EOFError: it is gone.
        multiprocessing.AuthenticationError: it has another token.
    """
    connection = Client((address[0], address[1]), authkey=token)
    prepare(connection)
    return connection


def prepare(connection: Connection) -> None:
    """Let no message wait for the next one, and a connection end whose other host is gone (TCP, seconds below)."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT // 2)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000 * _SILENT)


def wait_at_most(connection: Connection, seconds: float) -> None:
    """Let a read of `connection` end in an OSError after so many `seconds`; 0 for as long as it takes."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as own:
        whole = int(seconds)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", whole, int((seconds - whole) * 1e6)))


def peer(connection: Connection) -> str:
    """The address of the other side."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as own:
        try:
            return str(own.getpeername()[0])
        except OSError:
            return "somewhere"


def shut(connection: Connection) -> None:
    """End a connection at once, also where a thread waits on it; closing it alone would not."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


def address_of(known: list[str], everyone: list[list[str]], network: str, single: bool) -> str:
    """The address on which a rank listens.

    Args:
        known: the IPv4 addresses of this host.
        everyone: those of each rank's host.
        network: as `--center-network` has it, such as `10.0.0.0/8`; empty for the first private one that no other host
            has.
        single: whether all ranks are on this host.

    Raises:
        SettingError: there is none.
    """
    if single and not network:
        return "127.0.0.1"
    others = [address for addresses in everyone if addresses != known for address in addresses]
    own = [address for address in known if address not in others]
    if network:
        own = [address for address in own if ipaddress.ip_address(address) in ipaddress.ip_network(network)]
    own = [address for address in own if ipaddress.ip_address(address).is_private]
    if not own:
        where = f"in {network}" if network else "of a private network"
        raise SettingError(
            f"this host has no address {where} on which a server of the center could listen (it has "
            f"{', '.join(known) or 'none'}): name its network with --center-network, such as 10.0.0.0/8."
        )
    return own[0]
