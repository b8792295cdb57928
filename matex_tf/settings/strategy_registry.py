"""The one registry of strategies: where the class of each lies, by its name. Settings know no more of them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any

from matex_tf.features import registry


class Registry(MutableMapping[str, Any]):
    """The class of each strategy by its name, imported when it is asked for: a command line needs the names alone."""

    def __init__(self, known: dict[str, Any]):
        """Args: known: classes, or where they are, as in "package.module:Class"; those of features come after them."""
        self._core = known

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        return {**self._core, **{name: at for one in registry.found().values() for name, at in one.strategies.items()}}

    def __getitem__(self, name: str) -> Any:
        found = self._known[name]
        if isinstance(found, str):
            module, _, cls = found.partition(":")
            return getattr(importlib.import_module(module), cls)
        return found

    def __setitem__(self, name: str, strategy: Any) -> None:
        self._known[name] = strategy

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


#: A new strategy is one more line here; those that change least of what is computed come first.
STRATEGIES = Registry(
    {
        "sync": "matex_tf.strategies.sync:Sync",
        "pipe": "matex_tf.strategies.pipe:Pipe",
    }
)

#: The strategy that others are compared with: it changes nothing of what is computed.
BASELINE = "sync"
