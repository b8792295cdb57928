"""`numpy.memmap` and `open_memmap` for writing: one rank maps the file, the others a private file without a name.

If every rank made the file, it would be cut to nothing below those that have mapped it already, and what is computed in
place (`array += 1`) would be done once by each rank. Each rank writes as it would. Making the map, flushing it and its
end are meetings, so that whoever reads the file afterwards finds it complete.

Relies on: `numpy.memmap`, its `flush`, `numpy.lib.format.open_memmap`, public; `memmap._mmap`, private (NumPy 1.26 to
2.4).
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import weakref
from types import ModuleType
from typing import Any, NamedTuple

from matex_tf.errors import MatexError
from matex_tf.patches.files import callers
from matex_tf.patches.files.handles import kinds, opened, privately
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import notes

_MODES = {"readwrite": "r+", "write": "w+"}

#: Modules of NumPy that make a map for whoever calls them (`numpy.load`).
_THROUGH = frozenset(f"numpy.lib.{name}" for name in ("format", "_format_impl", "npyio", "_npyio_impl"))


class _Mapped(NamedTuple):
    """Of the map of a file: the call that has made it."""

    call: Call


def install(module: ModuleType) -> None:
    """Patch numpy."""
    wrap(module, "memmap.__new__", _new)
    wrap(module, "memmap.flush", _flush)
    wrap(module.lib.format, "open_memmap", _open)


def _new(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`memmap(filename, dtype, mode, ...)`; the class comes first."""
    kind, file = args[0], args[1] if len(args) > 1 else kwargs.get("filename")
    mode = args[3] if len(args) > 3 else kwargs.get("mode", "r+")
    rest = {name: value for name, value in kwargs.items() if name != "filename"}
    return _mapped("numpy.memmap", lambda path: wrapped(kind, path, *args[2:], **rest), file, _MODES.get(mode, mode))


def _open(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`open_memmap(filename, mode, ...)`: one that makes the file writes a header first; others end in `_new`."""
    file, mode, rest, named = taken(args, kwargs, filename=None, mode="r+")
    if mode != "w+":
        return wrapped(*args, **kwargs)
    return _mapped("open_memmap", lambda path: wrapped(path, mode, *rest, **named), file, mode)


def _mapped(what: str, make: Any, file: Any, mode: Any) -> Any:
    """An array on the file, or on a private one.

    Args:
        make: makes it under a path.

    Raises:
        MatexError: there is no room for a private one.
    """
    where = callers.caller(_THROUGH) if opened.writes(file, mode) else ""
    if not where:
        return make(file)
    array: Any = None

    def opening(path: Any) -> None:
        nonlocal array
        array = make(path)
        if path is not file:
            _reserve(path, file)
            name = os.path.abspath(os.fsdecode(file))
            array.filename = pathlib.Path(name).resolve() if isinstance(file, os.PathLike) else name

    call = privately.open_file(what, where, file, mode, opening, lambda: array._mmap, largest_copy=opened.LARGEST_COPY)
    if call is not None:
        notes.put(array._mmap, _Mapped(call))
        weakref.finalize(array._mmap, kinds.meet_after, "close", call).atexit = False
    return array


def _reserve(path: str, file: Any) -> None:
    """Have room for all of a private file: a process that writes to a map which finds none is killed."""
    try:
        with open(path, "r+b") as private:
            os.posix_fallocate(private.fileno(), 0, os.path.getsize(path))
    except OSError as error:
        raise MatexError(
            f"{os.fsdecode(file)} is mapped for writing, and {tempfile.gettempdir()} has no room for the private file "
            f"of {os.path.getsize(path)} bytes that this rank needs ({error}): let TMPDIR name a directory with more "
            "room, or take --files every-rank and write it on one rank."
        ) from error


def _flush(wrapped: Any, array: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and array.base is mapped:  # flushing a part of an array ends in flushing the whole
        known = notes.found(mapped, _Mapped)
        kinds.meet_after("flush", None if known is None else known.call)
    return result
