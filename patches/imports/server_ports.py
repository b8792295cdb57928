"""A port that the script opens: the first rank of a node has it, the others get free ones, and find themselves there.

A server on a fixed port (metrics, a dashboard) can be opened by one process of a machine. Where this rank connects to
its own machine at that port, it gets to its own server, as one process would. A script that asks for its rank gives
each rank a port of its own, and gets it. So it is with names of Unix sockets that are in no file. What C libraries open
(gRPC, ZeroMQ) stays as it is.

Relies on: `socket.socket.bind`, `connect`, `connect_ex` and `sendto`, public.
"""

from __future__ import annotations

import errno
import os
import socket
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import ports, world
from matex_tf.patches.common import wrapping
from matex_tf.patches.files import callers
from matex_tf.state import run_state


class Ports:
    """Of each port, and each name of Unix sockets, that this rank has asked for, the one that it has."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}
        self.names: dict[bytes, bytes] = {}


def install(module: ModuleType) -> None:
    """Patch socket."""
    wrapping.wrap(module, "socket.bind", _bind)
    for name in ("connect", "connect_ex", "sendto"):
        wrapping.wrap(module, f"socket.{name}", _reach)


def _bind(wrapped: Any, opened: socket.socket, args: Any, kwargs: Any) -> Any:
    address: Any = args[0] if args else None
    port = _port(opened, address)
    if not port or not world.local_rank():
        return wrapped(*args, **kwargs)
    if callers.asks():
        try:
            return wrapped(*args, **kwargs)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    if isinstance(port, bytes):
        run_state.current().part(Ports).names[port] = name = port + b" of rank %d" % world.rank()
        return wrapped(name)
    reuses = opened.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # or two that do not listen yet get one port
    wrapped((address[0], 0, *address[2:]))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
    run_state.current().part(Ports).given[port] = got = opened.getsockname()[1]
    if settings.current().notes:
        world.current().log(f"port {port} is that of the first rank of a node: rank {world.rank()} has {got} instead")
    return None


def _reach(wrapped: Any, opened: socket.socket, args: Any, kwargs: Any) -> Any:
    """Of connect and sendto, whose last argument is the address."""
    return wrapped(*args[:-1], _reached(opened, args[-1]), **kwargs) if args else wrapped(*args, **kwargs)


def _reached(opened: socket.socket, address: Any) -> Any:
    mine, port = run_state.current().part(Ports), _port(opened, address)
    if isinstance(port, bytes):
        return mine.names.get(port, address)
    if port in mine.given and _is_here(address[0]):
        return (address[0], mine.given[port], *address[2:])
    return address


def _port(opened: socket.socket, address: Any) -> int | bytes:
    """The port of an address of the Internet's, or a name of Unix sockets that is in no file; 0 for every other
    address, and where any port will do. Our own names are those of all ranks."""
    if opened.family == socket.AF_UNIX and isinstance(address, (str, bytes)):
        name = os.fsencode(address)
        return name if name.startswith(b"\0") and not name.startswith(b"\0matex") else 0
    of_internet = opened.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple)
    return address[1] if of_internet and len(address) > 1 and isinstance(address[1], int) else 0


def _is_here(host: str) -> bool:
    if host in ("", "localhost", "0.0.0.0", "::", "::1", socket.gethostname()) or host.startswith("127."):
        return True
    return host in ports.addresses()
