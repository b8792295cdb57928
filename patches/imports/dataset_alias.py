"""DataSet where MaTEx had it: `tf.DataSet`, `tf.compat.v1.DataSet`, `matex.datasets`, `datasets`.

`matex` and `datasets` are there only where no package of that name is installed: they are looked for last.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import wrapt

from matex_tf.state import notes

#: Modules that are made up, and whether they have DataSet.
MODULES = {"matex": False, "matex.datasets": True, "datasets": True}


class _Made:
    """Of a module: that it is one of these."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules in `MODULES` where nothing else does."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name not in MODULES:
            return None
        if name == "matex.datasets" and not notes.has(sys.modules.get("matex"), _Made):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name == "matex")

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        notes.put(module, _Made())
        if MODULES[module.__name__]:
            give(module)


def give(module: ModuleType) -> None:
    """Set `module.DataSet`."""
    from matex_tf.readers import DataSet

    module.DataSet = DataSet  # type: ignore[attr-defined]
    if module.__name__ == "tensorflow":
        module.compat.v1.DataSet = DataSet


def install() -> None:
    """Make DataSet known under these names. May be called more than once."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.append(Finder())
    for name in ("tensorflow", "tensorflow.compat.v1"):  # as a name of its own it is another module than tf.compat.v1
        wrapt.register_post_import_hook(give, name)
