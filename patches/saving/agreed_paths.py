"""Paths that only one rank knows: what is written goes to rank 0's, and the others find it under theirs as well.

`tempfile.mkdtemp()`, `uuid4()` and `time.strftime` give another path on each rank. One rank writes, so rank 0's is
taken: by what saves models (`model_files`), and by callbacks from the start of a `fit` on. A rank whose script then
looks at its own path finds the same there: files are copied, as long as the job runs, where a folder of the rank's own
is there already; large ones are linked. Where there is none, as for a folder that a callback makes, `load_model` and
`load_weights` take rank 0's path.

Relies on (Keras 3.3 to 3.15): `CallbackList.on_train_begin` and `on_train_end`, `ModelCheckpoint.filepath`,
`CSVLogger.filename`, `TensorBoard.log_dir`, `BackupAndRestore.backup_dir`, `OrbaxCheckpoint.directory` (3.13 to 3.15),
`saving_api.load_model` and `load_weights`, `Model.load_weights`, public; paths that `BackupAndRestore` makes of its
own, private, done without where they are gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import keras_lines, log_once, wrapping
from matex_tf.patches.common.active_flag import each_writes
from matex_tf.state import notes, run_state

_BACKUPS = ("_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path")
#: Where a callback of Keras, or of a class that is made from it, keeps paths; the first is the one that was given.
_ATTRIBUTES = {
    "ModelCheckpoint": ("filepath",),
    "CSVLogger": ("filename",),
    "TensorBoard": ("log_dir",),
    "BackupAndRestore": ("backup_dir", *_BACKUPS),
    "OrbaxCheckpoint": ("directory",),
}
_COPIED = 100 << 20  # bytes; a file that is larger is linked, as each rank of a node would need room for it


class _Alike:
    """Of a list of callbacks: that these are of the same kinds on all ranks."""


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list, keras.src.saving.saving_api and keras.src.models.model.

    And of tf_keras.src: callbacks, saving.saving_api and engine.training.
    """
    if module.__name__.endswith(("callback_list", ".callbacks")):
        wrapping.wrap(module, "CallbackList.on_train_begin", _begin)
        wrapping.wrap(module, "CallbackList.on_train_end", _end)
    elif module.__name__.endswith("saving_api"):
        wrapping.wrap(module, "load_model", lambda wrapped, instance, args, kwargs: _load(wrapped, args, kwargs, 0))
        wrapping.wrap(module, "load_weights", lambda wrapped, instance, args, kwargs: _load(wrapped, args, kwargs, 1))
        wrapping.rebind(module, "load_model", "load_weights")
    else:
        wrapping.wrap(
            module, "Model.load_weights", lambda wrapped, instance, args, kwargs: _load(wrapped, args, kwargs, 0)
        )


def agreed(path: str, what: str) -> str:
    """Rank 0's path. Every rank must call, but one that writes by itself.

    Args:
        what: the purpose, see `World.barrier`.
    """
    if each_writes():
        return path
    ranks = world.current()
    everyone = ranks.allgather(path, what)
    _known().learn(everyone, ranks.rank)
    return everyone[0]


def offer(path: str, endings: Sequence[str] = ("",)) -> None:
    """Let each rank find under its own path what rank 0 has written. Every rank must call.

    Args:
        path: a file or a folder.
        endings: of several files whose names begin so.
    """
    paths = _known()
    if not paths.differ or each_writes():
        return
    ranks = world.current()
    linked: list[str] = []
    if ranks.rank and (own := paths.own(path)) is not None:
        for ending in endings:
            with contextlib.suppress(OSError):
                linked += paths.mirror(os.path.abspath(path) + ending, own + ending)
    for file in sum(ranks.allgather(linked, "see what rank 0 has written"), []):
        log_once.log(
            f"{file} is larger than {_COPIED >> 20} MB: other ranks have it as a link under their own path, not as a "
            "copy; a script that changes it must copy it first"
        )


def withdraw(path: str) -> None:
    """Rank 0 has removed it: so do the others with what stands for it."""
    paths = _known()
    own = paths.own(path) if paths.differ else None
    if own is not None:
        paths.remove(own)


