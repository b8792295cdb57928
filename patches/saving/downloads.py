"""`keras.utils.get_file` and the `load_data` functions that use it: one rank of each node downloads, the rest wait.

Relies on (Keras 3.3 to 3.15): `file_utils.get_file`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import active_flag, carried_error, log_once, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.utils.file_utils."""
    wrapping.wrap(module, "get_file", _one_a_node)


def _one_a_node(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    ranks = world.current()
    name = str(kwargs.get("fname") or kwargs.get("origin") or (args[0] if args else "a file"))
    path, failure = None, None
    ranks.barrier(f"get {name}")
    if ranks.local_rank == 0:
        try:
            path = wrapped(*args, **kwargs)
        except Exception as error:
            failure = error
    active_flag.layers().refresh()
    said = ranks.allgather(failure and carried_error.pack(failure), f"wait for {name}")
    rank = next((rank for rank, error in enumerate(said) if error), None)
    if rank is not None and len(set(ranks.hosts)) > 1:
        log_once.log(f"{ranks.hosts[rank]} could not download {name}: look at its network, or put the file there")
    if failure is not None:
        raise failure
    if rank is not None:
        raise carried_error.unpack(said[rank])
    return path if ranks.local_rank == 0 else wrapped(*args, **kwargs)
