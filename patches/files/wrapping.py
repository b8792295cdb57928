"""Wrap functions such that they can still be sent to other processes, which find them by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from matex_tf.patches.common import wrapping

#: See there.
taken = wrapping.taken


class _Wrapper(wrapt.FunctionWrapper):
    """A function wrapper that pickle takes for the function that it stands in the place of."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _found, (self._self_module, self._self_path)


def _found(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def wrap(module: ModuleType, path: str, wrapper: Callable[..., Any]) -> None:
    """Put a wrapper around a function or a method, in a world of one rank too; its arguments:
    see `common.wrapping.wrap`.

    Raises:
        NameMoved: it is not there.
    """
    wrapping.require(module, path)
    owner, name, original = wrapt.resolve_path(module, path)
    wrapped: Any = _Wrapper(original, wrapper)
    wrapped._self_module, wrapped._self_path = module.__name__, path
    wrapt.apply_patch(owner, name, wrapped)
