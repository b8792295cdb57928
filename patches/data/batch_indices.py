"""Which rows of arrays each batch takes: pipelines of indices, and of the share of this rank.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter._inputs`, `_num_samples`, `_batch_size`, `_partial_batch_size`
and `_shuffle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving, own_span
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data import epoch_orders
from matex_tf.patches.data.lost_rows import Orphans
from matex_tf.patches.data.row_batches import Own
from matex_tf.patches.steps.row_choice import RowChoice


def of_whole(
    adapter: Any, original: Callable[[], Any], global_size: int, per_rank: int, chosen: RowChoice | None, epochs: int
) -> tuple[Any, Callable[[np.ndarray], Own]]:
    """The batches of data that every rank holds, and how a rank finds its own rows in each.

    Args:
        per_rank: the rows of a rank where the global batch is one batch of the script for each rank; 0 otherwise.
        chosen: says which rows an epoch uses; their indices are tags then.
        epochs: that a walk over them has; `original` knows.

    Returns:
        A walk over the indices of whole batches, and a function from those to what this rank takes.
    """
    own = _own(per_rank)
    if chosen is None and not adapter._shuffle:
        order = np.arange(adapter._num_samples)
        return [(order[low : low + global_size],) for low in range(0, len(order), global_size)] * epochs, own

    if chosen is None and (orders := epoch_orders.asked()) is not None:
        return epoch_orders.MixedBatches(orders, adapter._num_samples, global_size), own

    def numbers() -> Any:
        kept = adapter._inputs, adapter._batch_size, adapter._partial_batch_size
        rows = adapter._num_samples
        adapter._inputs = (np.arange(rows),)
        adapter._batch_size, adapter._partial_batch_size = global_size, rows % global_size
        try:
            return original()
        finally:
            adapter._inputs, adapter._batch_size, adapter._partial_batch_size = kept

    return numbers() if chosen is None else chosen.tags_of_whole(adapter, numbers, global_size), own


def _own(per_rank: int) -> Callable[[np.ndarray], Own]:
    """What a rank takes of a batch that every rank has, from the indices of all its rows; see `of_whole`."""
    ranks, virtual = world.current(), settings.current().reproducible
    nothing = np.array([], np.int64)

    def own(batch: np.ndarray) -> Own:
        total = len(batch)
        if per_rank:
            low, high = min(ranks.rank * per_rank, total), min((ranks.rank + 1) * per_rank, total)
        else:
            low, high = own_span(total, ranks.rank, ranks.size, virtual)
        begin, rows = low if high > low else max(0, min(low, total - 1)), max(high - low, 1)
        share = RowRange(0, rows, high - low, total, begin)
        return batch[begin : begin + rows], share, nothing if ranks.guard is None else batch

    return own


def of_shards(
    adapter: Any, turns: Interleaving, global_size: int, orphans: Orphans | None = None, goes_round: bool = False
) -> Any:
    """Indices and share of this rank in each batch, of rows that only this rank holds.

    Third the numbers of epoch and batch where there are `orphans`, or what to tell a ring where rows go round.
    """
    rank = world.current().rank if orphans is None else orphans.rank
    mine, shuffle = int(turns.counts[rank]), adapter._shuffle
    places = spans(turns, global_size, rank)

    if orphans is not None:
        orphans.begin(global_size, bool(shuffle) and shuffle != "batch")

    # AutoGraph would warn of `map`, which is wrapped, and has nothing to convert in these.
    @tf.autograph.experimental.do_not_convert
    def permutation(_: Any) -> Any:
        if orphans is not None:
            epoch, indices = tf.numpy_function(orphans.next_epoch, [], (tf.int64, tf.int64))
            return tf.ensure_shape(epoch, []), tf.ensure_shape(indices, [None])
        indices = tf.range(max(1, mine), dtype=tf.int64)
        mixed = tf.random.shuffle(indices) if shuffle and shuffle != "batch" else indices
        return tf.constant(0, tf.int64), mixed

    @tf.autograph.experimental.do_not_convert
    def own(epoch: Any, indices: Any) -> Any:
        def take(number: Any, span: Any) -> tuple[Any, Any, Any]:
            taken, share = slice_of(indices, span[0], span[1], span[2], span[5])
            taken = tf.random.shuffle(taken) if shuffle == "batch" else taken
            batch = indices[:0]
            if orphans is not None:
                batch = tf.stack([epoch, number])
            elif goes_round:
                batch = tf.concat([tf.cast(span[4:5], tf.int64), taken[: span[3]]], 0)
            return taken, share, batch

        return tf.data.Dataset.from_tensor_slices(places).enumerate().map(take)

    return tf.data.Dataset.range(1).map(permutation).prefetch(1).flat_map(own)


def spans(turns: Interleaving, global_size: int, rank: int) -> np.ndarray:
    """For each batch: this rank's rows of it, low and high; the rows of all ranks, and of the rank with the fewest;
    whether it is the last; where this rank's begin in it. int32 (batches, 6)."""
    places = [turns.spans(batch, global_size) for batch in range(turns.batches(global_size))]
    counts = [place[:, 1] - place[:, 0] for place in places]
    last = len(places) - 1
    return np.array(
        [
            [*place[rank], count.sum(), count.min(), i == last, RowRange.own(count.tolist(), rank).first]
            for i, (place, count) in enumerate(zip(places, counts, strict=True))
        ],
        np.int32,
    )


def slice_of(indices: Any, low: Any, high: Any, total: Any, first: Any = None) -> tuple[Any, Any]:
    """Indices `low` to `high` and their share; one index, as a ghost, where that is none.

    Args:
        first: where they begin in the whole batch; None: where they begin among the indices.
    """
    begin = tf.where(high > low, low, tf.minimum(low, tf.shape(indices)[0] - 1))
    taken = indices[begin : tf.maximum(high, begin + 1)]
    return taken, tf.stack([0, tf.maximum(high - low, 1), high - low, total, begin if first is None else first])
