"""The exchanges of a partitioned step, on the ranks of the world."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from matex_tf.exchange import tf_op

_SUMS, JOINS = "exchange gradients and sums", "join rows"


class Ranks:
    """See `build.Exchange`."""

    def __init__(self, joins: str = JOINS):
        """Args: joins: the purpose for which rows are joined, shown where ranks have gone different ways."""
        self._joins = joins

    def sum(self, tensors: Sequence[tf.Tensor], names: Sequence[str], coded: bool = False) -> list[tf.Tensor]:
        """The sum of each tensor over the ranks, in buckets and with the codec as the settings say."""
        return tf_op.sum_over_ranks(tensors, _SUMS, names, coded)

    def gather(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Each tensor joined along the first axis."""
        return tf_op.gather_over_ranks(tensors, self._joins, names)
