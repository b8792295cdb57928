"""`--strategy gossip`: each rank trains on its own rows, and averages its weights with one other rank at a time.

It may import core, exchange, strategies, planning (for types) and patches. Start reading in strategy.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(strategies={"gossip": "matex_tf.features.gossip.strategy:Gossip"}, package="matex_tf")
