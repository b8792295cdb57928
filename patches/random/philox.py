"""A part of a draw of the whole batch, by TensorFlow's counter-based generator (`patches.partition.philox`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.philox import GAMMA, Layout, advanced, plain, rejecting, stretch
from matex_tf.patches.random import batch_axis
from matex_tf.patches.random.row_span import Rows

__all__ = ["GAMMA", "Layout", "draw", "plain", "rejecting"]


def draw(op: Callable[[Any, Any], Any], shape: Any, counter: Any, layout: Layout, rows: Rows) -> Any:
    """This rank's part of a draw of the whole batch.

    Args:
        op: draws, given a shape and a counter.
        shape: of the part.
        counter: uint64 (2,), of the whole draw.
        layout: of the numbers.
        rows: along axis 0.
    """
    shape = tf.convert_to_tensor(shape)
    each = _of_a_row(shape)
    if len(rows.spans) == 1 and (layout.group == 1 or (isinstance(each, int) and each % layout.group == 0)):
        groups = tf.cast(rows.spans[0].start, tf.int64) * (each // layout.group)
        return op(shape, advanced(counter, groups * layout.jump))
    parts, before = [], tf.constant(0, tf.int64)
    for span in rows.spans:
        begin = (before + tf.cast(span.start, tf.int64)) * each
        parts.append(stretch(op, begin, tf.cast(span.size, tf.int64) * each, counter, layout))
        before = before + tf.cast(span.whole, tf.int64)
    return tf.reshape(parts[0] if len(parts) == 1 else tf.concat(parts, 0), shape)


def _of_a_row(shape: Any) -> Any:
    """How many numbers there are for each entry of the first axis, as a number where it is known; else int64 scalar."""
    known = shape.numpy().tolist() if tf.executing_eagerly() else batch_axis.static_shape(shape)
    if known is not None and None not in known[1:]:
        return math.prod(known[1:])
    return tf.reduce_prod(tf.cast(shape[1:], tf.int64))
