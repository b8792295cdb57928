"""The traceback of an error of the script, without the frames that are none of its business, as Keras shows its own."""

from __future__ import annotations

import os
import re
import traceback
from types import TracebackType

import wrapt

import matex_tf
from matex_tf import settings

_OURS = os.path.dirname(os.path.abspath(matex_tf.__file__))
_FRAME = re.compile(r'( *)File "([^"]+)", line \d+')
_MOST = 1000  # characters of the last line
_LEFT_OUT = "(The last frames are of matex_tf, and left out: --traceback full shows them.)\n"


def whole(error: BaseException, tb: TracebackType | None) -> str:
    """An error as Python prints it; with `--traceback short` without frames of matex_tf and wrapt.

    Frames that TensorFlow quotes in a message are left out too, and those of errors that led to this one.

    Args:
        error: whose message, causes and notes are in it.
        tb: the frames to show of it; None for none.
    """
    text = "".join(traceback.format_exception(type(error), error, tb))
    return text if settings.current().traceback == "full" else without_ours(text)


def message(error: BaseException) -> str:
    """The last lines of a traceback; also of an error whose `__str__` fails."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def summary(error: BaseException) -> str:
    """What went wrong, on one line: all of the message, unless that is very long."""
    words = " ".join(message(error).split())
    return words if len(words) <= _MOST else f"{words[: _MOST - 201]}…{words[-200:]}"


def without_ours(text: str) -> str:
    """The text of a traceback without frames of ours; all of it where no other frame is left."""
    kept: list[str] = []
    leaving: int | None = None  # out what is further to the right than this
    frames, last_is_ours = 0, False
    for line in text.splitlines(keepends=True):
        found = _FRAME.match(line)
        if found is not None:
            last_is_ours = _is_ours(found[2])
            leaving = len(found[1]) if last_is_ours else None
            frames += not last_is_ours
        elif leaving is not None and len(line) - len(line.lstrip(" ")) <= leaving:
            leaving = None
        if leaving is None:
            kept.append(line)
    if not frames:
        return text
    return "".join(kept) + (_LEFT_OUT if last_is_ours else "")


def _is_ours(path: str) -> bool:
    return any(os.path.abspath(path).startswith(f"{folder}{os.sep}") for folder in _folders())


def _folders() -> list[str]:
    """Where the packages lie; readers and patches are elsewhere than the rest if this is installed editable."""
    beside = _OURS if os.path.isdir(os.path.join(_OURS, "patches")) else os.path.dirname(_OURS)
    parts = [os.path.join(beside, name) for name in ("patches", "readers")]
    return [_OURS, os.path.dirname(os.path.abspath(wrapt.__file__)), *parts]
