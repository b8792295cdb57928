"""Synchronous data parallelism: every rank applies the same averaged gradient in every step (arXiv 1704.04560, 3.2).

A rank that has n_r of the n rows of a batch computes the mean gradient g_r of its rows. The mean over the batch is
g = sum over r of (n_r / n) g_r. Gradients arrive here already multiplied by n_r / n, so what is left is a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from matex_tf.exchange import op

WHAT = "exchange gradients"


class Sync:
    """Sum the weighted gradients of a step over all ranks."""

    def __call__(
        self, gradients: Sequence[tf.Tensor | tf.IndexedSlices | None], names: Sequence[str]
    ) -> list[tf.Tensor | tf.IndexedSlices | None]:
        """Exchange the gradients of one step.

        Args:
            gradients: one for each variable, weighted by this rank's part of the batch; None where there is none.
            names: the variables' paths, for messages.

        Returns:
            What the optimizer shall apply, in the same order; the same on every rank.
        """
        result: list[tf.Tensor | tf.IndexedSlices | None] = list(gradients)
        dense = [i for i, gradient in enumerate(gradients) if tf.is_tensor(gradient) and not _sparse(gradient)]
        sums = op.sum_over_ranks([gradients[i] for i in dense], WHAT, [f"the gradient of {names[i]}" for i in dense])
        for i, total in zip(dense, sums, strict=True):
            result[i] = total
        for i, gradient in enumerate(gradients):
            if _sparse(gradient):
                result[i] = op.join_slices(gradient, WHAT, names[i])
        return result


def _sparse(gradient: object) -> bool:
    return isinstance(gradient, tf.IndexedSlices)
