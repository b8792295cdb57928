"""What is exchanged, with whom and when. A strategy is one class in one file; this is the registry.

It may import core and exchange. Start reading in base.py.
"""

from __future__ import annotations

from matex_tf import settings
from matex_tf.strategies.base import Strategy
from matex_tf.strategies.gossip import Gossip
from matex_tf.strategies.pipe import Pipe
from matex_tf.strategies.sync import Sync

__all__ = ["STRATEGIES", "Gossip", "Pipe", "Strategy", "Sync", "create", "current", "use"]

#: By name; `Settings.strategy` has the same names.
STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (Sync, Pipe, Gossip)}

_current: Strategy | None = None


def create(told: settings.Settings | None = None) -> Strategy:
    """A strategy of its own, as the settings say."""
    told = settings.current() if told is None else told
    return STRATEGIES[told.strategy](told)


def current() -> Strategy:
    """The strategy of this process; another one where the settings are others now."""
    global _current
    if _current is None or _current.told != settings.current():
        _current = create()
    return _current


def use(strategy: Strategy | None) -> Strategy | None:
    """Make this the strategy for as long as the settings stay; returns the one before."""
    global _current
    before, _current = _current, strategy
    return before
