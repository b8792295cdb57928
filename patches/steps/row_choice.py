"""Which rows of its data the epochs of a `fit` use: what a feature chooses, and what the core asks of it.

Rows know their numbers then: the first column of a batch is the tag of each row. A tag is the global row number n, or
-1 - n for a row whose gradient is scaled. It is a column like any other, so whatever takes, gathers or passes on rows
of a batch takes their tags along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf


class TaggedRows(NamedTuple):
    """Rows of a batch.

    Attributes:
        tags: int64 (rows,).
        data: the batch, as Keras structures it.
    """

    tags: Any
    data: Any


class RowLosses(Protocol):
    """What a step finds out about its rows while it is traced, or runs eagerly."""

    def found(self, model: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Numbers and scores of the rows that count; int64 (rows,) and float32 (rows,)."""


class RowChoice(Protocol):
    """Which rows each epoch of one `fit` uses; `ModelState` has it. Every rank makes the same calls.

    Attributes:
        asked: the flag that asks for it.
        offset: the number of this rank's first row, once the data are known.
    """

    asked: str
    offset: int

    def of_arrays(self, counts: Sequence[int], own: int, size: int, global_size: int, first: Any, orphans: Any) -> None:
        """Arrays are what is trained on.

        Args:
            counts: rows of each rank that has some of its own; of one where all have the same.
            own: which of these this rank is.
            size: rows of a batch of the script.
            global_size: rows of a step of all ranks.
            first: the first array, with the rows of this rank.
            orphans: what keeps rows that each rank alone has, where ranks may die; else None.
        """

    def tags_of_whole(self, adapter: Any, numbers: Callable[[], Any], size: int) -> Callable[[], Iterator[np.ndarray]]:
        """Begins an epoch: the tags of whole batches, of rows that every rank has.

        Args:
            adapter: Keras' adapter of the arrays.
            numbers: makes a pipeline of the numbers of all rows, in batches.
            size: rows of a batch.
        """

    def tags_of_shards(self, adapter: Any, counts: list[int], size: int) -> Any:
        """Begins an epoch: tags and share of this rank in each batch, of rows that only this rank has.

        Args:
            adapter: Keras' adapter of the arrays. counts: rows of each rank. size: rows of a batch of all ranks.
        """

    def of_pydataset(self, adapter: Any) -> Any:
        """A pipeline of `TaggedRows` from Keras' adapter of a `PyDataset`."""

    def has_epochs(self, iterator: Any, own: bool) -> None:
        """Keras' iterator over the epochs has been made. Args: own: whether each rank has rows of its own."""

    def row_losses(self, tags: tf.Tensor, rows: tf.Tensor) -> RowLosses:
        """What measures the rows of a step, in its graph.

        Args:
            tags: int64 (rows,), of those that the step sees. rows: int32 scalar, how many of them count.
        """

    def state(self) -> Any:
        """What a job that is started again goes on with, on rank 0. Collective."""


def untagged(data: Any) -> Any:
    """A batch as Keras knows it."""
    return data.data if isinstance(data, TaggedRows) else data


def without_tags(data: Any, slices: tuple[bool, ...]) -> tuple[Any, tuple[bool, ...]]:
    """A batch as Keras knows it, with what `row_slicing.sliceable` says of its leaves.

    Args:
        data: the batch, perhaps `TaggedRows`. slices: for each leaf, whether its first axis runs over rows; first the
            tags.
    """
    return (data.data, slices[1:]) if isinstance(data, TaggedRows) else (data, slices)


def numbers_of(tags: Any) -> Any:
    """Row numbers from tags; of a tensor or an array."""
    if isinstance(tags, np.ndarray):
        return np.where(tags < 0, -1 - tags, tags)
    return tf.where(tags < 0, -1 - tags, tags)
