"""The exchanges of a partitioned step, on the ranks of the world."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.exchange import tf_op
from matex_tf.patches.partition import shards

_SUMS, JOINS, _PARTS, _ROWS = "exchange gradients and sums", "join rows", "join parts", "send rows of tables"


class Ranks:
    """The exchange of a step on the ranks of the job: see `build.Exchange`."""

    def __init__(self, joins: str = JOINS):
        """Args: joins: the purpose for which rows are joined, shown where ranks have gone different ways."""
        self._joins = joins

    def sum(self, tensors: Sequence[tf.Tensor], names: Sequence[str], coded: bool = False) -> list[tf.Tensor]:
        """The sum of each tensor over the ranks, in buckets and with the codec as the settings say;
        see `build.Exchange.sum`."""
        return tf_op.sum_over_ranks(tensors, _SUMS, names, coded)

    def gather(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Each tensor joined along the first axis; see `build.Exchange.gather`."""
        return tf_op.gather_over_ranks(tensors, self._joins, names)

    def scatter(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """This rank's part of the sum of each tensor; see `build.Exchange.scatter`. With `--shard gradients` or
        `weights` nothing else of the sums is kept; otherwise they are summed whole, and the part is a view."""
        if settings.current().shard not in ("gradients", "weights"):
            return [self.part(total) for total in self.sum(tensors, names)]
        size = world.of_job().size
        lengths = [shards.lengths(tensor.shape.num_elements(), size) for tensor in tensors]
        return tf_op.scatter_over_ranks(tensors, lengths, _SUMS, names)

    def join(self, parts: Sequence[tf.Tensor], sizes: Sequence[int], names: Sequence[str]) -> list[tf.Tensor]:
        """Whole values from this rank's part of each; see `build.Exchange.join`."""
        lengths = [shards.lengths(size, world.of_job().size) for size in sizes]
        return tf_op.join_parts(parts, lengths, _PARTS, names)

    def send(
        self, tensors: Sequence[tf.Tensor], counts: tf.Tensor, name: str
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The rows that each rank gets of every other one; see `build.Exchange.send`."""
        return tf_op.send_over_ranks(tensors, counts, _ROWS, name)

    def part(self, whole: tf.Tensor) -> tf.Tensor:
        """This rank's part of a whole value."""
        ranks = world.of_job()
        return shards.part(whole, ranks.rank, ranks.size)

    def span(self, size: int) -> tuple[int, int]:
        """The first element of this rank's part of so many, and the one after its last."""
        ranks = world.of_job()
        return shards.span(size, ranks.rank, ranks.size)

    def ends(self, size: int) -> list[int]:
        """For each rank, the element after the last of its part of so many."""
        count = world.of_job().size
        return [shards.span(size, rank, count)[1] for rank in range(count)]
