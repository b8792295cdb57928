"""Rows of a `DataSet` where ranks have died and come: every row of a batch is given by one rank, and only by one."""

import types

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.row_partition import span
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import LocalBatch
from matex_tf.patches.data.lost_rows import Dealt, Orphans

TOTAL, BATCH = 101, 16
ROWS = np.stack([np.arange(TOTAL), np.arange(TOTAL) * 10], 1)


class Shard:
    """The rows of a rank. Counts those that are read of others."""

    generation, read = 0, 0

    def __init__(self, ranks):
        self.ranks = ranks

    def read_of(self, rank, low, high):
        first, last = span(TOTAL, rank, self.ranks)
        self.read += high - low
        return ROWS[first:last][low:high], ROWS[first:last][low:high, 0]


def of_rank(first_ranks, rank, founders, shuffle):
    """What deals out rows on one rank of a world, and its shard."""
    spans = [span(TOTAL, one, founders) for one in range(founders)]
    dealt = Dealt(list(range(founders)), [high - low for low, high in spans], (7, False))
    own = first_ranks[rank]
    low, high = spans[own] if own < founders else (0, TOTAL)
    shard = Shard(founders)
    made = Orphans(dealt, shard, [0, 1], [ROWS[low:high], ROWS[low:high, 0]])
    made.begin(BATCH, shuffle)
    return made, shard


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    "first_ranks", [[0, 1, 2], [0, 2], [0, 1, 2, 3], [1, 2, 4, 5], [0, 3, 4, 5, 6, 7], [4, 5], [2], [9]]
)
def test_each_row_once(first_ranks, shuffle):
    """Of three ranks, some of which have died, and to which others have come."""
    batches = {}
    for rank in range(len(first_ranks)):
        here = types.SimpleNamespace(rank=rank, size=len(first_ranks), first_ranks=first_ranks, generation=1)
        with world.use(here):
            made, shard = of_rank(first_ranks, rank, 3, shuffle)
            for number in range(-(-TOTAL // BATCH)):
                low, high = made._turns.spans(number, BATCH)[made.rank]
                mine = made._orders.of(made.rank, 0)[low:high]  # as this rank has gathered them
                data = [tf.constant(array[mine]) if mine.size else tf.constant(array[:1] * 0) for array in made._arrays]
                data[1] = tf.cast(data[1], tf.float32)
                batch = LocalBatch(None, None, tuple(data), None, tf.constant([0, number], tf.int64))
                own = made.reshard(batch)
                share = RowRange(*map(int, own.share.numpy()))
                batches.setdefault(number, []).append((share, *(leaf.numpy() for leaf in own.data)))
        came = first_ranks[rank] > 2
        died = 3 - len([one for one in first_ranks if one < 3])
        assert (shard.read > 0) == (not came and died > 0)  # a rank that comes has all rows
    used, given = [], np.zeros(len(first_ranks))
    for parts in batches.values():
        total, begin = sum(share.rows for share, *_ in parts), 0
        for share, x, y in parts:
            assert share.total == total and len(x) == max(share.rows, 1)
            assert not share.rows or share.first == begin
            begin += share.rows
            assert y.dtype == np.float32 and (x[: share.rows, 0] == y[: share.rows]).all()
            used += x[: share.rows].tolist()
        given += [share.rows for share, *_ in parts]
    assert sorted(used) == ROWS.tolist()
    assert given.max() - given.min() <= 3  # of 101 rows
