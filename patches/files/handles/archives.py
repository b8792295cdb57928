"""`zipfile.ZipFile` and `tarfile.open` for writing: the archive is real on one rank, a private file on the others.

Closing is a meeting, so that whoever opens the archive afterwards finds it complete. Reading needs none.

Relies on: `ZipFile.__init__` and `close`, `TarFile.__init__` and `close`, `tarfile.TarFile.open`, public.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.patches.files import callers
from matex_tf.patches.files.handles import kinds, opened, privately
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import notes


def install(module: ModuleType) -> None:
    """Patch zipfile or tarfile."""
    if module.__name__ == "zipfile":
        wrap(module, "ZipFile.__init__", _zip)
        wrap(module, "ZipFile.close", _close)
    else:
        wrap(module, "TarFile.open", _tar)
        wrap(module, "TarFile.close", _close)
        module.open = module.TarFile.open  # type: ignore[attr-defined]


def _zip(wrapped: Any, archive: Any, args: Any, kwargs: Any) -> Any:
    def opening(path: Any) -> Any:
        if "file" in kwargs:
            return wrapped(*args, **{**kwargs, "file": path})
        return wrapped(path, *args[1:], **kwargs)

    file, mode, *_ = taken(args, kwargs, file=None, mode="r")
    where = callers.caller() if opened.writes(file, mode) else ""
    if not where:
        return opening(file)
    call = privately.open_file("ZipFile", where, file, mode, opening, lambda: archive)
    archive.filename = os.fspath(file)
    if call is not None:
        notes.put(archive, call)
    return None


def _tar(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    file, mode, rest, named = taken(args, kwargs, name=None, mode="r")
    given, *_ = taken(rest, named, fileobj=None)
    where = callers.caller() if given is None and opened.writes(file, mode) and "|" not in mode else ""
    if not where:
        return wrapped(*args, **kwargs)
    archives = []

    def opening(path: Any) -> None:
        archives.append(wrapped(path, mode, *rest, **named))

    call = privately.open_file("TarFile", where, file, mode, opening, lambda: archives[-1])
    if call is not None:
        notes.put(archives[-1], call)
    return archives[-1]


def _close(wrapped: Any, archive: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    kinds.meet_after("close", notes.drop(archive, Call))
    return result
