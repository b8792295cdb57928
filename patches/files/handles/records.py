"""Files that TensorFlow writes for a script: real on one rank, private ones on the others.

`tf.io.gfile.GFile` and `tf.io.TFRecordWriter`: closing is a meeting. `tf.data.Dataset.save`: every rank goes through
its pipeline, for shuffled ones give another order each time, and what one rank has written is kept. A pipeline's
`cache(filename)` locks its file: the other ranks have caches of their own, in TMPDIR, for as long as the job runs.

Relies on: `tf.io.gfile.GFile`, `tf.compat.v1.gfile.FastGFile`, `tf.io.TFRecordWriter`, `tf.data.Dataset.save` and
`cache`, public; the name of a GFile, `_FileIO__name`, private (TensorFlow 2.16 to 2.21), done without where it is gone.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
import tempfile
from types import ModuleType
from typing import Any

from matex_tf.core import namespaces
from matex_tf.patches.files import callers, once
from matex_tf.patches.files.handles import kinds, opened, privately
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import notes

_NAME = "_FileIO__name"


@dataclasses.dataclass(frozen=True)
class _Shared(notes.Inside):
    """Of a file that ranks have opened together: the call, and the name that the script gave it."""

    call: Call
    name: Any


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    for kind in ("io.gfile.GFile", "compat.v1.gfile.FastGFile"):
        wrap(module, f"{kind}.__init__", _gfile)
        wrap(module, f"{kind}.close", _close)
        wrap(module, f"{kind}.flush", _flush)
    wrap(module, "io.TFRecordWriter.__init__", _records)
    wrap(module, "io.TFRecordWriter.close", _close)
    wrap(module, "io.TFRecordWriter.__exit__", _close)
    wrap(module, "io.TFRecordWriter.flush", _flush)
    wrap(module, "data.Dataset.save", _save)
    wrap(module, "data.Dataset.cache", _cache)


def _gfile(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    name, mode, rest, named = taken(args, kwargs, name=None, mode="r")
    where = callers.caller() if opened.writes(name, mode) else ""
    if not where:
        return wrapped(*args, **kwargs)

    def opening(path: Any) -> None:
        wrapped(path, mode, *rest, **named)
        if mode[0] in "wax":
            file.write(b"" if "b" in mode else "")  # which opens it, and says what is wrong

    call = privately.open_file("GFile", where, name, mode, opening, lambda: file, lasts=True)
    if call is not None:
        notes.put(file, _Shared(call, name))
    return None


def _records(wrapped: Any, writer: Any, args: Any, kwargs: Any) -> Any:
    path, rest, named = taken(args, kwargs, path=None)
    where = callers.caller() if opened.writes(path, "w") else ""
    if not where:
        return wrapped(*args, **kwargs)
    call = privately.open_file(
        "TFRecordWriter", where, path, "w", lambda target: wrapped(target, *rest, **named), lambda: writer
    )
    if call is not None:
        notes.put(writer, _Shared(call, path))
    return None


def _close(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    shared = notes.drop(file, _Shared)
    if shared is not None and hasattr(file, _NAME):
        setattr(file, _NAME, shared.name)
    kinds.meet_after("close", None if shared is None else shared.call)
    return result


def _flush(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    shared = notes.found(file, _Shared)
    kinds.meet_after("flush", None if shared is None else shared.call)
    return result


def _save(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    path, rest, named = taken(args, kwargs, path=None)
    where = callers.caller() if isinstance(path, (str, os.PathLike)) else ""
    if not where:
        return wrapped(*args, **kwargs)

    def elsewhere(sent: None) -> None:
        with tempfile.TemporaryDirectory(prefix="matex-") as folder:
            wrapped(os.path.join(folder, "dataset"), *rest, **named)

    call = opened.call_of("Dataset.save", where, path)
    return once.do(call, lambda: wrapped(*args, **kwargs), lambda sent: None, elsewhere)


def _cache(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    file, rest, named = taken(args, kwargs, filename="")
    where = callers.caller() if isinstance(file, (str, os.PathLike)) and os.fspath(file) else ""
    if not where:
        return wrapped(*args, **kwargs)
    path = os.fspath(file)
    call = Call("Dataset.cache", where, once.describe((path,), {}), os.path.dirname(path) or ".")

    def elsewhere(there: bool) -> Any:
        if there:
            return wrapped(path, *rest, **named)
        folder = tempfile.mkdtemp(prefix="matex-cache-")
        atexit.register(namespaces.here_alone(shutil.rmtree), folder, ignore_errors=True)
        return wrapped(os.path.join(folder, os.path.basename(path)), *rest, **named)

    return once.do(call, lambda: wrapped(path, *rest, **named), lambda made: os.path.exists(f"{path}.index"), elsewhere)
