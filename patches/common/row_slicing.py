"""Which rows of a batch are whose, and taking them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core.mismatch import checksum as checksum_of
from matex_tf.core.row_partition import own_span, span
from matex_tf.errors import MatexError


class RowRange(NamedTuple):
    """Rows `low` to `high` of what the rank holds. A rank that gets none takes one all the same, as a ghost.

    Attributes:
        rows: how many of them count; 0 for a ghost.
        total: rows of the whole batch.
        first: where they begin in the whole batch.
    """

    low: int
    high: int
    rows: int
    total: int
    first: int

    @classmethod
    def own(cls, counts: Sequence[int], rank: int) -> RowRange:
        """All rows that a rank holds, where each has its own.

        Args:
            counts: rows of each rank; a negative number is none.

        Raises:
            MatexError: with --reproducible.
        """
        if settings.current().reproducible:
            raise MatexError(
                "--reproducible cuts batches that every rank has, and these ranks have rows of their own, other ones "
                "for each number of ranks: give every rank all rows, or leave out --reproducible."
            )
        rows = [max(count, 0) for count in counts]
        total, before = sum(rows), sum(rows[:rank])
        return cls(0, max(rows[rank], 1), rows[rank], total, before if rows[rank] else max(min(before, total - 1), 0))

    @classmethod
    def of(cls, total: int, rank: int, size: int) -> RowRange:
        """The rows of `rank`, of `size` ranks, in a batch of `total`: from rank * total // size, as even as can be."""
        return cls.between(*own_span(total, rank, size, settings.current().reproducible), total)

    @classmethod
    def between(cls, low: int, high: int, total: int) -> RowRange:
        """Rows `low` to before `high` of a batch of `total`; a ghost's where that is none."""
        if high > low or total == 0:
            return cls(low, high, high - low, total, low)
        low = min(low, total - 1)
        return cls(low, low + 1, 0, total, low)

    def taken(self) -> RowRange:
        """The share of a rank that holds these rows alone, and no others of the batch."""
        return RowRange(0, self.high - self.low, self.rows, self.total, self.first)

    def of_virtual(self, number: int, virtual: int) -> RowRange:
        """Of a rank's share, the rows of one of its virtual ranks.

        Args:
            number: of the virtual rank.
            virtual: how many there are.
        """
        begin, end = span(self.total, number, virtual)
        low, rows = self.low + begin - self.first, end - begin
        if rows:
            return RowRange(low, low + rows, rows, self.total, begin)
        low = min(max(low, self.low), self.high - 1)
        return RowRange(low, low + 1, 0, self.total, max(0, min(begin, self.total - 1)))


def to_tensors(data: Any) -> Any:
    """A batch with its arrays as tensors, and TensorFlow's optionals as None (as Keras does it)."""

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return None
        if tf.is_tensor(leaf) or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            return leaf
        return tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(convert, data)


def rows_of(data: Any) -> int:
    """The number of rows of an eager batch: the first axis of its first leaf that has one."""
    for leaf in tf.nest.flatten(data):
        rows = _rows(leaf)
        if rows is not None:
            return rows
    return 0


def sliceable(data: Any) -> tuple[bool, ...]:
    """For each leaf of an eager batch, whether its first axis runs over the rows of the batch."""
    total = rows_of(data)
    return tuple(_rows(leaf) == total for leaf in tf.nest.flatten(data))


def take(data: Any, slices: Sequence[bool], low: Any, high: Any) -> Any:
    """Rows `low` to before `high` of a batch; works eagerly and in a graph, where these are int32 scalars.

    Args:
        data: the batch, nested. slices: for each of its leaves, whether it is cut; others stay as they are.
    """
    leaves = [
        _take(leaf, low, high) if slice_it else leaf
        for leaf, slice_it in zip(tf.nest.flatten(data), slices, strict=True)
    ]
    return tf.nest.pack_sequence_as(data, leaves)


def first_rows(outputs: Any, share: RowRange) -> Any:
    """The outputs of a step without those for a ghost's row: of what has a first axis the first `share.rows`.

    Args:
        outputs: nested, with a row for each that the step saw. share: the rows that it saw.
    """
    if share.rows == share.high - share.low:
        return outputs
    return tf.nest.map_structure(lambda leaf: leaf[: share.rows] if _rows(leaf) is not None else leaf, outputs)


