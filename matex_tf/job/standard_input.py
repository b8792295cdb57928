"""Standard input reaches one rank, the first. What that reads is handed to all, as each runs the script."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

from matex_tf.core import world as world_module
from matex_tf.core.world import World


class _Shared(io.RawIOBase):
    """Standard input of all ranks. Reading is a meeting, in the main thread; elsewhere each rank has its own."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return os.isatty(0)

    def readinto(self, buffer: Any) -> int:
        ranks = world_module.current()
        together = threading.current_thread() is threading.main_thread()
        data = os.read(0, len(buffer)) if ranks.rank == 0 or not together else b""
        if together:
            data = ranks.broadcast(data, "read standard input")
        buffer[: len(data)] = data
        return len(data)


def share(world: World) -> None:
    """From now on every rank finds in `sys.stdin` what the first one is given. Collective."""
    encoding, errors = getattr(sys.stdin, "encoding", "utf-8"), getattr(sys.stdin, "errors", "strict")
    if world.broadcast(sys.stdin is not None, "see whether there is a standard input"):
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Shared()), encoding=encoding, errors=errors)
