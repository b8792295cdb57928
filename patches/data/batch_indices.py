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
from matex_tf.patches.data.lost_rows import Orphans
from matex_tf.patches.samples import tagged_rows
from matex_tf.patches.samples.pruning import Pruning


def of_whole(
    adapter: Any, original: Callable[[], Any], global_size: int, per_rank: int, pruning: Pruning | None = None
) -> tuple[Any, Callable[[Any], tuple[Any, Any, Any]]]:
    """The batches of data that every rank holds, and how a rank finds its own rows in each.

    They come apart, as each map of a pipeline costs milliseconds whenever an epoch begins.

    Args:
        per_rank: the rows of a rank where the global batch is one batch of the script for each rank; 0 otherwise.
        pruning: says which rows an epoch uses; their indices are tags then.

    Returns:
        A pipeline of the indices of whole batches, and a function from those to this rank's indices, its share, and
        the indices of the whole batch if the batch may have to be shared out anew.
    """
    ranks = world.current()
    kept = adapter._inputs, adapter._batch_size, adapter._partial_batch_size
    rows = adapter._num_samples
    own_order = pruning is not None and pruning.rate and adapter._shuffle != "batch"
    adapter._inputs = (np.arange(rows),)
    adapter._batch_size, adapter._partial_batch_size = global_size, rows % global_size
    try:
        indices = None if own_order else original()
    finally:
        adapter._inputs, adapter._batch_size, adapter._partial_batch_size = kept
    if pruning is not None:
        indices = pruned(indices, rows, pruning, global_size, bool(adapter._shuffle))

    guarded, virtual = ranks.guard is not None, settings.current().reproducible

    def own(batch: Any) -> tuple[Any, Any, Any]:
        total = tf.shape(batch)[0]
        if per_rank:
            low, high = tf.minimum(ranks.rank * per_rank, total), tf.minimum((ranks.rank + 1) * per_rank, total)
        else:
            low, high = own_span(total, ranks.rank, ranks.size, virtual)
        return *_slice(batch, low, high, total), batch if guarded else batch[:0]

    return indices, own


def of_shards(
    adapter: Any, turns: Interleaving, global_size: int, orphans: Orphans | None = None, goes_round: bool = False
) -> Any:
    """Indices and share of this rank in each batch, of rows that only this rank holds.

    Third the numbers of epoch and batch where there are `orphans`, or what to tell a ring where rows go round.
    """
    rank = world.current().rank if orphans is None else orphans.rank
    mine, shuffle = int(turns.counts[rank]), adapter._shuffle
    spans = _spans(turns, global_size, rank)

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
            taken, share = _slice(indices, span[0], span[1], span[2], span[5])
            taken = tf.random.shuffle(taken) if shuffle == "batch" else taken
            batch = indices[:0]
            if orphans is not None:
                batch = tf.stack([epoch, number])
            elif goes_round:
                batch = tf.concat([tf.cast(span[4:5], tf.int64), taken[: span[3]]], 0)
            return taken, share, batch

        return tf.data.Dataset.from_tensor_slices(spans).enumerate().map(take)

    return tf.data.Dataset.range(1).map(permutation).prefetch(1).flat_map(own)


def pruned(batches: Any, rows: int, pruning: Pruning, size: int, shuffle: bool) -> Any:
    """The batches of an epoch without the rows that it leaves out, each full again; of tags.

    Each function of a pipeline takes milliseconds when an epoch begins, so all rows go through one of them at once.

    Args:
        batches: a pipeline of row numbers, each epoch those of all rows; None for an order that `pruning` draws.
        rows: how many those are.
        size: rows of a batch.
        shuffle: whether `pruning` draws one.
    """

    @tf.autograph.experimental.do_not_convert
    def used(*found: Any) -> Any:
        if batches is None:
            return (tf.ensure_shape(tf.numpy_function(lambda: pruning.tags(shuffle), [], tf.int64), [None]),)
        codes = tf.ensure_shape(tf.numpy_function(pruning.codes, [], tf.int8), [None])
        return (tagged_rows.used(tf.cast(tf.nest.flatten(found)[0], tf.int64), codes),)

    epochs = tf.data.Dataset.range(1) if batches is None else batches.rebatch(rows)
    return epochs.map(used).rebatch(size)


def of_pruned_shards(adapter: Any, counts: list[int], global_size: int, pruning: Pruning) -> Any:
    """Tags and share of this rank in each batch, of rows that only this rank holds; see `of_shards`."""
    rank, shuffle = world.current().rank, adapter._shuffle
    starts = np.concatenate([[0], np.cumsum(counts)])

    def epoch() -> tuple[np.ndarray, np.ndarray]:
        codes = pruning.codes()
        left = [int((codes[low:high] != 0).sum()) for low, high in zip(starts[:-1], starts[1:], strict=True)]
        return codes, _spans(Interleaving(left), global_size, rank)

    @tf.autograph.experimental.do_not_convert
    def begin(_: Any) -> Any:
        codes, spans = tf.numpy_function(epoch, [], (tf.int8, tf.int32))
        numbers = pruning.offset + tf.range(counts[rank], dtype=tf.int64)
        mixed = tf.random.shuffle(numbers) if shuffle and shuffle != "batch" else numbers
        tags = tagged_rows.used(mixed, tf.ensure_shape(codes, [None]))
        ghost = tf.fill([tf.maximum(1 - tf.shape(tags)[0], 0)], tf.constant(pruning.offset, tf.int64))
        return tf.concat([tags, ghost], 0), tf.ensure_shape(spans, [None, 6])

    @tf.autograph.experimental.do_not_convert
    def own(tags: Any, spans: Any) -> Any:
        def take(span: Any) -> tuple[Any, Any, Any]:
            taken, share = _slice(tags, span[0], span[1], span[2], span[5])
            return tf.random.shuffle(taken) if shuffle == "batch" else taken, share, tags[:0]

        return tf.data.Dataset.from_tensor_slices(spans).map(take)

    return tf.data.Dataset.range(1).map(begin).prefetch(1).flat_map(own)


def _spans(turns: Interleaving, global_size: int, rank: int) -> np.ndarray:
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


def _slice(indices: Any, low: Any, high: Any, total: Any, first: Any = None) -> tuple[Any, Any]:
    """Indices `low` to `high` and their share; one index, as a ghost, where that is none.

    Args:
        first: where they begin in the whole batch; None: where they begin among the indices.
    """
    begin = tf.where(high > low, low, tf.minimum(low, tf.shape(indices)[0] - 1))
    taken = indices[begin : tf.maximum(high, begin + 1)]
    return taken, tf.stack([0, tf.maximum(high - low, 1), high - low, total, begin if first is None else first])
