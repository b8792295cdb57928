"""The calls that are done once: functions and methods that change files or start programs, and return when it is done.

To add one, add a line to `CALLS`: the rest follows from it. What gives an object that goes on writing has a file of its
own: `opened`, `archives`, `databases`, `processes`.

Relies on: the names in `CALLS`, all public. What this Python or this version of a package does not have is left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from matex_tf.patches.files import callers, once, places
from matex_tf.patches.files.wrapping import wrap

_GONE = (FileNotFoundError,)
_THERE = (FileExistsError,)


@dataclass(frozen=True)
class _Kind:
    """Functions of a module, or methods of a class, that are done once.

    Attributes:
        names: separated by spaces.
        place: which argument is the path that changes; None for the working directory, -1 for the object itself.
        keyword: the name of that argument. A call that has a file object or nothing there is left alone.
        done_before: what they raise where a rank that has died had done it.
        eager: whether they are left alone where TensorFlow builds a graph.
    """

    module: str
    names: str
    place: int | None = 0
    keyword: str = ""
    owner: str = ""
    done_before: tuple[type[Exception], ...] = ()
    eager: bool = False


CALLS = (
    _Kind("os", "remove unlink rmdir", 0, "path", done_before=_GONE),
    _Kind("os", "mkdir mkfifo", 0, "path", done_before=_THERE),
    _Kind("os", "makedirs removedirs", 0, "name", done_before=(*_THERE, *_GONE)),
    _Kind("os", "rename replace", 1, "dst", done_before=_GONE),
    _Kind("os", "renames", 1, "new", done_before=_GONE),
    _Kind("os", "link symlink", 1, "dst", done_before=_THERE),
    _Kind("os", "chmod chown utime truncate", 0, "path"),
    _Kind("os", "system", None),
    _Kind("pathlib", "unlink rmdir", -1, owner="Path", done_before=_GONE),
    _Kind("pathlib", "mkdir symlink_to hardlink_to", -1, owner="Path", done_before=_THERE),
    _Kind("pathlib", "touch write_text write_bytes chmod", -1, owner="Path"),
    _Kind("pathlib", "rename replace", 0, "target", owner="Path", done_before=_GONE),
    _Kind("shutil", "rmtree", 0, "path", done_before=_GONE),
    _Kind("shutil", "copy copy2 copyfile copymode copystat copytree", 1, "dst"),
    _Kind("shutil", "move", 1, "dst", done_before=_GONE),
    _Kind("shutil", "unpack_archive", 1, "extract_dir"),
    _Kind("shutil", "make_archive", 0, "base_name"),
    _Kind("zipfile", "extract extractall", 0, "path", owner="ZipFile"),
    _Kind("tarfile", "extract extractall", 0, "path", owner="TarFile"),
    _Kind("subprocess", "run call check_call check_output getoutput getstatusoutput", None),
    _Kind("numpy", "save savez savez_compressed", 0, "file"),
    _Kind("numpy", "savetxt", 0, "fname"),
    _Kind("pandas", "to_csv to_json to_html to_latex to_string to_xml to_markdown", 0, "path_or_buf", "DataFrame"),
    _Kind("pandas", "to_parquet to_feather to_stata to_pickle to_orc", 0, "path", "DataFrame"),
    _Kind("pandas", "to_excel", 0, "excel_writer", "DataFrame"),
    _Kind("pandas", "to_hdf", 0, "path_or_buf", "DataFrame"),
    _Kind("pandas", "to_csv to_json to_string", 0, "path_or_buf", "Series"),
    _Kind("pandas", "to_pickle", 0, "path", "Series"),
    _Kind("pandas", "to_pickle", 1, "filepath_or_buffer"),
    _Kind("matplotlib.pyplot", "savefig imsave", 0, "fname"),
    _Kind("matplotlib.figure", "savefig", 0, "fname", "Figure"),
    _Kind("matplotlib.animation", "save", 0, "filename", "Animation"),
    _Kind("PIL.Image", "save", 0, "fp", "Image"),
    _Kind("joblib", "dump", 1, "filename"),
    _Kind("tensorflow", "remove rmtree mkdir makedirs", 0, "path", "io.gfile"),
    _Kind("tensorflow", "copy rename", 1, "dst", "io.gfile"),
    _Kind("tensorflow", "write_file", 0, "filename", "io", eager=True),
    _Kind("tensorflow", "write_graph", 1, "logdir", "io"),
    _Kind("keras.src.utils.image_utils", "save_img", 0, "path"),
    _Kind("keras.src.utils.model_visualization", "plot_model", 1, "to_file"),
    _Kind("cv2", "imwrite imwritemulti", 0, "filename"),
    _Kind("scipy.io.wavfile", "write", 0, "filename"),
    _Kind("scipy.io", "savemat", 0, "file_name"),
    _Kind("scipy.sparse", "save_npz", 0, "file"),
    _Kind("urllib.request", "urlretrieve", 1, "filename"),
)

#: Modules whose calls may leave the path out: the working directory is meant.
_HERE_WHERE_MISSING = ("shutil", "zipfile", "tarfile", "keras.src.utils.model_visualization")


def modules() -> list[str]:
    """The modules that have such calls."""
    return list(dict.fromkeys(kind.module for kind in CALLS))


def install(module: ModuleType) -> None:
    """Patch one of these modules."""
    for kind in CALLS:
        if kind.module == module.__name__:
            owner: Any = module
            for part in filter(None, kind.owner.split(".")):
                owner = getattr(owner, part, None)
            for name in kind.names.split():
                if hasattr(owner, name):
                    wrap(module, f"{kind.owner}.{name}" if kind.owner else name, _once(kind, name))


def _once(kind: _Kind, name: str) -> Any:
    shown = ".".join(filter(None, (kind.owner or kind.module, name)))

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        where = callers.caller()
        folder = _folder(kind, instance, args, kwargs) if where else None
        if folder is None:
            return wrapped(*args, **kwargs)
        of = () if instance is None else (instance,)
        call = once.Call(shown, where, once.describe((*of, *args), kwargs), folder)
        try:
            return once.do(call, lambda: wrapped(*args, **kwargs), done_before=kind.done_before)
        finally:
            places.forget((*of, *args, *kwargs.values()))

    return wrapper


def _folder(kind: _Kind, instance: Any, args: Any, kwargs: Any) -> str | None:
    """Where files change; None for a call that changes no file of a name."""
    if kind.place is None:
        return os.fspath(kwargs.get("cwd") or ".")
    if kind.place == -1:
        target = instance
    elif kind.place < len(args):
        target = args[kind.place]
    else:
        target = kwargs.get(kind.keyword)
    if target is None and kind.module in _HERE_WHERE_MISSING:
        return "."
    if kind.eager:
        import tensorflow as tf

        if not tf.executing_eagerly():
            return None
        if isinstance(target, tf.Tensor):
            target = target.numpy()
    # Objects that write, such as pandas' ExcelWriter, may have a path too.
    if not isinstance(target, (str, bytes, os.PathLike)) or hasattr(target, "close"):
        return None
    path = os.fsdecode(target)
    return os.path.dirname(path) or "."
