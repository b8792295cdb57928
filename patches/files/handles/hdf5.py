"""`h5py.File` for writing: the file is real on one rank, and in memory on the others.

HDF5 locks what it writes to, so that every rank but one would fail. Each rank writes as it would, and reads what it has
written; closing and flushing are meetings. A file that a library opens is such a library's store (`stores`).

Relies on: `h5py.File.__init__`, `close`, `flush`, and the driver "core", public (h5py 3.5 and later).
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.patches.files import callers, once, takeover
from matex_tf.patches.files.handles import kinds, opened, stores
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import run_state


class _Calls(dict[int, Call]):
    """Of a run: by the number that HDF5 gives an open file, as h5py makes new objects for one and the same."""


def install(module: ModuleType) -> None:
    """Patch h5py."""
    wrap(module, "File.__init__", _open)
    wrap(module, "File.close", _close)
    wrap(module, "File.flush", _flush)


def _open(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    name, mode, driver, rest, named = taken(args, kwargs, name=None, mode="r", driver=None)
    if driver is not None or not isinstance(name, (str, bytes, os.PathLike)):
        return wrapped(*args, **kwargs)
    where = callers.caller() if mode != "r" else ""
    if not where:
        copying = None if mode == "w" else stores.copy
        return wrapped(stores.place("h5py.File", os.fsdecode(name), mode == "r", copying), mode, driver, *rest, **named)
    call = opened.call_of("h5py.File", where, name, mode)

    def elsewhere(there: bool) -> None:
        in_memory = {**named, "backing_store": False, "locking": False}
        wrapped(name, "r+" if there else "w", "core", *rest, **in_memory)

    def act() -> bool:
        there = mode in ("a", "r+") and os.path.exists(name)
        wrapped(*args, **kwargs)
        file.flush()
        return there

    _, shared = once.attempt(call, act, elsewhere=elsewhere)
    if shared:
        kinds.meet_after("copy", call)
        run_state.part(_Calls)[file.id.id] = call
        takeover.watch(file, os.fsdecode(name), call.folder)
    return None


def _close(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    call = run_state.part(_Calls).pop(file.id.id, None) if file.id else None
    result = wrapped(*args, **kwargs)
    kinds.meet_after("close", call)
    return result


def _flush(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    kinds.meet_after("flush", run_state.part(_Calls).get(file.id.id))
    return result
