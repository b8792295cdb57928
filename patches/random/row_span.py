"""Which part of a draw is this rank's: along which axis rows of the batch run, and where this rank's begin.

A draw of one rank has the rows of the whole batch; a rank draws its part of that. Sizes are tensors where the step is
traced, for they differ from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf.patches.common import batch_share, log_once
from matex_tf.patches.random import batch_axis


class Span(NamedTuple):
    """A stretch of an axis.

    Attributes:
        size: int32 scalar, what the step's own shape has of it.
        start: int32 scalar, where that begins in the stretch of the whole batch.
        whole: int32 scalar, the length of the stretch of the whole batch.
    """

    size: Any
    start: Any
    whole: Any


class Rows(NamedTuple):
    """How a draw lies in that of the whole batch: one after the other the spans of an axis.

    Attributes:
        axis: along which rows run.
        spans: mostly one; several where the step has joined tensors.
    """

    axis: int
    spans: tuple[Span, ...]

    @property
    def whole(self) -> Any:
        """int32 scalar, the length of the axis in the draw of the whole batch."""
        return sum((span.whole for span in self.spans[1:]), self.spans[0].whole)

    def whole_shape(self, shape: Any) -> Any:
        """The shape of the draw of the whole batch, for the shape of the step's own."""
        shape = tf.convert_to_tensor(shape)
        axis = self.axis
        return tf.concat([shape[:axis], tf.cast(self.whole, shape.dtype)[None], shape[axis + 1 :]], 0)

    def cut(self, drawn: Any) -> Any:
        """This rank's part of the draw of the whole batch."""
        parts, before = [], 0
        for span in self.spans:
            index = [slice(None)] * self.axis + [slice(before + span.start, before + span.start + span.size)]
            parts.append(drawn[tuple(index)])
            before = before + span.whole
        return parts[0] if len(parts) == 1 else tf.concat(parts, self.axis)

    def pad(self, values: Any) -> Any:
        """Parameters of a draw, one for each row, as if every rank's were there: ones in the place of the others'."""
        parts, taken = [], 0
        for span in self.spans:
            own = values[tuple([slice(None)] * self.axis + [slice(taken, taken + span.size)])]
            shape = tf.shape(own)
            for count in (span.start, None, span.whole - span.start - span.size):
                if count is None:
                    parts.append(own)
                else:
                    others = tf.concat([shape[: self.axis], tf.reshape(count, [1]), shape[self.axis + 1 :]], 0)
                    parts.append(tf.ones(others, values.dtype))
            taken = taken + span.size
        return tf.concat(parts, self.axis)


def of_shape(shape: Any) -> Rows | None:
    """How a draw of this shape lies in that of the whole batch; None where it is no draw by row, or outside of steps.

    Args:
        shape: of the step's own draw, as a tensor or as numbers.
    """
    part = batch_share.of_draws()
    if part is None:
        return None
    if tf.executing_eagerly():
        return _of_numbers(tf.convert_to_tensor(shape).numpy().tolist(), part)
    shape = tf.convert_to_tensor(shape)
    known = batch_axis.static_shape(shape)
    if known is not None and None not in known:
        return _of_numbers([size or 0 for size in known], part)
    for axis in [0] if known is None else [axis for axis, size in enumerate(known) if size is None]:
        stretches = batch_axis.of_element(shape, axis)
        if stretches and any(stretch.rows for stretch in stretches):
            return Rows(axis, tuple(_span(stretch, shape, axis, part) for stretch in stretches))
    return None


def of_values(values: Any) -> Rows | None:
    """How a draw with one number for each row of `values`, a tensor, lies in that of the batch; see `of_shape`."""
    if not values.shape.rank:
        return None
    rows = of_shape(tf.shape(values))
    return rows if rows is not None and rows.axis == 0 else None


def _of_numbers(shape: Sequence[int], part: batch_share.StepShare) -> Rows | None:
    """Of a shape that is known as numbers: rows are what there are as many of as the step sees."""
    seen = part.seen_rows()
    if not shape or seen is None:
        return None
    if shape[0] == seen:
        log_once.log(
            f"random numbers of shape {_words(shape)} count as one for each row of this rank, since the step has fixed "
            "shapes (docs/patched-steps.md)"
        )
        return Rows(0, (Span(part.taken, part.first, part.total),))
    if seen > 1 and shape[0] % seen == 0:
        log_once.log(
            f"random numbers of shape {_words(shape)} count as none of the {seen} rows of this rank, and are the same "
            "on every rank, since the step has fixed shapes (docs/patched-steps.md)"
        )
    return None


def _words(shape: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _span(stretch: batch_axis.Stretch, shape: Any, axis: int, part: batch_share.StepShare) -> Span:
    size = tf.cast(shape[axis], tf.int32) if stretch.size is None else tf.cast(stretch.size, tf.int32)
    if not stretch.rows:
        return Span(size, tf.constant(0), size)
    if not stretch.several:
        by_row = tf.equal(size, part.taken)
        return Span(size, tf.where(by_row, part.first, 0), tf.where(by_row, part.total, size))
    each = size // part.taken
    by_row = tf.equal(each * part.taken, size)
    return Span(size, tf.where(by_row, each * part.first, 0), tf.where(by_row, each * part.total, size))


def whole_and_cut(draw: Callable[[Any], Any], shape: Any, rows: Rows) -> Any:
    """This rank's part of a draw that is made for the whole batch.

    Args:
        draw: makes it, given the shape of the whole. shape: of this rank's part. rows: how that lies in the whole.
    """
    return rows.cut(draw(rows.whole_shape(shape)))
