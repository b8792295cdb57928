"""Whether a call is the script's own: made by its code, in its main thread, in a script that does not ask for its rank.

The script's code is the file that was run and the modules under its folder, without those of packages and of Python.
What libraries do in their own code stays as it is: they know nothing of ranks, and many meet by themselves.
"""

from __future__ import annotations

import ast
import atexit
import gc
import importlib.util
import os
import sys
import threading

import wrapt

import matex_tf
from matex_tf import patches
from matex_tf.patches.common import active_flag, sharing_report, wrapping

#: Where launchers tell a process its rank; a script that has one of these names shares its work out by itself.
RANK_VARIABLES = frozenset(
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID"),
        *("SLURM_PROCID", "SLURM_LOCALID"),
    )
)
_RANK_NAMES = frozenset(("rank", "local_rank", "init", "world"))  # of matex_tf
_READERS = importlib.util.find_spec("matex_tf.readers")
_OURS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (patches.__file__, matex_tf.__file__, wrapt.__file__, _READERS.origin if _READERS else None)
    if path
)

#: Modules of Python and of packages that do no more than open a file for whoever calls them, with `open`.
_THROUGH = frozenset(
    (
        *("codecs", "wave", "matplotlib.backends.backend_pdf", "pandas.io.common"),
        *(f"pandas.io.excel.{name}" for name in ("_base", "_openpyxl", "_xlsxwriter", "_odswriter")),
    )
)

_folders: tuple[str, ...] = ()
_own: dict[str, str] = {}  # by the name of a code's file: how it is shown, empty where it is none of the script's
_modules_seen = 0
_asks = False
_collecting = False


def use(script: str, is_module: bool = False) -> None:
    """Say which script is run; before that, and for an empty name, no call is its own.

    Args:
        script: the path of a file or, where `is_module`, the name of a module that is found from here.
    """
    global _folders, _asks, _modules_seen
    _own.clear()
    _modules_seen, _asks, _folders = 0, False, ()
    if not script:
        return
    path = os.path.abspath("x" if is_module else script)
    _folders = tuple({os.path.dirname(path) + os.sep, os.path.dirname(os.path.realpath(path)) + os.sep})
    if not is_module:
        _asks = _asks_for_rank(path)


def _stop() -> None:
    use("")


def _watch_collections(phase: str, info: object) -> None:
    global _collecting
    _collecting = phase == "start"


gc.callbacks.append(_watch_collections)
atexit.register(_stop)  # after what the script has registered; files that are left open are closed later still


def shared() -> bool:
    """Whether the ranks may meet here: not in another thread, in a collection of garbage, or where one writes alone."""
    return bool(
        _folders
        and not _collecting
        and not active_flag.alone
        and threading.get_ident() == threading.main_thread().ident
        and not wrapping.is_aside()
        and not wrapping.alone()
        and not asks()
    )


def caller(through: frozenset[str] = _THROUGH) -> str:
    """Where the script calls what is patched, such as "train.py:12"; empty where it does not, or nobody can meet.

    Args:
        through: names of modules that the script may have called it by.
    """
    if not _folders:
        return ""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_OURS) or frame.f_globals.get("__name__") in through
    ):
        frame = frame.f_back
    name = frame.f_code.co_filename
    shown = _own.get(name)
    if shown is None:
        shown = _own[name] = _shown(name)
    return f"{shown}:{frame.f_lineno}" if shown and shared() else ""


def asks() -> bool:
    """Whether the script, or one of its modules that are loaded, asks which rank it is."""
    global _asks, _modules_seen
    if not _asks and len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        for path in files:
            if isinstance(path, str) and path not in _own:
                _own[path] = _shown(path)
                _asks = _asks or bool(_own[path]) and _asks_for_rank(path)
    return _asks


def _shown(path: str) -> str:
    """The name of a file of the script's below its folder; empty for every other file."""
    folder = next((folder for folder in _folders if path.startswith(folder)), "")
    own = folder and not path.startswith(_OURS) and sharing_report.of_the_script(path)
    return path[len(folder) :] if own else ""


def _asks_for_rank(path: str) -> bool:
    """Whether a file of source imports mpi4py, asks matex_tf for its rank, or looks into a launcher's variables."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False  # a binary module, or a folder that is run; Python says what is wrong with the rest
    ours: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name.partition(".")[0] for alias in node.names]
            ours.update(alias.asname or "matex_tf" for alias in node.names if alias.name == "matex_tf")
        elif isinstance(node, ast.ImportFrom):
            modules = [(node.module or "").partition(".")[0]]
            if modules == ["matex_tf"] and any(alias.name in _RANK_NAMES for alias in node.names):
                return True
        else:
            continue
        if "mpi4py" in modules:
            return True
    return any(
        (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in RANK_VARIABLES)
        or (
            isinstance(node, ast.Attribute)
            and node.attr in _RANK_NAMES
            and isinstance(node.value, ast.Name)
            and node.value.id in ours
        )
        for node in ast.walk(tree)
    )
