"""Whether the steps of this job are partitioned; see `patches.partition`."""

from __future__ import annotations

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.strategies.sync import takes_along


def is_on() -> bool:
    """Whether steps are rebuilt for rows, if nothing about a step itself stands in the way; the same on every rank.

    The sums of a partitioned step are those of `--strategy sync`: what exchanges otherwise keeps its own way.
    """
    strategy, chosen = strategies.current(), settings.current()
    return (
        chosen.partitioner
        and not (world.current().is_single and world.current().guard is None)
        and not chosen.reproducible
        and chosen.batch_norm == "batch"
        and chosen.transport != "horovod"
        and takes_along(strategy)
        and strategy.replicas_identical
        and not strategy.delays_updates
        and not strategy.apart
    )
