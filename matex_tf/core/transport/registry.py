"""Which transport connects the ranks of this job. What a transport does stands in its own file."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.core import starting
from matex_tf.core.transport.communicator import Communicator


@dataclass(frozen=True)
class Transport:
    """A transport.

    Attributes:
        variables: of the environment; a launcher sets one of them, at least, for each rank that the transport connects.
        connect: where the function is that gives a communicator of all ranks, or None to a rank that is alone, as in
            "package.module:function".
    """

    variables: Sequence[str]
    connect: str

    def started(self) -> bool:
        """Whether this process was started as a rank that the transport connects."""
        return any(name in os.environ for name in self.variables)


#: The first one that a process was started for connects it.
TRANSPORTS: dict[str, Transport] = {
    "mpi": Transport(starting.MPI_VARIABLES, "matex_tf.core.transport.mpi:connect"),
}


def started() -> bool:
    """Whether this process was started as one of several ranks."""
    return any(transport.started() for transport in TRANSPORTS.values())


def connect() -> Communicator | None:
    """A communicator of all ranks of the job; None where this process is alone.

    Raises:
        MissingPackage: what the transport needs is not there.
    """
    for transport in TRANSPORTS.values():
        if transport.started():
            module, _, function = transport.connect.partition(":")
            connected: Communicator | None = getattr(importlib.import_module(module), function)()
            return connected
    return None


def finalize() -> None:
    """Give back what `connect` has begun, before this process leaves past Python's end."""
    for transport in TRANSPORTS.values():
        if module := sys.modules.get(transport.connect.partition(":")[0]):
            module.finalize()


def arrive() -> tuple[Communicator, Any, Any]:
    """In a program that a rank of a running job has started by `Communicator.start`: a communicator of this rank
    alone, the bridge to that one, and what it tells."""
    module, _, _ = TRANSPORTS["mpi"].connect.partition(":")
    arrived: tuple[Communicator, Any, Any] = importlib.import_module(module).arrive()
    return arrived