class Paths:
    """What this rank knows of paths that differ, and what it has made to stand for rank 0's files.

    Attributes:
        differ: whether any rank has had a path of its own; the same on all ranks.
    """

    def __init__(self) -> None:
        self.differ = False
        self._theirs: dict[str, str] = {}  # how paths of this rank begin, and how those of rank 0 do
        self._made: list[str] = []  # files and folders, for as long as the job runs, the innermost last
        self._seen: dict[str, tuple[int, int, int]] = {}  # the file of rank 0's that each file was copied from

    def learn(self, everyone: list[str], rank: int) -> None:
        """Take note of the paths of all ranks for the same thing, `everyone`; `rank` is this one."""
        mine, theirs = everyone[rank], everyone[0]
        if len(set(everyone)) > 1:
            self.differ = True
            other = next(path for path in everyone if path != theirs)
            log_once.log(f"the path differs between ranks, and that of rank 0 is used: {theirs}, not {other}")
        if mine == theirs:
            return
        mine, theirs = os.path.abspath(mine), os.path.abspath(theirs)
        same = 0
        while same < min(len(mine), len(theirs)) and mine[-1 - same] == theirs[-1 - same]:
            same += 1
        self._theirs[mine[: len(mine) - same]] = theirs[: len(theirs) - same]

    def own(self, path: str) -> str | None:
        """What this rank's script calls a path of rank 0's; None where it has no other name for it."""
        path = os.path.abspath(path)
        for begin, theirs in reversed(self._theirs.items()):
            if path.startswith(theirs):
                return begin + path[len(theirs) :]
        return None

    def theirs(self, path: str) -> str:
        """What rank 0 calls a path of this rank's; empty where it has no other name for it."""
        mine = os.path.abspath(path)
        pairs = reversed(self._theirs.items())
        return next((theirs + mine[len(begin) :] for begin, theirs in pairs if mine.startswith(begin)), "")

    def mirror(self, path: str, own: str) -> list[str]:
        """Let a file, or all files of a folder, be found under another path too.

        Args:
            path: rank 0's. own: what this rank calls it.

        Returns:
            The files that were linked, and not copied.
        """
        pairs = zip(path.split(os.sep), own.split(os.sep), strict=False)
        same = next((place for place, (theirs, mine) in enumerate(pairs) if theirs != mine), 0)
        apart = os.sep.join(own.split(os.sep)[: same + 1])  # the first part of the path that is this rank's alone
        if apart != own and not os.path.isdir(apart):
            return []
        if not os.path.isdir(path):
            return self._mirror_file(path, own)
        linked = []
        for folder, _, files in os.walk(path):
            self._make_folder(os.path.join(own, os.path.relpath(folder, path)))
            for name in files:
                beside = os.path.join(own, os.path.relpath(folder, path), name)
                linked += self._mirror_file(os.path.join(folder, name), beside)
        return linked

    def _mirror_file(self, path: str, own: str) -> list[str]:
        """Copy a file, as a script may change what is under its own path; link it if it is large. See `mirror`."""
        own = os.path.normpath(own)
        file = os.stat(path)
        state = (file.st_ino, file.st_size, file.st_mtime_ns)
        if os.path.exists(own) and (os.path.samefile(path, own) or self._seen.get(own) == state):
            return []  # it was written in its place, or has not been written since
        self._make_folder(os.path.dirname(own))
        beside = tempfile.mkdtemp(prefix=".matex-", dir=os.path.dirname(own))
        try:
            draft = os.path.join(beside, "file")
            linked = file.st_size > _COPIED and _linked(path, draft)
            if not linked:
                shutil.copy2(path, draft)
            os.replace(draft, own)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._made.append(own)
        self._seen[own] = state
        return [path] if linked else []

    def _make_folder(self, path: str) -> None:
        path = os.path.normpath(path)
        if not os.path.isdir(path):
            self._make_folder(os.path.dirname(path))
            os.mkdir(path)
            self._made.append(path)

    def remove(self, own: str = "") -> None:
        """Remove the files and empty folders that this rank has made: at a path, or all of them."""
        for path in reversed(self._made.copy()):
            if not own or path == own or path.startswith(own + os.sep):
                with contextlib.suppress(OSError):
                    os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
                self._made.remove(path)


def _known() -> Paths:
    return run_state.current().part(Paths)


def _linked(path: str, draft: str) -> bool:
    """Link a file, if that can be done: not between file systems."""
    try:
        os.link(path, draft)
    except OSError:
        return False
    return True


@atexit.register
def _remove_all() -> None:
    """All ranks have come to the end of the script."""
    if not world.forked():
        _known().remove()


def _begin(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    """From here on callbacks have the paths of rank 0."""
    if each_writes():
        return wrapped(*args, **kwargs)
    mine = [(kind, {name: _text(callback, name) for name in found}) for kind, callback, found in _with_paths(callbacks)]
    ranks = world.current()
    everyone = ranks.allgather(mine, "compare the paths of callbacks")
    kinds = [[kind for kind, _ in one] for one in everyone]
    if all(one == kinds[0] for one in kinds):
        notes.put(callbacks, _Alike())
        for place, (_, callback, found) in enumerate(_with_paths(callbacks)):
            paths = [one[place][1] for one in everyone]
            _known().learn([path[found[0]] for path in paths], ranks.rank)
            for name in found:
                if paths[0].get(name, "") not in ("", mine[place][1][name]):
                    setattr(callback, name, paths[0][name])
    return wrapped(*args, **kwargs)


def _end(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    for kind, callback, found in _with_paths(callbacks) if _known().differ and notes.has(callbacks, _Alike) else ():
        if kind in ("CSVLogger", "TensorBoard"):
            offer(_text(callback, found[0]))
    return result


def _with_paths(callbacks: Any) -> list[tuple[str, Any, list[str]]]:
    """The callbacks that have paths: the class of Keras, the callback, and the names of those that it has."""
    result = []
    for callback in callbacks.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in _ATTRIBUTES and kind.__module__.startswith(keras_lines.PREFIXES):
                found = [name for name in _ATTRIBUTES[kind.__name__] if _text(callback, name)]
                if found:
                    result.append((kind.__name__, callback, found))
                break
    return result


def _text(callback: Any, name: str) -> str:
    path = getattr(callback, name, None)
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""


def _load(wrapped: Any, args: Any, kwargs: Any, position: int) -> Any:
    """Where this rank has nothing under its own path, rank 0's may be there."""
    path = kwargs.get("filepath", args[position] if len(args) > position else None)
    if not isinstance(path, (str, os.PathLike)) or not (theirs := _known().theirs(os.fspath(path))):
        return wrapped(*args, **kwargs)
    if os.path.exists(path) or not theirs or not os.path.exists(theirs):
        return wrapped(*args, **kwargs)
    if "filepath" in kwargs:
        return wrapped(*args, **{**kwargs, "filepath": theirs})
    return wrapped(*args[:position], theirs, *args[position + 1 :], **kwargs)
