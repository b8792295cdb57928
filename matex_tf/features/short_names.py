"""`matex_tf.NAME.module` for `matex_tf.features.NAME.module`: what a feature has under its short name.

These are the same modules, not copies of them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

_LONG = "matex_tf.features."


class Finder:
    """Finds modules of features by their short names; the first of all finders, as the folder of a feature has them."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith("matex_tf.") or name.startswith(_LONG):
            return None
        if not os.path.isfile(os.path.join(os.path.dirname(__file__), name.split(".")[1], "__init__.py")):
            return None
        loader: Any = self
        return importlib.machinery.ModuleSpec(name, loader)

    def create_module(self, spec: Any) -> ModuleType:
        module = importlib.import_module(_LONG + spec.name.partition(".")[2])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        module.__spec__ = spec.loader_state  # it stays what it is


def install() -> None:
    """Make the short names known. May be called more than once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        finder: Any = Finder()
        sys.meta_path.insert(0, finder)
