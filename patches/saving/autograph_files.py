"""Temporary files of AutoGraph are gone as soon as they are loaded.

TensorFlow writes each function that AutoGraph has converted to a file in TMPDIR, imports it, and removes it when Python
ends: a rank that is killed leaves hundreds. Nothing reads the file after the import but what shows source lines, and
that looks in `linecache` first. The compiled form of it, which TensorFlow never removes, is not written.

Relies on (TensorFlow 2.16 to 2.21, private): `tensorflow.python.autograph.pyct.loader.load_source`.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import sys
from types import ModuleType
from typing import Any

import wrapt

from matex_tf.patches.common import wrapping


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    loader = importlib.import_module("tensorflow.python.autograph.pyct.loader")
    wrapping.require(loader, "load_source")
    wrapt.wrap_function_wrapper(loader, "load_source", _load_source)


def _load_source(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loaded, path = wrapped(*args, **kwargs)
    finally:
        sys.dont_write_bytecode = before
    with contextlib.suppress(OSError, UnicodeError), open(path, encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
        linecache.cache[path] = sum(map(len, lines)), None, lines, path  # no time: it is not looked for on the disk
        os.unlink(path)
    return loaded, path
