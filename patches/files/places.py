"""Where this rank has the files and directories that libraries have opened: on the first rank where they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from matex_tf.state import run_state


class Places:
    """By the real path of each, where this rank has it."""

    def __init__(self) -> None:
        self.by_path: dict[str, str] = {}


def find(path: str) -> str:
    """Where this rank has a path; "" if no library has opened it, or what it is in."""
    places = run_state.current().part(Places).by_path
    real = os.path.realpath(path) if places else ""
    for known, here in places.items():
        if _is_in(real, here):
            return path
        if _is_in(real, known):
            return os.path.normpath(os.path.join(here, os.path.relpath(real, known)))
    return ""


def remember(path: str, here: str) -> None:
    """Have a `path` in another place, `here`, from now on, or where it is if the two are the same."""
    run_state.current().part(Places).by_path[os.path.realpath(path)] = os.path.realpath(here)


def forget(paths: Iterable[Any]) -> None:
    """The script itself has changed what is at these paths: a library that opens it finds what the first rank has.

    Args:
        paths: arguments of a call; those that are no paths say nothing.
    """
    places = run_state.current().part(Places).by_path
    for path in paths if places else ():
        if isinstance(path, (str, bytes, os.PathLike)):
            real = os.path.realpath(os.fsdecode(path))
            for known in [known for known in places if _is_in(known, real) or _is_in(real, known)]:
                del places[known]


def _is_in(path: str, other: str) -> bool:
    return path == other or path.startswith(other + os.sep)
