"""Rows of a `DataSet` whose rank has died: the others read them from the files again.

Batches stay as they were, with all their rows. What the dead rank would have given to a batch is given by those that
are left: each has read a contiguous part of its rows. For that the ranks must know in which order another one uses its
rows, so where ranks may die a shard is shuffled by a seed that all know.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving, span
from matex_tf.patches.common.row_slicing import RowRange


class Orphans:
    """Arrays that are the `data` and `labels` of a shard, and the rows of it that their ranks have left behind.

    Attributes:
        counts: rows of each rank that the shard was dealt out to.
        rank: this one's place among those.
        generation: of the world at that time.
    """

    def __init__(self, shard: Any, columns: list[int]):
        """Collective over the world.

        Args:
            shard: a `readers.shard.Shard`.
            columns: for each array that is not None, which column of the shard it is.
        """
        ranks = world.current()
        self.counts, self.rank = list(shard.counts), shard.rank
        self.generation = shard.generation
        self._shard, self._columns = shard, columns
        self._seed = ranks.broadcast(int(np.random.randint(1 << 30)), "share the seed of the shards' order")
        self._epochs = itertools.count()
        self._turns, self._size, self._shuffle = Interleaving(self.counts), 0, False
        self._adopted: list[tuple[int, list[np.ndarray]]] = []
        self._adopted_in = self.generation
        self.order = functools.lru_cache(maxsize=2 * len(self.counts))(self._order)

    def begin(self, batch_rows: int, shuffle: bool) -> None:
        """Say how batches are made. Args: batch_rows: of a global batch; shuffle: whether rows change places."""
        self._size, self._shuffle = batch_rows, shuffle

    def next_epoch(self) -> tuple[np.int64, np.ndarray]:
        """The number of an epoch that begins, and the order of this rank's rows in it: int64."""
        epoch = next(self._epochs)
        return np.int64(epoch), self.order(self.rank, epoch)

    def _order(self, rank: int, epoch: int) -> np.ndarray:
        count = max(1, self.counts[rank])
        if not self._shuffle:
            return np.arange(count)
        return np.random.default_rng([self._seed, rank, epoch]).permutation(count)

    def reshard(self, own: Any) -> Any:
        """A batch of `local_batch.LocalBatch`, with this rank's part of the rows that nobody holds any more.

        Raises:
            DataError: the files cannot be read again.
        """
        self._adopt()
        epoch, number = map(int, own.batch.numpy())
        spans, had = self._turns.spans(number, self._size), own.row_range().rows
        data = tf.nest.flatten(own.data)
        held = [leaf for leaf in data if leaf is not None]
        pieces = [held] if had else []
        left = self._left()
        mine, counts = left.index(self.rank), [spans[rank][1] - spans[rank][0] for rank in left]
        for rank, columns in self._adopted:
            used = self.order(rank, epoch)[slice(*spans[rank])]
            for place in range(len(left)):  # where this rank's rows begin follows from what the others read
                low, high = span(self.counts[rank], place, len(left))
                places = used[(used >= low) & (used < high)] - low
                counts[place] += len(places)
                if place == mine and len(places):
                    # Keras may have made other dtypes of the columns.
                    pieces.append([tf.cast(one[places], leaf.dtype) for one, leaf in zip(columns, held, strict=True)])
        if not had and pieces or len(pieces) > 1:
            joined = iter([tf.concat(parts, 0) for parts in zip(*pieces, strict=True)])
            leaves = [None if leaf is None else next(joined) for leaf in data]
            own = own._replace(data=tf.nest.pack_sequence_as(own.data, leaves))
        return own._replace(share=tf.constant(RowRange.own(counts, mine), tf.int32))

    def _left(self) -> list[int]:
        """The ranks that there still are, by their place among those that the shard was dealt out to."""
        return [self._shard.ranks.index(first) for first in world.current().first_ranks]

    def _adopt(self) -> None:
        """Read this rank's part of the rows of each rank that has died; the same parts whenever they died."""
        ranks, shard = world.current(), self._shard
        if self._adopted_in == ranks.generation:
            return
        left = self._left()
        self._adopted = []
        for rank, count in enumerate(self.counts):
            if rank not in left:
                low, high = span(count, left.index(self.rank), len(left))
                again = flat(*shard.read_of(rank, low, high))
                self._adopted.append((rank, [again[column] for column in self._columns]))
        self._adopted_in = ranks.generation


def flat(x: Any, y: Any) -> list[np.ndarray]:
    """The columns of a shard: inputs, then labels."""
    return [*(x if isinstance(x, tuple) else [x]), *([] if y is None else y if isinstance(y, tuple) else [y])]


def found(given: list[Any], leaves: list[Any]) -> Orphans | None:
    """What can read the rows of arrays again; None where some rank's arrays are not a `DataSet`'s own. Collective.

    Args:
        given: the arrays as the script gave them, in the order of `leaves`.
        leaves: the same as Keras holds them.
    """
    from matex_tf.readers.shard import origin

    ranks = world.current()
    origins = [origin(array) for array in given]
    shards = {id(one[0]): one[0] for one in origins if one is not None}
    mine = len(given) == len(leaves) and len(shards) == 1 and None not in origins
    if not all(ranks.allgather(mine, "look for the files of the data")):
        return None
    return Orphans(next(iter(shards.values())), [one[1] for one in origins if one is not None])
