"""`logging.FileHandler` and those made from it, `logging.basicConfig(filename=…)`: the log is real on one rank.

The other ranks hold a handler that keeps nothing. Opening and closing are meetings, a line is none: libraries log too,
where not all ranks come. What one of the other ranks alone logs is not in the file.

Relies on: `logging.FileHandler.__init__`, `_open` (documented for those who make handlers), `close`,
`RotatingFileHandler.shouldRollover` and `doRollover`, the same of `TimedRotatingFileHandler`, and
`WatchedFileHandler.reopenIfNeeded`, public.
"""

from __future__ import annotations

import dataclasses
import os
from types import ModuleType
from typing import Any

from matex_tf.patches.common.active_flag import alone
from matex_tf.patches.files import callers, once, takeover
from matex_tf.patches.files.handles import kinds, opened
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import notes

_THROUGH = frozenset(("logging", "logging.handlers", "logging.config"))


@dataclasses.dataclass(frozen=True)
class _Shared(notes.Inside):
    """Of a handler whose file ranks have opened together."""

    call: Call
    heir: _Heir


class _KeepsNothing(notes.Inside):
    """Of a handler: that it is another rank's to write."""


def install(module: ModuleType) -> None:
    """Patch logging or logging.handlers."""
    if module.__name__ == "logging":
        wrap(module, "FileHandler.__init__", _begin)
        wrap(module, "FileHandler._open", _open)
        wrap(module, "FileHandler.close", _close)
    else:
        for kind in ("RotatingFileHandler", "TimedRotatingFileHandler"):
            wrap(module, f"{kind}.shouldRollover", _unless_it_keeps_nothing)
            wrap(module, f"{kind}.doRollover", _unless_it_keeps_nothing)
        wrap(module, "WatchedFileHandler.reopenIfNeeded", _unless_it_keeps_nothing)


class _Heir:
    """Makes a handler real when the rank that had the log has died."""

    def __init__(self, handler: Any):
        self._handler = handler

    def take_over(self) -> int:
        notes.drop(self._handler, _KeepsNothing)
        self._handler.mode = self._handler.mode.replace("w", "a")
        if self._handler.stream is not None:
            self._handler.stream.close()
            self._handler.stream = None  # opened by the next line
        return 0


def _begin(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    file, mode, *_ = taken(args, kwargs, filename=None, mode="a")
    where = callers.caller(_THROUGH) if opened.writes(file, mode) else ""
    if not where:
        return wrapped(*args, **kwargs)
    call = opened.call_of(type(handler).__name__, where, file, mode)

    def elsewhere(sent: None) -> None:
        notes.put(handler, _KeepsNothing())
        wrapped(*args, **kwargs)

    _, shared = once.attempt(call, lambda: wrapped(*args, **kwargs), elsewhere=elsewhere)
    if shared:
        heir = _Heir(handler)
        notes.put(handler, _Shared(call, heir))
        takeover.watch(heir, os.fsdecode(file), call.folder)
    return None


def _open(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    if notes.has(handler, _KeepsNothing):
        return open(os.devnull, "w", encoding="utf-8", errors="replace")
    return wrapped(*args, **kwargs)


def _unless_it_keeps_nothing(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    if notes.has(handler, _KeepsNothing):
        return False
    if not notes.has(handler, _Shared):
        return wrapped(*args, **kwargs)
    with alone():  # it renames files, and the other ranks do not come there
        return wrapped(*args, **kwargs)


def _close(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    shared = notes.drop(handler, _Shared)
    kinds.meet_after("close", None if shared is None else shared.call)
    return result
