"""TensorFlow's counter-based generator, advanced to a part of a draw.

Philox makes a group of numbers from each value of a counter; the numbers of a tensor lie one group after the other, in
the order of the flat tensor, whatever its shape. So the part of a draw from element e on is a draw with a counter that
is e / (numbers in a group) further on; where e is not at the start of a group, the numbers before it are left out.
(Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011; the layout is that of TensorFlow's kernels.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf.patches.random import batch_axis
from matex_tf.patches.random.row_span import Rows


class Layout(NamedTuple):
    """How numbers lie.

    Attributes:
        group: how many numbers come of one step of the counter, or of a jump.
        jump: by how much the counter moves on for each group.
    """

    group: int
    jump: int


def plain(dtype: tf.DType) -> Layout:
    """The layout of draws that take the same number of random bits for each number: uniform ones, normal ones."""
    return Layout(2 if dtype.size == 8 else 4, 1)


def rejecting(dtype: tf.DType) -> Layout:
    """The layout of draws that may reject numbers (truncated normal ones): a reserve of 256 for each."""
    return Layout(*(2, 128) if dtype.size == 8 else (4, 256))


#: That of gamma draws, which reserve 256 steps of the counter for each number.
GAMMA = Layout(1, 256)


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
        return op(shape, _advanced(counter, groups * layout.jump))
    parts, before = [], tf.constant(0, tf.int64)
    for span in rows.spans:
        begin = (before + tf.cast(span.start, tf.int64)) * each
        count = tf.cast(span.size, tf.int64) * each
        left_out = begin % layout.group
        numbers = op((count + left_out)[None], _advanced(counter, begin // layout.group * layout.jump))
        parts.append(numbers[left_out:])
        before = before + tf.cast(span.whole, tf.int64)
    return tf.reshape(parts[0] if len(parts) == 1 else tf.concat(parts, 0), shape)


def _of_a_row(shape: Any) -> Any:
    """How many numbers there are for each entry of the first axis, as a number where it is known; else int64 scalar."""
    known = shape.numpy().tolist() if tf.executing_eagerly() else batch_axis.static_shape(shape)
    if known is not None and None not in known[1:]:
        return math.prod(known[1:])
    return tf.reduce_prod(tf.cast(shape[1:], tf.int64))


def _advanced(counter: Any, steps: Any) -> Any:
    """A counter moved on. Its low word, which a stateless draw begins with 0, never comes to its end."""
    low = tf.bitcast(counter, tf.int64) + tf.stack([steps, tf.zeros_like(steps)])
    return tf.bitcast(low, tf.uint64)
