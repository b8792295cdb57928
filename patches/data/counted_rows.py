"""Batches of ranks that each have rows of their own: together they are the batch, whoever has none left is a ghost."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import at_least_one_row


class CountedRows:
    """Counts the rows of each batch over the ranks, and has a row for a rank that has none."""

    def __init__(self) -> None:
        self._last: Any = None

    def share(self, data: Any, rows: int) -> RowRange | None:
        """This rank's part of the batch; None where no rank has a batch any more. Every rank must call.

        Args:
            data: the rank's batch; None where it has none any more.
            rows: of it; -1 where there is none.
        """
        counts = world.current().allgather(rows, "count the rows of a batch")
        if max(counts) < 0:
            return None
        if data is not None:
            self._last = data
        return RowRange.own(counts, world.current().rank)

    def ghost(self, spec: Any) -> Any:
        """One row for a rank that has none: of its last batch, or zeros where it never had one.

        Args:
            spec: of a batch.
        """
        if self._last is not None:
            return tf.nest.map_structure(_one_row, self._last)
        return tf.nest.map_structure(_zeros, spec)


def _one_row(leaf: Any) -> Any:
    return leaf if leaf is None else at_least_one_row(leaf[:1])


def _zeros(spec: Any) -> Any:
    return tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)
