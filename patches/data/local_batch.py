"""A rank's own rows of a batch, and what they come from."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import row_slicing
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.lost_rows import Orphans
from matex_tf.patches.steps import row_choice
from matex_tf.patches.steps.row_choice import TaggedRows
from matex_tf.state import notes, run_state


class _Numbers:
    """Of a run: how many numbers were given."""

    given = 0


class _Number(int):
    """Of what batches come from: a tf.data pipeline hands on tensors alone."""


def remember(origin: Any) -> int:
    """A number for what batches come from, for as long as someone holds it: 1 or more."""
    return notes.of(origin, _Number, _next)


def _next() -> _Number:
    numbers = run_state.part(_Numbers)
    numbers.given += 1
    return _Number(numbers.given)


def came_from(origin: Any) -> Any:
    """What has the number of a `LocalBatch.origin`; None if nothing has it, or not any more."""
    number = int(origin.numpy()[0])
    return next((one for one in notes.having(_Number) if notes.found(one, _Number) == number), None)


class LocalBatch(NamedTuple):
    """A rank's own rows of one global batch.

    Attributes:
        share: int32 (5,), see `row_slicing.RowRange`; its total is -1 where only the ranks together know it.
        whole: bool scalar, whether every rank holds the data, and so wants every rank's predictions.
        data: the rows, structured as Keras structures a batch.
        origin: int64 (2,), the number of the `Gatherer`, `Orphans`, `PassedRows` or `BatchShapes`, or 0, see
            `remember`; and the generation of the world that the rows were taken for.
        batch: int64. Where ranks may die the indices of the rows of the whole batch; of shards the numbers of the epoch
            and the batch; where rows go round what `PassedRows.after_batch` takes; else empty.
    """

    share: Any
    whole: Any
    data: Any
    origin: Any
    batch: Any

    @classmethod
    def unknown(cls, *data: Any) -> LocalBatch:
        """Rows of a pipeline that yields each rank's own."""
        share, origin = tf.constant([0, 0, 0, -1, 0]), tf.constant([0, world.current().generation], tf.int64)
        rows = data if len(data) > 1 else data[0]
        return cls(share, tf.constant(False), rows, origin, tf.constant([], tf.int64))

    @classmethod
    def spec(cls, data: Any) -> LocalBatch:
        """What a pipeline of these has for elements. Args: data: the specs of the rows."""
        share, whole = tf.TensorSpec([5], tf.int32), tf.TensorSpec([], tf.bool)
        return cls(share, whole, data, tf.TensorSpec([2], tf.int64), tf.TensorSpec([None], tf.int64))

    def row_range(self) -> RowRange:
        """The share as plain numbers."""
        return RowRange(*map(int, self.share.numpy()))

    def reshard(self) -> LocalBatch:
        """The batch, shared out among the ranks that there are now.

        Raises:
            MatexError: a rank has died that had rows which no other rank has.
        """
        if int(self.origin.numpy()[1]) == world.current().generation:
            return self
        origin = came_from(self.origin)
        if not isinstance(origin, (Gatherer, Orphans)):
            raise MatexError(
                "a rank has died that held rows which no other rank has: train on arrays that every rank holds, on "
                "the data and labels of a DataSet as they are, on a tf.data pipeline with --data exact, or without "
                "--faults shrink."
            )
        resharded: LocalBatch = origin.reshard(self)
        return resharded


