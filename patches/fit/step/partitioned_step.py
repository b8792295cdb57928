"""A model's step, traced as one rank traces it and rebuilt for the rows of this one; see `patches.partition`.

Every rank ends such a step with the state that one rank has: metrics, moving statistics, counters and logs are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.patches.common import model_state, row_slicing
from matex_tf.patches.partition.ranks import Ranks
from matex_tf.patches.partition.step import Partitioned


def applies(model: Any) -> bool:
    """Whether the steps of a model are partitioned. All that it depends on is the same on every rank, and for all steps
    of a model: they change the same metrics."""
    notes = model_state.of(model)
    if notes.whole is None:
        strategy, ranks, chosen = strategies.current(), world.current(), settings.current()
        notes.whole = (
            chosen.partitioner
            and not ranks.is_single
            and ranks.guard is None
            and not chosen.reproducible
            and chosen.codec == "none"
            and chosen.batch_norm == "batch"
            and strategy.averages_gradients
            and strategy.replicas_identical
            and not strategy.delays_updates
            and not strategy.apart
            and notes.samples is None
            and notes.changes is None
            and not model.run_eagerly
            and not model.jit_compile
        )
    return notes.whole


class PartitionedStep:
    """The step of a model for batches of one structure.

    Attributes:
        traced: the function that one rank has.
    """

    def __init__(self, model_step: Callable[[Any], Any], data: Any, slices: Sequence[bool]):
        """Args:
        model_step: of a batch.
        data: a batch, or its specs.
        slices: for each of its leaves, whether its first axis runs over rows.
        """
        spec = row_slicing.relaxed(data, slices)
        with world.use(world.World()):  # the script's Python sees one rank

            @tf.autograph.experimental.do_not_convert
            def step(given: Any) -> Any:
                return model_step(given)

            self.traced = tf.function(step).get_concrete_function(data if spec is None else spec)
        tensors_only = spec is not None and all(
            isinstance(leaf, (tf.Tensor, type(None))) for leaf in tf.nest.flatten(data)
        )
        rows = [has for leaf, has in zip(tf.nest.flatten(data), slices, strict=True) if leaf is not None]
        self._partitioned = Partitioned(self.traced, rows, Ranks()) if tensors_only else None

    def __call__(self, data: Any, share: row_slicing.RowRange) -> Any:
        """Run it on rows `share` of a batch; returns what one rank's step returns."""
        if self._partitioned is None:
            return self.traced(data)  # nothing is known of the rows of such data: every rank computes all of it
        leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
        return self._partitioned(leaves, share.first, share.rows, share.total, share.low)
