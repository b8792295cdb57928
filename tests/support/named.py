"""Cases in the driver: a case is the function itself, and the driver needs only its name.

A test says `from tests.support.cases import models` and hands `models.gan` to the ranks; an editor follows that to the
function. Cases of a feature are in tests/features/NAME/cases. Most modules of cases import TensorFlow, which the driver
does not need and which takes seconds. So conftest puts stand-ins into the packages: they give names, and refuse one
that the file does not define. What a test itself calls, it imports from the module:
`from tests.support.cases.tables import sizes`.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class Named:
    """Stands for a case: has its names, and is the function itself once it is pickled and sent to a rank."""

    def __init__(self, module: str, name: str):
        self.__module__, self.__name__, self.__qualname__ = module, name, name

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (path_of(self),)

    def __repr__(self) -> str:
        return label(self)


class Names(ModuleType):
    """Stands for a module of cases."""

    def __init__(self, name: str, file: Path):
        super().__init__(name)
        self.__file__ = str(file)

    @functools.cached_property
    def _defined(self) -> set[str]:
        return {node.name for node in ast.parse(Path(str(self.__file__)).read_text()).body if hasattr(node, "name")}

    def __getattr__(self, name: str) -> Named:
        if name.startswith("__") or name not in self._defined:
            raise AttributeError(f"no case {name} in {self.__file__}; what is no case, import from {self.__name__}")
        named = self.__dict__[name] = Named(self.__name__, name)
        return named


def stand_in(package: ModuleType) -> None:
    """Put a stand-in for each module of a package into it, for whoever imports them from the package."""
    for file in Path(*package.__path__).glob("*.py"):
        setattr(package, file.stem, Names(f"{package.__name__}.{file.stem}", file))


def path_of(case: Callable[..., Any] | Named) -> str:
    """What a rank finds a case by: "package.module:function"."""
    return f"{case.__module__}:{case.__qualname__}"


def label(case: Callable[..., Any] | Named) -> str:
    """What a reader knows a case by: "module:function"."""
    return path_of(case).rpartition(".")[2]


def find(path: str) -> Callable[..., Any]:
    """The case with that path; imports its module."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