class Gatherer:
    """Arrays from which any rows of a batch can be had.

    Attributes:
        spec: tf.TensorSpecs of the rows of a batch.
        row_bytes: of one row.
    """

    def __init__(self, elements: Any, offset: int = 0, tagged: bool = False):
        """Args:
        elements: arrays of the rows that this rank holds, nested.
        offset: the number of the first row.
        tagged: whether rows are asked for by tags.
        """
        with tf.device("CPU:0"):
            self.elements = tf.nest.map_structure(_tensor, elements)
        self._offset, self._tagged = offset, tagged
        rows = tf.nest.map_structure(row_slicing.any_rows, self.elements)
        self.spec = TaggedRows(tf.TensorSpec([None], tf.int64), rows) if tagged else rows
        self._leaves = tf.nest.flatten(self.elements)
        held = [leaf for leaf in self._leaves if leaf is not None]
        self.row_bytes = sum(leaf.dtype.size * leaf.shape[1:].num_elements() for leaf in held)

    def reshard(self, own: LocalBatch) -> LocalBatch:
        """A batch, shared out anew."""
        ranks, indices = world.current(), own.batch.numpy()
        share = RowRange.of(len(indices), ranks.rank, ranks.size)
        mine = self.take(indices[share.low : share.high])
        return own._replace(share=tf.constant(share.taken(), tf.int32), data=mine)

    def take(self, indices: np.ndarray) -> Any:
        """Rows of all arrays, as tensors on the CPU."""
        with tf.device("CPU:0"):
            numbers = tf.constant(row_choice.numbers_of(indices) - self._offset if self._tagged else indices)
            flat = [None if leaf is None else tf.raw_ops.Gather(params=leaf, indices=numbers) for leaf in self._leaves]
            taken = tf.nest.pack_sequence_as(self.elements, flat)
            return TaggedRows(tf.constant(indices), taken) if self._tagged else taken


def _tensor(leaf: Any) -> Any:
    return None if leaf is None else tf.convert_to_tensor(leaf)


def at_least_one_row(leaf: Any) -> Any:
    """An array or tensor, or one row of zeros of its kind where it has no rows."""
    if leaf is None or leaf.shape[0] != 0:
        return leaf
    return tf.zeros([1, *leaf.shape[1:]], tf.as_dtype(leaf.dtype))


class PassedRows(abc.ABC):
    """Rows that go from rank to rank while these train, as a strategy has it."""

    @abc.abstractmethod
    def before_batch(self) -> None:
        """Before a batch is taken: the rows that travel arrive; at the end of an epoch its last rows as well."""

    @abc.abstractmethod
    def after_batch(self, batch: np.ndarray) -> None:
        """After that: the rows of the batch before, which has been trained on, begin to travel.

        Args:
            batch: `LocalBatch.batch` of the one that was taken: whether it is the last of an epoch, and the places of
                the rows that shall be passed on; of the same length on every rank.
        """

    @abc.abstractmethod
    def rest(self) -> None:
        """All rows arrive."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the communicator back; after `rest`."""


class BatchShapes:
    """The shapes of the parts of a batch, as far as a pipeline of which each rank makes its rows leaves them open.

    One rank has a batch whose rows are of one shape: padded to the longest of them, or refused where they differ. So
    before a step the ranks compare the shapes of their parts.

    Args:
        compared: places, among the tensors of a batch, of those that must have rows of one shape on all ranks.
        padded: of those that are padded to the longest row, by place: the values that they are padded with.
    """

    def __init__(self, compared: Sequence[int], padded: dict[int, Any]):
        self._compared, self._padded = tuple(compared), padded

    def common(self, data: Any) -> Any:
        """This rank's rows in the shape that they have in the whole batch. All ranks come here.

        Raises:
            RanksDisagree: rows that are not padded have other shapes on other ranks.
        """
        leaves, ranks = tf.nest.flatten(data), world.current()
        if self._compared:
            shapes = [f"array {place}: rows of shape {tuple(leaves[place].shape[1:])}" for place in self._compared]
            ranks.barrier("batch rows of one shape", shapes)
        if not self._padded:
            return data
        mine = [leaves[place].shape.as_list() for place in self._padded]
        everyone = ranks.allgather(mine, "pad to the longest row of a batch")
        for number, (place, value) in enumerate(self._padded.items()):
            most = np.max([shapes[number][1:] for shapes in everyone], axis=0, initial=0)
            more = [0, *(most - mine[number][1:])]
            if any(more):
                leaves[place] = tf.pad(leaves[place], [(0, int(rows)) for rows in more], constant_values=value)
        return tf.nest.pack_sequence_as(data, leaves)
