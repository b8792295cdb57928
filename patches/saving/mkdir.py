"""`os.mkdir`, and with it `os.makedirs` and `Path.mkdir`: a directory that another rank made a moment ago is no error.

A script that says `if not exists(d): makedirs(d)` is right on one rank; of many ranks at once all but one would fail.
A directory that was there before the job, or that this rank made itself, is an error as ever.

Relies on: `os.mkdir`, public.
"""

from __future__ import annotations

import os
import time
from types import ModuleType
from typing import Any

from matex_tf.patches.common import wrapping
from matex_tf.state import run_state

_CLOCKS_APART_SECONDS = 1.0  # a file server's clock, and the steps in which some count
_begin = time.time()


class _Known(set[str]):
    """Of a run: the directories that this rank has made, or found to be made by another one."""


def install(module: ModuleType) -> None:
    """Patch os."""
    wrapping.wrap(module, "mkdir", _mkdir)


def _mkdir(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    path = os.path.abspath(os.fsdecode(args[0] if args else kwargs["path"]))
    try:
        result = wrapped(*args, **kwargs)
    except FileExistsError:
        if path in run_state.part(_Known) or not _made_by_another(path):
            raise
        result = None
    run_state.part(_Known).add(path)
    return result


def _made_by_another(path: str) -> bool:
    return os.path.isdir(path) and os.stat(path).st_ctime >= _begin - _CLOCKS_APART_SECONDS
