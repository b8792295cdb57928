"""What a library opens by a path and changes by ways of its own: real on one rank, a private copy on the others.

A library opens and closes its databases, journals and stores when it likes. So ranks meet when one of a path is opened
for the first time, and never again for that path, unless the script itself changes what lies there (`forget`).

To add one, add a line to `STORES`, and its module to those of `table`.

Relies on: the names in `STORES`, all public. What this version of a package does not have is left out.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from matex_tf.core import namespaces
from matex_tf.patches.files import callers, once, places
from matex_tf.patches.files.handles import kinds, opened
from matex_tf.patches.files.wrapping import wrap


@dataclass(frozen=True)
class _Kind:
    """Functions, or methods that make an object, whose first argument is the path of a store.

    Attributes:
        names: separated by spaces.
        keyword: the name of that argument.
        mode: the name of the argument that says whether it is changed, the second one where it has no name.
        default: what that is if it is not given.
    """

    module: str
    names: str
    keyword: str
    mode: str = "mode"
    default: str = "a"


STORES = (
    _Kind("dbm", "open", "file", "flag", "r"),
    _Kind("diskcache", "Cache.__init__", "directory"),
    _Kind("keras_tuner", "Tuner.__init__", "directory"),
    _Kind("lmdb", "open Environment", "path"),
    _Kind("netCDF4", "Dataset", "filename", default="r"),
    _Kind("optuna.storages.journal", "JournalFileBackend.__init__", "file_path"),
    _Kind("tables", "open_file", "filename", default="r"),
    _Kind(
        "zarr.api.synchronous",
        "array consolidate_metadata create create_array create_hierarchy empty from_array full group ones open "
        "open_array open_consolidated open_group save save_array save_group zeros",
        "store",
    ),
    _Kind("zarr.storage", "LocalStore.__init__", "root"),
)

#: What `dbm` puts behind the name of a database.
_ENDINGS = ("", ".db", ".dat", ".dir", ".bak", ".pag")


def install(module: ModuleType) -> None:
    """Patch one of these modules."""
    for kind in STORES:
        for name in kind.names.split() if kind.module == module.__name__ else ():
            if hasattr(module, name.partition(".")[0]):
                wrap(module, name, _opens(kind, name))


def _opens(kind: _Kind, name: str) -> Any:
    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        path = kwargs.get(kind.keyword, args[0] if args else None)
        if not isinstance(path, (str, bytes, os.PathLike)) or "://" in os.fsdecode(path):
            return wrapped(*args, **kwargs)
        mode = kwargs.get(kind.mode, args[1] if len(args) > 1 and isinstance(args[1], str) else None) or kind.default
        reads = mode.rstrip("s") == "r" or kwargs.get("readonly") or kwargs.get("read_only")
        empty = mode.rstrip("s") in ("w", "n") and not kwargs.get("path")
        found = place(f"{kind.module}.{name}", os.fsdecode(path), bool(reads), None if empty else copy)
        if kind.keyword in kwargs:
            return wrapped(*args, **{**kwargs, kind.keyword: found})
        return wrapped(found, *args[1:], **kwargs)

    return wrapper


def place(name: str, path: str, reads: bool, copying: Callable[[str, str], None] | None) -> str:
    """Where this rank has what a library opens. The first time the ranks meet, if they can.

    Args:
        name: of the function.
        reads: whether the library only reads it: it stays where it is, if none has changed it.
        copying: copies what is at one path to another, see `copy`; None if it will be emptied.
    """
    if found := places.find(path):
        return found
    where = "" if reads else callers.caller(callers.LIBRARIES)
    if not where:
        return path
    call = opened.call_of(name, where, path)

    def elsewhere(size: int) -> str:
        if size > opened.LARGEST_COPY:
            opened.log_too_large(path)
            return path
        folder = tempfile.mkdtemp(prefix="matex-")
        atexit.register(namespaces.here_alone(shutil.rmtree), folder, ignore_errors=True)
        private = os.path.join(folder, os.path.basename(os.path.normpath(path)))
        if size and copying:
            copying(path, private)
        return private

    found = once.do(call, lambda: path, lambda _: _size(path) if copying else 0, elsewhere, lambda: "")
    places.remember(path, found or path)
    if found:
        kinds.meet_after("copy", call)
    return found or path


def _size(path: str) -> int:
    """The bytes of a file or of all files in a directory, and of what `dbm` puts beside it."""
    found = 0
    for name in _parts(path):
        found += os.path.getsize(name)
        for folder, _, names in os.walk(name):
            found += sum(os.lstat(os.path.join(folder, each)).st_size for each in names)
    return found


def copy(path: str, private: str) -> None:
    """Have what is at one `path`, a file or a folder with those beside it that belong to it, at another one,
    `private`."""
    for name in _parts(path):
        copying = shutil.copytree if os.path.isdir(name) else shutil.copyfile
        copying(name, private + name[len(path) :])


def _parts(path: str) -> list[str]:
    return [path + ending for ending in _ENDINGS if os.path.exists(path + ending)]
