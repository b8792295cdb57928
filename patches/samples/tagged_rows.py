"""Rows that know their numbers: a batch whose first column is the tag of each row.

A tag is the global row number n, or -1 - n for a row whose gradient is scaled. It is a column like any other, so
whatever takes, gathers or passes on rows of a batch takes their tags along.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.scores import scoring


class TaggedRows(NamedTuple):
    """Rows of a batch.

    Attributes:
        tags: int64 (rows,).
        data: the batch, as Keras structures it.
    """

    tags: Any
    data: Any


def untagged(data: Any) -> Any:
    """A batch as Keras knows it."""
    return data.data if isinstance(data, TaggedRows) else data


def without_tags(data: Any, slices: tuple[bool, ...]) -> tuple[Any, tuple[bool, ...]]:
    """A batch as Keras knows it, with what `row_slicing.sliceable` says of its leaves."""
    return (data.data, slices[1:]) if isinstance(data, TaggedRows) else (data, slices)


def used(numbers: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
    """The tags of those rows that are used in an epoch.

    Args:
        numbers: int64 (n,), rows.
        codes: int8 (rows,), see `scoring.Epoch`.
    """
    code = tf.gather(codes, numbers)
    tags = tf.where(code == scoring.SCALED, -1 - numbers, numbers)
    return tf.boolean_mask(tags, code != scoring.LEFT_OUT)


def numbers_of(tags: Any) -> Any:
    """Row numbers from tags; of a tensor or an array."""
    if isinstance(tags, np.ndarray):
        return np.where(tags < 0, -1 - tags, tags)
    return tf.where(tags < 0, -1 - tags, tags)
