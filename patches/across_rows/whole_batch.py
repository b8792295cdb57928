"""The whole batch on every rank, for a step that none of them can compute for its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.exchange import tf_op
from matex_tf.patches.common import row_slicing
from matex_tf.patches.common.row_slicing import RowRange

_WHAT = "gather a batch"


def of(data: Any, slices: Sequence[bool], share: RowRange) -> Any:
    """All rows of a batch; those that this rank does not hold come from the others. All ranks come here.

    Args:
        data: the batch, or this rank's rows of it.
        slices: for each of its leaves, whether its first axis runs over rows.
        share: which rows this rank answers for.
    """
    if row_slicing.rows_of(data) > max(share.rows, 1):
        return data  # more rows than its own, so this is a batch that every rank has
    return joined(data, slices, share)


def joined(data: Any, slices: Sequence[bool], share: RowRange) -> Any:
    """A batch of the rows that each rank has of it. All ranks come here.

    Args: see `of`.
    """
    mine = row_slicing.take(data, slices, share.low, share.low + share.rows)
    leaves = [
        _of_leaf(leaf, share.first if share.rows else 0, f"array {place}") if has_rows else leaf
        for place, (leaf, has_rows) in enumerate(zip(tf.nest.flatten(mine), slices, strict=True))
    ]
    return tf.nest.pack_sequence_as(data, leaves)


def _of_leaf(mine: Any, first: int, label: str) -> Any:
    if isinstance(mine, tf.RaggedTensor):
        lengths = mine.nested_row_lengths()
        values, *lengths = _joined([mine.flat_values, *lengths], label)
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths)
    if isinstance(mine, tf.SparseTensor):
        places = mine.indices + tf.constant([first] + [0] * (mine.shape.rank - 1), tf.int64)
        places, values, shapes = _joined([places, mine.values, mine.dense_shape[None]], label)
        shape = tf.concat([tf.reduce_sum(shapes[:, :1], 0), tf.reduce_max(shapes[:, 1:], 0)], 0)
        return tf.SparseTensor(places, values, shape)
    return _joined([mine], label)[0]


def _joined(tensors: Sequence[Any], label: str) -> list[Any]:
    return tf_op.gather_over_ranks(tensors, _WHAT, [f"{label}, part {place}" for place in range(len(tensors))])
