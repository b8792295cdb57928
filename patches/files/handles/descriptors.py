"""`os.open` for writing: the file is real on one rank, and a private copy without a name on the others.

So whatever takes a descriptor works: `os.write`, `os.lseek`, `mmap`. Closing it, by `os.close` or with the file that
`os.fdopen` makes of it, is a meeting.

Relies on: `os.open`, `os.close`, public.
"""

from __future__ import annotations

import os
import stat
from types import ModuleType
from typing import Any

from matex_tf.patches.files import callers, once, takeover
from matex_tf.patches.files.handles import kinds, opened
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import run_state

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OTHERS = getattr(os, "O_DIRECTORY", 0) | (getattr(os, "O_TMPFILE", 0))


def install(module: ModuleType) -> None:
    """Patch os."""
    wrap(module, "open", _open)
    wrap(module, "close", _close)


def _open(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    path, flags, *_ = taken(args, kwargs, path=None, flags=0)
    if not (isinstance(flags, int) and flags & _WRITES) or flags & _OTHERS or kwargs.get("dir_fd") is not None:
        return wrapped(*args, **kwargs)
    where = callers.caller() if opened.writes(path, "w") and not _is_other(path) else ""
    if not where:
        return wrapped(*args, **kwargs)
    call = opened.call_of("os.open", where, path, flags)

    def elsewhere(sent: None) -> int:
        copied = not flags & os.O_TRUNC
        return kinds.copy_without_name(os.fsdecode(path), copied, bool(flags & os.O_APPEND))

    handle, shared = once.attempt(call, lambda: wrapped(*args, **kwargs), lambda made: None, elsewhere)
    if shared:
        kinds.meet_after("copy", call)
        held = run_state.part(opened.Descriptors)[handle] = opened.Descriptor(call)
        takeover.watch(held, os.fsdecode(path), call.folder)
    return handle


def _is_other(path: Any) -> bool:
    """Whether this is there, and no plain file: a pipe, a directory."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _close(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    held = run_state.part(opened.Descriptors).pop(args[0] if args else kwargs.get("fd"), None)
    kinds.meet_after("close", held.call if held else None)
    return result
