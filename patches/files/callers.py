"""Whether a call is the script's own: made by its code, in its main thread, in a script that does not ask for its rank.

The script's code is the file that was run and the modules under its folder, without those of packages and of Python.
What libraries do in their own code stays as it is: they know nothing of ranks, and many meet by themselves.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import mmap
import os
import sys
import threading
from collections.abc import Container

import wrapt

import matex_tf
from matex_tf import settings
from matex_tf.core import world
from matex_tf.layer import asking
from matex_tf.patches.common import active_flag, sharing_report, wrapping
from matex_tf.state import run_state

_READERS = importlib.util.find_spec("matex_tf.readers")
_OURS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (os.path.dirname(__file__), matex_tf.__file__, wrapt.__file__, _READERS.origin if _READERS else None)
    if path
)

#: Modules of Python and of packages that do no more than open a file for whoever calls them, with `open`.
_THROUGH = frozenset(
    (
        *("codecs", "wave", "matplotlib.backends.backend_pdf", "pandas.io.common"),
        *(f"pandas.io.excel.{name}" for name in ("_base", "_openpyxl", "_xlsxwriter", "_odswriter")),
    )
)


class _Libraries:
    """The names of all modules but those of trackers, which the first rank alone reports with."""

    def __contains__(self, name: object) -> bool:
        return str(name).partition(".")[0] not in ("clearml", "comet_ml", "mlflow", "neptune", "wandb")


#: For `caller`: the script may have called by any library.
LIBRARIES = _Libraries()


class Script:
    """The script that is run, and its modules.

    Attributes:
        folders: where its code lies; none for a script without a name, which has no code.
    """

    def __init__(self, script: str = "", is_module: bool = False, text: str = ""):
        """Describe a script.

        Args:
            script: the path of a file or, where `is_module`, the name of a module that is found from here.
            text: the source of a script that is in no file.
        """
        self.folders: tuple[str, ...] = ()
        self._shown: dict[str, str] = {}  # by the name of a code's file
        self._modules_seen = 0
        self._asks = False
        if script:
            path = os.path.abspath("x" if is_module or text else script)
            self.folders = tuple({os.path.dirname(path) + os.sep, os.path.dirname(os.path.realpath(path)) + os.sep})
            source = asking.file_of_module(script) if is_module else path
            self._asks = bool(source) and asking.for_rank(source, text)
            if text:
                self._shown = dict.fromkeys(("<string>", "<stdin>", script), script)

    def shown(self, path: str) -> str:
        """The name of a file of the script's below its folder; empty for every other file."""
        found = self._shown.get(path)
        if found is None:
            folder = next((folder for folder in self.folders if path.startswith(folder)), "")
            own = folder and not path.startswith(_OURS) and sharing_report.of_the_script(path)
            found = self._shown[path] = path[len(folder) :] if own else ""
        return found

    def asks(self) -> bool:
        """Whether the script, or one of its modules that are loaded, asks which rank it is."""
        if not self._asks and len(sys.modules) != self._modules_seen:
            self._modules_seen = len(sys.modules)
            files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
            for path in files:
                if isinstance(path, str) and path not in self._shown:
                    self._asks = self._asks or (bool(self.shown(path)) and asking.for_rank(path))
        return self._asks


def use(script: str, is_module: bool = False, text: str = "") -> None:
    """Say which script is run, see `Script`; before that, and for an empty name, no call is its own."""
    run_state.current().begin(Script(script, is_module, text))


def _script() -> Script:
    return run_state.current().part(Script)


class _Process:
    """Of a run; Python calls it as it begins to collect garbage, and when that is done.

    Attributes:
        collecting: whether it does that now.
        said_forked: a byte that processes share which are forked: whether `_say_forked` has spoken.
    """

    def __init__(self) -> None:
        self.collecting, self.said_forked = False, mmap.mmap(-1, 1)

    def __call__(self, phase: str, info: object) -> None:
        self.collecting = phase == "start"


gc.callbacks.append(run_state.part(_Process))
atexit.register(use, "")  # after what the script has registered; files that are left open are closed later still


def shared() -> bool:
    """Whether the ranks may meet here: not in another thread, in a collection of garbage, or where one writes alone."""
    return bool(
        _script().folders
        and not run_state.part(_Process).collecting
        and not active_flag.each_writes()
        and threading.get_ident() == threading.main_thread().ident
        and not wrapping.is_aside()
        and not wrapping.alone()
        and not asks()
    )


def caller(through: Container[str] = _THROUGH) -> str:
    """Where the script calls what is patched, such as "train.py:12"; empty where it does not, or nobody can meet.

    Args:
        through: names of modules that the script may have called it by.
    """
    script = _script()
    if not script.folders or active_flag.each_writes():
        return ""
    frame = sys._getframe(1)
    while not (shown := script.shown(frame.f_code.co_filename)) and (
        frame.f_back is not None
        and (frame.f_code.co_filename.startswith(_OURS) or frame.f_globals.get("__name__") in through)
    ):
        frame = frame.f_back
    if shown and world.forked():
        _say_forked(f"{shown}:{frame.f_lineno}")
    return f"{shown}:{frame.f_lineno}" if shown and shared() else ""


def _say_forked(where: str) -> None:
    """Say once, of all processes that the script forks, that they are not in one another's place."""
    said = run_state.part(_Process).said_forked
    if world.rank() == 0 and settings.current().notes and _script().folders and not asks() and not said[0]:
        said[0] = 1
        world.current().log(
            f"{where} changes files or starts programs in a forked process, and so does that of every rank. Do it in "
            "the main process to have it done once (docs/files.md)"
        )


def asks() -> bool:
    """Whether the script, or one of its modules that are loaded, asks which rank it is."""
    return _script().asks()
