"""Pipelines of tags of arrays: which rows each batch of an epoch takes, without those that it leaves out.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter._num_samples` and `_shuffle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving
from matex_tf.features.samples import scoring
from matex_tf.patches.data import batch_indices

if TYPE_CHECKING:
    from matex_tf.features.samples.patches.pruning import Pruning


def of_whole(adapter: Any, numbers: Callable[[], Any], pruning: Pruning, size: int) -> Any:
    """The batches of an epoch without the rows that it leaves out, each full again; of tags.

    Each function of a pipeline takes milliseconds when an epoch begins, so all rows go through one of them at once.
    """
    rows, shuffle = adapter._num_samples, bool(adapter._shuffle)
    own_order = pruning.rate and adapter._shuffle != "batch"  # then `pruning` draws it

    @tf.autograph.experimental.do_not_convert
    def tags(*found: Any) -> Any:
        if own_order:
            return (tf.ensure_shape(tf.numpy_function(lambda: pruning.tags(shuffle), [], tf.int64), [None]),)
        codes = tf.ensure_shape(tf.numpy_function(pruning.codes, [], tf.int8), [None])
        return (used(tf.cast(tf.nest.flatten(found)[0], tf.int64), codes),)

    epochs = tf.data.Dataset.range(1) if own_order else numbers().rebatch(rows)
    return epochs.map(tags).rebatch(size)


def of_shards(adapter: Any, counts: list[int], global_size: int, pruning: Pruning) -> Any:
    """Tags and share of this rank in each batch, of rows that only this rank holds; see `batch_indices.of_shards`."""
    rank, shuffle = world.current().rank, adapter._shuffle
    starts = np.concatenate([[0], np.cumsum(counts)])

    def epoch() -> tuple[np.ndarray, np.ndarray]:
        codes = pruning.codes()
        left = [int((codes[low:high] != 0).sum()) for low, high in zip(starts[:-1], starts[1:], strict=True)]
        return codes, batch_indices.spans(Interleaving(left), global_size, rank)

    @tf.autograph.experimental.do_not_convert
    def begin(_: Any) -> Any:
        codes, spans = tf.numpy_function(epoch, [], (tf.int8, tf.int32))
        numbers = pruning.offset + tf.range(counts[rank], dtype=tf.int64)
        mixed = tf.random.shuffle(numbers) if shuffle and shuffle != "batch" else numbers
        tags = used(mixed, tf.ensure_shape(codes, [None]))
        ghost = tf.fill([tf.maximum(1 - tf.shape(tags)[0], 0)], tf.constant(pruning.offset, tf.int64))
        return tf.concat([tags, ghost], 0), tf.ensure_shape(spans, [None, 6])

    @tf.autograph.experimental.do_not_convert
    def own(tags: Any, spans: Any) -> Any:
        def take(span: Any) -> tuple[Any, Any, Any]:
            taken, share = batch_indices.slice_of(tags, span[0], span[1], span[2], span[5])
            return tf.random.shuffle(taken) if shuffle == "batch" else taken, share, tags[:0]

        return tf.data.Dataset.from_tensor_slices(spans).map(take)

    return tf.data.Dataset.range(1).map(begin).prefetch(1).flat_map(own)


def used(numbers: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
    """The tags of those rows that are used in an epoch.

    Args:
        numbers: int64 (n,), rows.
        codes: int8 (rows,), see `scoring.Epoch`.
    """
    code = tf.gather(codes, numbers)
    tags = tf.where(code == scoring.SCALED, -1 - numbers, numbers)
    return tf.boolean_mask(tags, code != scoring.LEFT_OUT)
