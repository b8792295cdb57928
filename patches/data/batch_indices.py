"""Which rows of arrays each batch takes, and which of them this rank gathers.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter._inputs`, `_num_samples`, `_batch_size`, `_partial_batch_size`
and `_shuffle`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data import epoch_orders
from matex_tf.patches.data.epoch_orders import ShardOrders
from matex_tf.patches.data.lost_rows import Orphans
from matex_tf.patches.data.row_batches import Order, Own
from matex_tf.patches.steps.row_choice import RowChoice


def of_whole(
    adapter: Any, original: Callable[[], Any], global_size: int, per_rank: int, chosen: RowChoice | None, epochs: int
) -> Order:
    """What a rank takes of the batches of data that every rank holds.

    Args:
        adapter: Keras' of the arrays. original: makes the pipeline of Keras' own.
        global_size: rows of a batch of all ranks.
        per_rank: the rows of a rank where the global batch is one batch of the script for each rank; 0 otherwise.
        chosen: says which rows an epoch uses; their indices are tags then.
        epochs: that a walk over them has; `original` knows.
    """
    batches = _of_all(adapter, original, global_size, chosen, epochs)
    ranks = world.current()

    def own(batch: np.ndarray) -> Own:
        if per_rank:
            low, high = (min(rank * per_rank, len(batch)) for rank in (ranks.rank, ranks.rank + 1))
            share = RowRange.between(low, high, len(batch))
        else:
            share = RowRange.of(len(batch), ranks.rank, ranks.size)
        return batch[share.low : share.high], share.taken(), batch if ranks.guard is not None else batch[:0]

    return lambda: map(own, batches())


def _of_all(
    adapter: Any, original: Callable[[], Any], global_size: int, chosen: RowChoice | None, epochs: int
) -> Callable[[], Iterator[np.ndarray]]:
    """Begins a walk over the indices of whole batches."""
    rows = adapter._num_samples
    if chosen is None and not adapter._shuffle:
        return lambda: itertools.chain(*(in_batches(np.arange(rows), global_size) for _ in range(epochs)))

    if chosen is None and (orders := epoch_orders.asked()) is not None:
        return lambda: in_batches(orders.next(rows), global_size)

    def numbers() -> Any:
        kept = adapter._inputs, adapter._batch_size, adapter._partial_batch_size
        adapter._inputs = (np.arange(rows),)
        adapter._batch_size, adapter._partial_batch_size = global_size, rows % global_size
        try:
            return original()
        finally:
            adapter._inputs, adapter._batch_size, adapter._partial_batch_size = kept

    if chosen is not None:
        return chosen.tags_of_whole(adapter, numbers, global_size)
    pipeline = numbers()
    return lambda: (np.asarray(indices) for (indices,) in pipeline)


def in_batches(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Parts of an `order`, an array of indices, of `size` rows each, but for the last."""
    return (order[low : low + size] for low in range(0, len(order), size))


def of_shards(
    adapter: Any,
    counts: Sequence[int],
    global_size: int,
    orphans: Orphans | None = None,
    goes_round: bool = False,
    epochs: int = 1,
) -> Order:
    """What this rank takes of each batch, of rows that only this rank holds.

    Third the numbers of epoch and batch where there are `orphans`, or what to tell a ring where rows go round.

    Args:
        adapter: Keras' of the arrays. counts: rows of each rank. global_size: rows of a batch of all ranks.
        orphans: deals out rows that ranks leave behind; None: nobody does. goes_round: whether rows go round a ring.
        epochs: that a walk over them has.
    """
    rank = world.current().rank if orphans is None else orphans.rank
    shuffle, places = adapter._shuffle, spans(Interleaving(counts), global_size, rank)
    orders = ShardOrders(counts, shuffle) if orphans is None else orphans.begin(global_size, shuffle)

    def order() -> Iterator[Own]:
        for _ in range(epochs):
            epoch = orders.next_epoch()
            indices = orders.of(rank, epoch)
            for number, (*span, fewest, last) in enumerate(places):
                taken, share = slice_of(indices, *span)
                if shuffle == "batch":
                    taken = orders.drawn(rank, epoch, number).permutation(taken)
                batch = [epoch, number] if orphans is not None else [last, *taken[:fewest]] if goes_round else []
                yield taken, share, np.array(batch, np.int64)

    return order


def spans(turns: Interleaving, global_size: int, rank: int) -> list[tuple[int, ...]]:
    """For each batch: this rank's rows of it, low and high; the rows of all ranks; where this rank's begin in it; the
    rows of the rank with the fewest; and whether it is the last.

    Args:
        turns: of the ranks' shards. global_size: rows of a batch of all ranks. rank: this one.
    """
    places = [turns.spans(batch, global_size) for batch in range(turns.batches(global_size))]
    found = []
    for number, place in enumerate(places):
        counts = (place[:, 1] - place[:, 0]).tolist()
        first = RowRange.own(counts, rank).first
        found.append((*place[rank].tolist(), sum(counts), first, min(counts), number == len(places) - 1))
    return found


def slice_of(indices: np.ndarray, low: int, high: int, total: int, first: int) -> tuple[np.ndarray, RowRange]:
    """Indices `low` to `high` and their share; one index, as a ghost, where that is none.

    Args:
        indices: of the rows that this rank holds, in the order of an epoch; int64.
        total: rows of the batch.
        first: where they begin in it.
    """
    mine = RowRange.between(low, high, len(indices))
    return indices[mine.low : mine.high], mine.taken()._replace(total=total, first=first)
