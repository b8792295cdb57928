"""No garbage is collected while TensorFlow and Keras are imported, and what they have made is not looked at later.

An import makes half a million objects that stay. Python looks through them again whenever a quarter more are there,
which takes a quarter of the time of the import, and later in each collection of all, as when a step is traced or the
process ends. `gc.freeze` hides them from `gc.get_objects` too, and so what the script has made before; of that
`older_generators` tells what others look for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

MODULES = frozenset({"tensorflow", "keras", "tf_keras"})
#: Of these, those whose objects others look for: what is there when a second one comes is not hidden.
_OF_LAYERS = frozenset({"keras", "tf_keras"})
_OF_NUMPY = "BitGenerator", "Generator", "RandomState"  # of numpy.random


class Finder(importlib.abc.MetaPathFinder):
    """Finds these modules as others do, and has them imported without collections.

    Attributes:
        older: generators of random numbers that were made before.
    """

    def __init__(self) -> None:
        self._looks_for: set[str] = set()
        self.older: list[Any] = []

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
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Has a module loaded by another loader, which is the module's afterwards."""

    def __init__(self, loader: Any, finder: Finder):
        self._loader, self._finder = loader, finder

    def create_module(self, spec: Any) -> ModuleType | None:
        """The module, or None for one that Python makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run its code."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with self._uncollected(module.__name__):
            self._loader.exec_module(module)

    @contextlib.contextmanager
    def _uncollected(self, name: str) -> Iterator[None]:
        enabled = gc.isenabled()
        hides = enabled and not (_OF_LAYERS - {name}).intersection(sys.modules)
        if hides:
            self._finder.older += _generators()
        gc.disable()
        try:
            yield
        finally:
            if hides:
                gc.freeze()
            if enabled:
                gc.enable()


def install() -> None:
    """Look for modules first. May be called more than once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def older_generators() -> list[Any]:
    """Generators of random numbers that the script had made before TensorFlow and Keras were imported."""
    return [one for finder in sys.meta_path if isinstance(finder, Finder) for one in finder.older]


def _generators() -> list[Any]:
    numbers = sys.modules.get("numpy.random")
    kinds = random.Random, *(getattr(numbers, name) for name in _OF_NUMPY if hasattr(numbers, name))
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]
