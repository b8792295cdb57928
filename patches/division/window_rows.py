"""Of each batch of a pipeline this rank's rows, before anything is done with them.

Small elements are batched, and the rows taken out of the batch. Large ones, and what cannot be batched, are handed on
one by one, from windows. A map that can do many elements at once gets all rows of the rank at once.

A loop of the script's own may want a batch as a whole. Then a window gives *pieces* in place of one part: all rows of
the batch, in pieces of one size, from the rank's own rows on and round. Which of the two it is, is read where a window
is cut: a pipeline runs ahead of the loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.division import deferred
from matex_tf.patches.sources import calls

#: Bytes of an element, without words, up to which copying it costs less than handing it on by itself.
_SMALL = 16 << 10

SHARE = tf.TensorSpec([5], tf.int32)


def parts(batched: Any, form: deferred.Deferred, whole: Any = None) -> tuple[Any, list[deferred.Stage] | None]:
    """Elements of this rank's rows, or its part of each batch.

    Args:
        batched: what makes the batches.
        form: what it makes them from.
        whole: a boolean variable, whether batches are wanted as a whole; None where they never are.

    Returns:
        A dataset whose elements are flat tensors, the first of them a share: `RowRange`, with 0 in place of `low`, or
        the number of pieces where it is one of those of a whole batch. And the maps that are still to be done with
        each element, before it is batched; None where there are none, and the rows are batched.
    """
    size, drop = int(batched._batch_size), bool(batched._drop_remainder)
    specs = form.source.element_spec
    if not all(map(_copies, specs)) or sum(map(_bytes, specs)) > _SMALL:
        return _from_windows(form.source.window(size, drop_remainder=drop), specs, size, whole), [*form.stages]
    stages = [*form.stages]
    at_once = stages.pop(0) if stages[0].of_vectors is not None else None
    by_row = bool(stages) or calls.kind(batched) == "padded_batch"
    chosen = _from_batches(form.source.batch(size, drop_remainder=drop), size, whole, at_once, by_row)
    if by_row:
        return _unbatched(chosen), stages
    if whole is not None:
        chosen = chosen.flat_map(_pieces)
    return chosen, None


def most_rows(size: int) -> int:
    """The rows of a full batch that the rank has which has most of them."""
    return -(-size // world.current().size)


def _copies(spec: Any) -> bool:
    if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.variant, tf.resource):
        return False
    return bool(spec.shape.is_fully_defined())


def _bytes(spec: Any) -> int:
    return int(np.prod(spec.shape.as_list())) * spec.dtype.size


def _own(total: Any, size: int, whole: Any) -> tuple[Any, Any, Any]:
    """Of a batch of so many rows the first one of this rank, how many are taken, and the share."""
    ranks, most = world.current(), most_rows(size)
    low, high = ranks.rank * total // ranks.size, (ranks.rank + 1) * total // ranks.size
    begin = tf.minimum(low, total - 1)
    taken = tf.maximum(high - low, 1)
    count = tf.where(total < size, taken, most)
    pieces = tf.constant(0)
    if whole is not None:
        pieces = tf.where(whole.read_value(), -(-total // most), 0)
        count = tf.where(pieces > 0, pieces * most, count)
    return begin, count, tf.stack([pieces, taken, high - low, total, begin])


def _from_batches(batches: Any, size: int, whole: Any, at_once: deferred.Stage | None, by_row: bool) -> Any:
    """A share, or one for each row, and the rows.

    It is one map, as an iterator takes some milliseconds to make for each.

    Args:
        at_once: what is done with all rows of the rank; None for nothing.
        by_row: whether each row gets a share.
    """

    @tf.autograph.experimental.do_not_convert
    def rows(*batch: Any) -> Any:
        total = tf.shape(batch[0])[0]
        begin, count, share = _own(total, size, whole)
        if whole is None:
            own = [leaf[begin : begin + count] for leaf in batch]
        else:
            places = (begin + tf.range(count)) % total
            own = [tf.gather(leaf, places) for leaf in batch]
        if at_once is not None:
            place = at_once.first
            own = [*own[:place], *tf.nest.flatten(at_once.of_vectors(own[place])), *own[place + 1 :]]
        return (tf.tile(share[None], [tf.shape(own[0])[0], 1]) if by_row else share, *own)

    return batches.map(rows)


def _unbatched(batches: Any) -> Any:
    """The rows of batches of dense tensors: `unbatch` without the map that looks for sparse ones."""
    rows = tuple(tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in batches.element_spec)
    shapes, types = [spec.shape for spec in rows], [spec.dtype for spec in rows]
    variant = tf.raw_ops.UnbatchDataset(
        input_dataset=tf.data.experimental.to_variant(batches), output_types=types, output_shapes=shapes
    )
    result = tf.data.experimental.from_variant(variant, rows)
    result._inputs = lambda: [batches]
    return result


def _from_windows(windows: Any, specs: Any, size: int, whole: Any) -> Any:
    @tf.autograph.experimental.do_not_convert
    def elements(*window: Any) -> Any:
        total = tf.cast(window[0].cardinality(), tf.int32)
        begin, count, share = _own(total, size, whole)
        begin, every = tf.cast(begin, tf.int64), tf.data.Dataset.zip(window)
        own = every.skip(begin)
        if whole is not None:
            own = own.concatenate(every.take(begin)).repeat()
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(share).repeat(), own.take(tf.cast(count, tf.int64))))

    rows = windows.flat_map(elements)
    return deferred.restructured(rows, (SHARE, *specs), rows)


@tf.autograph.experimental.do_not_convert
def _pieces(share: Any, *rows: Any) -> Any:
    number = tf.maximum(share[0], 1)
    cut = []
    for leaf in rows:
        shape = tf.concat([[number, tf.shape(leaf)[0] // number], tf.shape(leaf)[1:]], 0)
        cut.append(tf.ensure_shape(tf.reshape(leaf, shape), [None, None, *leaf.shape[1:]]))
    return tf.data.Dataset.from_tensor_slices((tf.tile(share[None], [number, 1]), *cut))
