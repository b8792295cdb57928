"""No garbage is collected while TensorFlow and Keras are imported, and what they have made is not looked at later.

An import makes half a million objects that stay. Python looks through them again whenever a quarter more are there,
which takes a quarter of the time of the import, and later in each collection of all, as when a step is traced.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

MODULES = frozenset({"tensorflow", "keras", "tf_keras"})


class Finder(importlib.abc.MetaPathFinder):
    """Finds these modules as others do, and has them imported without collections."""

    def __init__(self) -> None:
        self._looks_for: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """What others find of a module.

        Args:
            name: of the module. path: of the package that it is in. target: a module that is loaded again.
        """
        if name not in MODULES or name in self._looks_for:
            return None
        self._looks_for.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looks_for.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Has a module loaded by another loader, which is the module's afterwards."""

    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec: Any) -> ModuleType | None:
        """The module, or None for one that Python makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run its code."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with _uncollected():
            self._loader.exec_module(module)


def install() -> None:
    """Look for modules first. May be called more than once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.freeze()
