"""What is exchanged, with whom and when. A strategy is one class in one file, and a line in the registry.

The choices of `--strategy` and their help, the options of each, and what `matex-tf plan` shows follow from it.

It may import core, exchange and center. Start reading in base.py.
"""

from __future__ import annotations

from matex_tf import settings
from matex_tf.settings.strategy_registry import BASELINE, STRATEGIES, Registry
from matex_tf.state import run_state
from matex_tf.strategies.base import Strategy

__all__ = ["BASELINE", "STRATEGIES", "Registry", "Strategy", "create", "current", "use"]


class _Chosen:
    """Of a run: its strategy, made from the settings where a hook of Keras first asks for it."""

    strategy: Strategy | None = None


def create(chosen: settings.Settings | None = None) -> Strategy:
    """A strategy of its own, as the settings say."""
    chosen = settings.current() if chosen is None else chosen
    made: Strategy = STRATEGIES[chosen.strategy](chosen)
    return made


def current() -> Strategy:
    """The strategy of this process; another one where the settings are others now."""
    chosen = run_state.part(_Chosen)
    if chosen.strategy is None or chosen.strategy.settings != settings.current():
        chosen.strategy = create()
    return chosen.strategy


def use(strategy: Strategy | None) -> Strategy | None:
    """Make this the strategy for as long as the settings stay; returns the one before."""
    chosen = run_state.part(_Chosen)
    before, chosen.strategy = chosen.strategy, strategy
    return before
