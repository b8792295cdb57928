"""Shared memory to which the script gives a name: each rank of a node has its own, under a name of its own.

A script makes `SharedMemory(name, create=True)` once, as one process; of many ranks the others would find what the
first has made, and write there. A script that asks for its rank has the memory that it names. What another program has
made is found by every rank. What C libraries open (posix_ipc) stays as it is.

Relies on: `multiprocessing.shared_memory.SharedMemory`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.patches.files import callers
from matex_tf.patches.files.wrapping import taken
from matex_tf.state import run_state


class _Own:
    """The names of which this process has made its own: what else has such a name is not for it."""

    def __init__(self) -> None:
        self.names: set[str] = set()


def install(module: ModuleType) -> None:
    """Patch multiprocessing.shared_memory."""
    wrapping.wrap(module, "SharedMemory.__init__", _open, always=True)


def _open(wrapped: Any, memory: Any, args: Any, kwargs: Any) -> None:
    name, create, rest, named = taken(args, kwargs, name=None, create=False)
    if not name or not world.local_rank() or wrapping.is_aside() or callers.asks():
        return wrapped(*args, **kwargs)
    made, own = run_state.current().part(_Own).names, f"{name}.rank{world.rank()}"
    if create:
        made.add(name)
    try:
        return wrapped(own, create, *rest, **named)
    except FileNotFoundError:
        if name in made:
            raise
    return wrapped(*args, **kwargs)
