"""The rows of a rank as a tf.data pipeline, for files that are larger than memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from matex_tf import errors
from matex_tf.core.row_partition import Interleaving, OwnRows, span
from matex_tf.errors import DataError
from matex_tf.readers.tables.table import Arrays, join, take_rows
from matex_tf.state import notes


class Rows(Protocol):
    """The rows of a rank, as `Shard` has them.

    Attributes:
        rank: this rank.
        turns: which rows of each rank are in which batch.
    """

    rank: int
    turns: Interleaving

    def __len__(self) -> int: ...

    def check_owner(self) -> None:
        """Raises: DataError: this rank has no rows of its own."""

    def block_rows(self) -> int:
        """How many rows to read at a time."""

    def read(self, low: int, high: int) -> tuple[Arrays, Arrays | None]:
        """This rank's rows `low` to `high`."""


class AsOneRank:
    """All rows of a shard, in the order of the files, as one rank has them."""

    def __init__(self, shard: Any):
        self.rank, self.turns = 0, Interleaving([shard.total_rows])
        self.block_rows, self.read, self.check_owner = shard.block_rows, shard.read_any, shard.check_owner

    def __len__(self) -> int:
        return self.turns.total


def batches(shard: Rows, batch_size: int, seed: int | None) -> Iterator[tuple[Arrays, Arrays | None]]:
    """One epoch: this rank's rows of each global batch, in order, or shuffled where there is a seed.

    The rows are read in blocks, and no more than two blocks are held.

    Args:
        shard: whose rows are read.
        batch_size: rows of a global batch, of all ranks together.
        seed: the same on every rank; None: rows come in the order of the files.
    """
    shard.check_owner()
    total, step = len(shard), shard.block_rows()
    starts = list(range(0, total, step))
    random = None if seed is None else np.random.RandomState(seed)
    if random is not None:
        random.shuffle(starts)

    def blocks() -> Iterator[tuple[Arrays, Arrays | None]]:
        for start in starts:
            x, y = shard.read(start, min(start + step, total))
            if random is not None:
                rows = random.permutation(min(step, total - start))
                x, y = take_rows(x, rows), take_rows(y, rows)
            yield x, y

    ahead = blocks()
    held: tuple[Arrays, Arrays | None] = shard.read(0, 0)
    begin = end = 0  # rows of the epoch that `held` has
    for batch in range(shard.turns.batches(batch_size)):
        low, high = shard.turns.spans(batch, batch_size)[shard.rank]
        pieces = []
        while low < high:
            if low >= end:
                held = next(ahead)
                begin, end = end, end + _rows(held[0])
            stop = min(high, end)
            pieces.append(tuple(take_rows(part, slice(low - begin, stop - begin)) for part in held))
            low = stop
        if not pieces:
            yield take_rows(held[0], slice(0, 0)), take_rows(held[1], slice(0, 0))
        elif len(pieces) == 1:
            yield pieces[0]  # type: ignore[misc]
        else:
            yield join([x for x, _ in pieces]), join([y for _, y in pieces])


def pipeline(shard: Rows, batch_size: int, shuffle: bool, seed: int | None, part: tuple[int, int] = (0, 1)) -> Any:
    """What `Shard.to_tf_data` returns.

    Args:
        part: of each batch, which of how many parts of its rows is yielded.
    """
    import tensorflow as tf

    x, y = shard.read(0, 0)
    first = int(np.random.randint(1 << 30)) if shuffle and seed is None else seed or 0
    epochs = itertools.count()

    def spec(arrays: Arrays) -> Any:
        if isinstance(arrays, tuple):
            return tuple(map(spec, arrays))
        dtype = tf.string if arrays.dtype.kind in "OUS" else tf.as_dtype(arrays.dtype)
        return tf.TensorSpec([None, *arrays.shape[1:]], dtype)

    def generate() -> Iterator[Any]:
        epoch = next(epochs)
        mixed = np.random.SeedSequence([first, epoch, shard.rank]).generate_state(1)[0] if shuffle else None
        try:
            for both in batches(shard, batch_size, None if mixed is None else int(mixed)):
                mine = slice(*span(_rows(both[0]), *part))
                inputs, labels = take_rows(both[0], mine), take_rows(both[1], mine)
                yield inputs if labels is None else (inputs, labels)
        except DataError as error:
            errors.remember(error)  # TensorFlow raises one of its own, in which little is left of this
            raise

    signature = spec(x) if y is None else (spec(x), spec(y))
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    data = data.apply(tf.data.experimental.assert_cardinality(shard.turns.batches(batch_size)))
    data = data.prefetch(tf.data.AUTOTUNE)
    notes.put(data, OwnRows("shard"))
    return data


def _rows(arrays: Arrays) -> int:
    return len(arrays[0] if isinstance(arrays, tuple) else arrays)
