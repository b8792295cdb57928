"""Rows of a `DataSet` whose ranks have died, or to which ranks have come.

Batches stay as they were, with all their rows. What a dead rank would have given to a batch is given by those that are
left: each has read a contiguous part of its rows. Of the rows of the others each rank that has come gives a part. For
that the ranks must know in which order another one uses its rows, so where ranks may die a shard is shuffled by a seed
that all know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving, span
from matex_tf.patches.common import seeds
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.epoch_orders import ShardOrders
from matex_tf.patches.sources import array_fingerprint


class Dealt(NamedTuple):
    """Whom a shard was dealt out to.

    Attributes:
        ranks: by the numbers that they had at the start of the job, see `World.first_ranks`.
        counts: rows of each.
        seed: see `ShardOrders`; None: not agreed upon yet.
    """

    ranks: list[int]
    counts: list[int]
    seed: tuple[int, bool] | None


class _Piece(NamedTuple):
    """Rows of a rank's shard that one rank gives.

    Attributes:
        place: the rank, among those that there are.
        high: one past the last of them; they begin where those of the piece before end.
    """

    place: int
    high: int


class Orphans:
    """Arrays that are the `data` and `labels` of a shard, and the rows of it that their ranks have left behind.

    Attributes:
        dealt: to whom.
        counts: rows of each rank of `dealt`; then 0 for this one if it has come since.
        rank: this one's place among those.
        generation: of the world when they were dealt out; -1 if this rank has come since.
    """

    def __init__(self, dealt: Dealt, shard: Any, columns: list[int], arrays: list[Any]):
        """Args:
        dealt: the same on every rank.
        shard: a `readers.shard.Shard`, of all rows on a rank that has come.
        columns: for each array that is not None, which column of the shard it is.
        arrays: these.
        """
        own = world.current().first_ranks[world.current().rank]
        came = own not in dealt.ranks
        self.dealt, self.counts = dealt, [*dealt.counts, *[0] * came]
        self.rank = len(dealt.ranks) if came else dealt.ranks.index(own)
        self.generation = -1 if came else shard.generation
        self._shard, self._columns, self._arrays = shard, columns, [np.asarray(array) for array in arrays]
        self._begins = np.concatenate([[0], np.cumsum(dealt.counts)]) if came else None  # of each shard in the arrays
        self._turns, self._size = Interleaving(self.counts), 0
        self._pieces: list[list[_Piece]] = []
        self._sources: dict[int, tuple[int, list[np.ndarray]]] = {}
        self._pieces_of: int | None = None  # a generation

    @property
    def told(self) -> tuple[Any, ...]:
        """What ranks that come are told: `dealt`, the place of this rank there, and checksums of its rows."""
        return *self.dealt, self.rank, self.checksums(self.rank)

    def checksums(self, shard: int) -> list[str]:
        """Of the rows of a shard that are in the arrays here."""
        begin = 0 if self._begins is None else int(self._begins[shard])
        parts = [array[begin : begin + self.counts[shard]] for array in self._arrays]
        return [repr(array_fingerprint.of(array_fingerprint.rows(part), part.shape)) for part in parts]

    def begin(self, batch_rows: int, shuffle: Any) -> ShardOrders:
        """Say how batches are made.

        Args:
            batch_rows: of all ranks. shuffle: as Keras takes it: a boolean or "batch".

        Returns:
            The orders of the rows of ranks.
        """
        self._size = batch_rows
        self._orders = ShardOrders(self.counts, shuffle, self.dealt.seed)
        return self._orders

    def reshard(self, own: Any) -> Any:
        """A batch of `local_batch.LocalBatch`, with this rank's part of the rows that nobody holds any more, and less
        those that ranks which have come give.

        Raises:
            DataError: the files cannot be read again.
        """
        self._deal()
        epoch, number = map(int, own.batch.numpy())
        spans, ranks = self._turns.spans(number, self._size), world.current()
        leaves = tf.nest.flatten(own.data)
        held = [leaf for leaf in leaves if leaf is not None]
        taken, counts = [], np.zeros(ranks.size, np.int64)
        for shard, pieces in enumerate(self._pieces):
            used = self._orders.of(shard, epoch)[slice(*spans[shard])]
            whose = np.searchsorted([piece.high for piece in pieces], used, side="right")
            for at, piece in enumerate(pieces):
                counts[piece.place] += np.count_nonzero(whose == at)
                if piece.place == ranks.rank and (rows := used[whose == at]).size:
                    as_gathered = shard == self.rank and len(pieces) == 1
                    taken.append(held if as_gathered else self._rows(shard, rows, held))
        if taken:
            joined = iter([tf.concat(parts, 0) for parts in zip(*taken, strict=True)])
        else:  # a row that does not count
            joined = iter([leaf[:1] for leaf in held])
        data = tf.nest.pack_sequence_as(own.data, [None if leaf is None else next(joined) for leaf in leaves])
        return own._replace(data=data, share=tf.constant(RowRange.own(counts.tolist(), ranks.rank), tf.int32))

    def _rows(self, shard: int, rows: np.ndarray, like: list[Any]) -> list[Any]:
        """Rows of a shard, of the dtypes of others: Keras may have made other ones of the columns."""
        first, columns = self._sources[shard]
        return [tf.cast(column[rows + first], leaf.dtype) for column, leaf in zip(columns, like, strict=True)]

    def _deal(self) -> None:
        """Deal out the rows to the ranks that there are; those that are in no array here are read."""
        ranks = world.current()
        if self._pieces_of == ranks.generation:
            return
        self._sources.clear()
        self._pieces = [self._pieces_of_shard(shard, ranks.first_ranks) for shard in range(len(self.dealt.ranks))]
        for shard, pieces in enumerate(self._pieces):
            low = 0
            for piece in pieces:
                if piece.place == ranks.rank:
                    self._sources[shard] = self._source(shard, low, piece.high)
                low = piece.high
        self._pieces_of = ranks.generation

    def _pieces_of_shard(self, shard: int, ranks: list[int]) -> list[_Piece]:
        """Who gives which rows of a shard. Its own rank gives what the ranks that have come do not; if it has died, all
        ranks give as many. The same pieces whenever ranks died and came."""
        count, owner, size = self.counts[shard], self.dealt.ranks[shard], len(ranks)
        others = [place for place, first in enumerate(ranks) if first not in self.dealt.ranks or owner not in ranks]
        kept = count * (size - len(others)) // size
        pieces = [_Piece(ranks.index(owner), kept)] if owner in ranks else []
        shared = (span(count - kept, place, len(others)) for place in range(len(others)))
        return pieces + [_Piece(place, kept + high) for place, (_, high) in zip(others, shared, strict=True)]

    def _source(self, shard: int, low: int, high: int) -> tuple[int, list[np.ndarray]]:
        """Arrays that have these rows of a shard, and what is to be added to the number of a row for them."""
        if self._begins is not None:
            return int(self._begins[shard]), self._arrays
        if shard == self.rank:
            return 0, self._arrays
        again = flat(*self._shard.read_of(shard, low, high))
        return -low, [again[column] for column in self._columns]


def flat(x: Any, y: Any) -> list[np.ndarray]:
    """The columns of a shard: inputs `x`, one array or a tuple, then labels `y`, the same or None."""
    return [*(x if isinstance(x, tuple) else [x]), *([] if y is None else y if isinstance(y, tuple) else [y])]


def found(given: list[Any], leaves: list[Any], training: bool) -> Orphans | None:
    """What deals out the rows of arrays anew; None if some rank's arrays are not a `DataSet`'s own, or one rank alone
    opened it. Collective.

    Args:
        given: the arrays as the script gave them, in the order of `leaves`.
        leaves: the same as Keras holds them.
        training: whether they are those that `fit` trains on: of these the job has told a rank that comes, which is
            refused here if it has others.
    """
    from matex_tf.readers.shard import origin

    ranks = world.current()
    origins = [origin(array) for array in given]
    shards = {id(one[0]): one[0] for one in origins if one is not None}
    mine = len(given) == len(leaves) and len(shards) == 1 and None not in origins
    shard = next(iter(shards.values())) if mine else None
    dealt, told = None, ranks.arrival.dealt if ranks.arrival is not None and training else None
    if shard is not None and shard.size > 1:
        dealt = Dealt(list(shard.ranks), list(shard.counts), None)
    elif shard is not None and told is not None:
        dealt = Dealt(*told[:3])
    said = ranks.allgather((mine, dealt), "look for the files of the data")
    known = next((one for _, one in said if one is not None), None)
    if known is None or not all(is_shard for is_shard, _ in said):
        return None
    drawn = seeds.of_orders() if training else (0, True)
    seed = ranks.broadcast(drawn, "share the seed of the shards' order")
    known = known._replace(seed=known.seed or seed)
    assert shard is not None
    made = Orphans(known, shard, [one[1] for one in origins if one is not None], given)
    if told is not None and (sum(known.counts) != shard.total_rows or made.checksums(told[3]) != told[4]):
        ranks.arrival.refuse("its DataSet has other rows than that of the job")
    return made
