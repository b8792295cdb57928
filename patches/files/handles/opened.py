"""`open` for writing: the file is real on one rank, and takes what is written and forgets it on the others.

Each rank writes as it would; closing and flushing are meetings, so that whoever reads the file afterwards, by whatever
means, finds it complete. A file that is read as well as written is a private copy on the other ranks.

Relies on: `builtins.open`, `io.open`, `pathlib.Path.open`, `gzip.open`, `bz2.open`, `lzma.open`, and `close` of the
files that the last three give, public.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matex_tf.patches.common import log_once
from matex_tf.patches.files import callers, once, places, takeover
from matex_tf.patches.files.handles import kinds
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import notes, run_state

#: Bytes of a file up to which the other ranks hold a copy of it.
LARGEST_COPY = 1 << 28

_COMPRESSED = {"gzip": "GzipFile.close", "bz2": "BZ2File.close", "lzma": "LZMAFile.close"}


def install(module: ModuleType) -> None:
    """Patch builtins, io, pathlib, gzip, bz2 or lzma."""
    if module.__name__ == "builtins":
        wrap(module, "open", _open)
        io.open = module.open
    elif module.__name__ == "pathlib":
        wrap(module, "Path.open", _open_path)
    elif module.__name__ in _COMPRESSED:
        wrap(module, "open", _open_compressed)
        wrap(module, _COMPRESSED[module.__name__], _close_compressed)


def _open(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return _shared_open(lambda: wrapped(*args, **kwargs), *args, **kwargs)


def _open_path(wrapped: Any, path: Any, args: Any, kwargs: Any) -> Any:
    return _shared_open(lambda: wrapped(*args, **kwargs), path, *args, **kwargs)


def _shared_open(
    alone: Callable[[], Any],
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    options = (buffering, encoding, errors, newline)
    if isinstance(file, int) and closefd and file in run_state.part(Descriptors):
        held = run_state.part(Descriptors).pop(file)
        if not isinstance(mode, str) or not set(mode) & set("wa+"):
            return alone()
        raw = kinds.RealFile(file, "".join(letter for letter in mode if letter in "wa+r"))
        raw.held = held
        return kinds.built(raw, mode, *options, call=held.call)
    where = callers.caller() if writes(file, mode) and closefd and opener is None else ""
    if not where:
        return alone()
    return open_as(call_of("open", where, file, mode), os.fsdecode(file), mode, options, alone)


@dataclasses.dataclass(frozen=True)
class _Closes(notes.Inside):
    """Of a file that compresses: what is closed with it."""

    raw: Any


class Descriptor:
    """What `os.open` has opened on one rank; see `Descriptors`."""

    def __init__(self, call: Call):
        self.call = call


class Descriptors(dict[int, Descriptor]):
    """Of a run: those that are open, by number; a file that is made of one takes it out of here."""


def call_of(name: str, where: str, file: Any, *details: Any) -> Call:
    """A call that opens a file; ranks that open the same at the same place do so together.

    Args:
        name: of the function, such as "open". where: in the script, such as "train.py:12".
        file: its path. details: what else must be alike, such as the mode.
    """
    path = os.fsdecode(file)
    shown = once.describe((path, *details), {})
    return Call(name, where, shown, os.path.dirname(path) or ".")


def open_as(
    call: Call, path: str, mode: str, options: tuple[int, str | None, str | None, str | None], alone: Callable[[], Any]
) -> Any:
    """Open a file for writing on one rank, and the likeness of one on the others.

    Args:
        call: where the script does. path, mode: as `open` takes them.
        options: buffering, encoding, errors and newline, as `open` takes them.
        alone: opens it on a rank that is on its own.
    """
    raw_mode = "".join(letter for letter in mode if letter in "wax+r")
    copied = "+" in mode and mode[0] != "w"

    def act() -> Any:
        if os.path.isdir(path):
            return open(path, mode)  # says what is wrong
        return kinds.built(kinds.RealFile(path, raw_mode), mode, *options, call=call)

    def elsewhere(size: int) -> Any:
        raw = kinds.Copy(path, copied, "a" in mode) if "+" in mode else kinds.Sink(path, raw_mode, size)
        return kinds.built(raw, mode, *options, call=call)

    places.forget([path])
    file = once.do(call, act, lambda opened: opened.tell(), elsewhere, alone)
    if isinstance(file, kinds.Meets):
        if copied:
            kinds.meet_after("copy", call)
        raw = getattr(getattr(file, "buffer", file), "raw", file)
        takeover.watch(raw if isinstance(raw, kinds.Sink) else file, path, call.folder)
    return file


def writes(file: Any, mode: Any) -> bool:
    """Whether `open` writes to a `file` of a name in this `mode`; devices and what the kernel shows as files are not
    such files."""
    if not isinstance(mode, str) or not set(mode) & set("wax+") or not isinstance(file, (str, bytes, os.PathLike)):
        return False
    path = os.fsdecode(file)
    return not path.startswith(("/dev/", "/proc/")) or path.startswith("/dev/shm/")


def log_too_large(path: str) -> None:
    """Say that a file has more than `LARGEST_COPY` bytes."""
    log_once.log(f"{path} is too large for a copy on each rank: every rank opens it itself, so let one rank write")


def _open_compressed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    file, mode, rest, named = taken(args, kwargs, filename=None, mode="rb")
    where = callers.caller() if writes(file, mode) else ""
    if not where:
        return wrapped(*args, **kwargs)
    path, call = os.fsdecode(file), call_of("open", where, file, mode)
    raw = open_as(call, path, mode.replace("t", "").replace("b", "") + "b", (-1, None, None, None), lambda: None)
    if raw is None:
        return wrapped(file, mode, *rest, **named)
    opened = wrapped(raw, mode, *rest, **named)
    inner = getattr(opened, "buffer", opened)
    notes.put(inner, _Closes(raw))
    return opened


def _close_compressed(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    closes = notes.drop(file, _Closes)
    if closes is not None:
        closes.raw.close()
    return result