def any_rows(leaf: Any, rows: int | None = None) -> Any:
    """The spec of a leaf of a batch with any number of rows, or with so many; None of None.

    Args:
        leaf: a tensor, ragged and sparse ones too, an array, or a spec of one.
    """
    spec = _spec(leaf)
    if spec is None or not spec.shape.rank:
        return spec
    shape = [rows, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def relaxed(data: Any, slices: Sequence[bool], rows: int | None = None) -> Any:
    """Specs of a batch with any number of rows, or with so many.

    Args:
        data: the batch, nested. slices: for each of its leaves, whether its first axis runs over rows.
    """
    every = zip(tf.nest.flatten(data), slices, strict=True)
    leaves = [any_rows(leaf, rows) if slice_it else _spec(leaf) for leaf, slice_it in every]
    return tf.nest.pack_sequence_as(data, leaves)


def describe(data: Any) -> list[str]:
    """Dtype and columns of each leaf of a batch, for ranks to compare."""
    lines = []
    for position, leaf in enumerate(tf.nest.flatten(data)):
        if leaf is None:
            lines.append(f"array {position}: none")
        else:
            dtype = getattr(leaf.dtype, "name", leaf.dtype)
            lines.append(f"array {position}: {dtype}, rows of shape {tuple(leaf.shape[1:])}")
    return lines


def checksum(data: Any) -> int:
    """A checksum over an eager batch."""
    total = 0
    for leaf in tf.nest.flatten(data, expand_composites=True):
        if isinstance(leaf, (tf.Tensor, np.ndarray)):
            total = checksum_of(np.asarray(leaf), total)
    return total


def _spec(leaf: Any) -> Any:
    return leaf if leaf is None or isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)


def _rows(leaf: Any) -> int | None:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        return int(leaf.dense_shape[0])
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    shape = leaf.shape
    return int(shape[0]) if shape.rank else None


def _take(leaf: Any, low: Any, high: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        shape = leaf.dense_shape
        start = tf.concat([tf.cast([low], tf.int64), tf.zeros_like(shape[1:])], 0)
        size = tf.concat([tf.cast([high - low], tf.int64), shape[1:]], 0)
        taken = tf.sparse.slice(leaf, start, size)
        if not tf.executing_eagerly():
            taken.set_shape([None, *leaf.shape[1:]])  # which a slice forgets, and a layer that is not built needs
        return taken
    return leaf[low:high]


@functools.lru_cache(maxsize=256)  # an epoch has few different ones, and a new tensor takes time to make
def as_tensor(share: RowRange) -> tf.Tensor:
    """A share as int32 of shape (5,), to go into a graph."""
    with tf.init_scope():
        return tf.constant(share, tf.int32)


def signature(data: Any, slices: Sequence[bool]) -> list[Any]:
    """What is the same for batches of the same columns, whatever their rows: how they are nested, and the dtype and
    columns of each tensor. All sizes of a tensor without rows are columns.

    Args:
        data: a batch, nested. slices: for each of its leaves, whether its first axis runs over rows.
    """
    leaves = [
        (type(leaf) is tf.SparseTensor, leaf.dtype, leaf.shape.as_list()[has_rows:])
        if isinstance(leaf, (tf.Tensor, tf.SparseTensor)) and leaf.shape.rank
        else leaf is None
        for leaf, has_rows in zip(tf.nest.flatten(data), slices, strict=True)
    ]
    return [nesting(data), *leaves]


def ranks(data: Any) -> tuple[int | None, ...]:
    """How many axes each tensor of a batch has; None for what is no tensor."""
    return tuple(getattr(getattr(leaf, "shape", None), "rank", None) for leaf in tf.nest.flatten(data))


def nesting(data: Any) -> Any:
    """How a batch, or its specs, are nested, to be compared."""
    if isinstance(data, dict):
        return {name: nesting(value) for name, value in data.items()}
    if isinstance(data, (tuple, list)):
        return [isinstance(data, list), *map(nesting, data)]
    return None
