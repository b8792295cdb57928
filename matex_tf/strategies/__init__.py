"""What is exchanged, with whom and when. A strategy is one class in one file; this is the one registry.

The choices of `--strategy` and their help, the options of each, and what `matex-tf plan` shows follow from it.

It may import core, exchange and center. Start reading in base.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping

from matex_tf import settings
from matex_tf.strategies.base import Strategy

__all__ = ["BASELINE", "STRATEGIES", "Registry", "Strategy", "create", "current", "use"]


class Registry(MutableMapping[str, type[Strategy]]):
    """The class of each strategy by its name, imported when it is asked for: a command line needs the names alone."""

    def __init__(self, known: dict[str, type[Strategy] | str]):
        """Args: known: classes, or where they are, as in "package.module:Class"."""
        self._known = known

    def __getitem__(self, name: str) -> type[Strategy]:
        found = self._known[name]
        if isinstance(found, str):
            module, _, cls = found.partition(":")
            loaded: type[Strategy] = getattr(importlib.import_module(module), cls)
            return loaded
        return found

    def __setitem__(self, name: str, strategy: type[Strategy]) -> None:
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
        "gossip": "matex_tf.strategies.gossip:Gossip",
        "local": "matex_tf.strategies.local:Local",
        "elastic": "matex_tf.strategies.elastic:Elastic",
        "server": "matex_tf.strategies.server:Server",
    }
)

#: The strategy that others are compared with: it changes nothing of what is computed.
BASELINE = "sync"

_current: Strategy | None = None  # one for the process, made from its settings where a hook of Keras first asks for it


def create(chosen: settings.Settings | None = None) -> Strategy:
    """A strategy of its own, as the settings say."""
    chosen = settings.current() if chosen is None else chosen
    return STRATEGIES[chosen.strategy](chosen)


def current() -> Strategy:
    """The strategy of this process; another one where the settings are others now."""
    global _current
    if _current is None or _current.settings != settings.current():
        _current = create()
    return _current


def use(strategy: Strategy | None) -> Strategy | None:
    """Make this the strategy for as long as the settings stay; returns the one before."""
    global _current
    before, _current = _current, strategy
    return before
