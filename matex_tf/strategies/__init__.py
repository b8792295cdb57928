"""What is exchanged, with whom and when. A strategy is one class in one file; this is the registry."""

from __future__ import annotations

from matex_tf.strategies.sync import Sync

STRATEGIES = {"sync": Sync}


def create(name: str = "sync") -> Sync:
    """The strategy of this name."""
    return STRATEGIES[name]()
