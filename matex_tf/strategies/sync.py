"""Synchronous data parallelism: every rank applies the same averaged gradient in every step (arXiv 1704.04560, 3.2).

A rank that has n_r of the n rows of a batch computes the mean gradient g_r of its rows. The mean over the batch is
g = sum over r of (n_r / n) g_r. Gradients arrive here already multiplied by n_r / n, so what is left is a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matex_tf.strategies.base import Gradient, Strategy

if TYPE_CHECKING:
    import tensorflow as tf

WHAT = "exchange gradients"

#: How names begin of what is no gradient and travels along with them.
ALONG = "along with the gradients: "


class Sync(Strategy):
    """Sum the weighted gradients of a step over all ranks; the result is the same on every rank."""

    name = "sync"
    text = "all ranks apply the same averaged gradients in every step"

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        import tensorflow as tf

        from matex_tf.exchange import tf_op

        result: list[Gradient] = list(gradients)
        dense = [i for i, gradient in enumerate(gradients) if tf.is_tensor(gradient) and not _sparse(gradient)]
        labels = [_label(names[i]) for i in dense]
        sums = self._sum([gradients[i] for i in dense], labels)
        for i, total in zip(dense, sums, strict=True):
            result[i] = total
        for i, gradient in enumerate(gradients):
            if _sparse(gradient):
                result[i] = tf_op.allgather_slices([gradient], WHAT, names[i])
        return result

    def _sum(self, dense: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        if self.settings.transport == "horovod":
            from matex_tf.exchange import horovod_sum

            return horovod_sum.sum_over_ranks(dense, WHAT, labels)
        from matex_tf.exchange import tf_op

        return tf_op.sum_over_ranks(dense, WHAT, labels, coded=True)


def takes_along(strategy: Strategy) -> bool:
    """Whether other tensors may travel along with gradients: where their plain sum is what the strategy gives."""
    return type(strategy).exchange is Sync.exchange


def exchange_parts(given: Sequence[Sequence[Gradient]], names: Sequence[str]) -> list[Gradient]:
    """Sum gradients over virtual ranks, in their order.

    Args:
        given: for each virtual rank of this rank its gradients, multiplied by its part of the batch.
    """
    import tensorflow as tf

    from matex_tf.exchange import tf_op

    first: Sequence[Gradient] = given[0]
    result: list[Gradient] = list(first)
    dense = [i for i, gradient in enumerate(first) if tf.is_tensor(gradient) and not _sparse(gradient)]
    labels = [_label(names[i]) for i in dense]
    if dense:
        sums = tf_op.sum_over_virtual_ranks([[own[i] for i in dense] for own in given], WHAT, labels)
        for i, total in zip(dense, sums, strict=True):
            result[i] = total
    for i, gradient in enumerate(first):
        if _sparse(gradient):
            result[i] = tf_op.allgather_slices([own[i] for own in given], WHAT, names[i])
    return result


def _label(name: str) -> str:
    return name if name.startswith(ALONG) else f"the gradient of {name}"


def _sparse(gradient: object) -> bool:
    import tensorflow as tf

    return isinstance(gradient, tf.IndexedSlices)
