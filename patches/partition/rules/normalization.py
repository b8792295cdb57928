"""Batch normalization that TensorFlow has fused: mean and variance over the rows of all ranks.

In training an op is made of two, with an exchange between them: forward of a count, a sum and squares (Chan's way to
join variances, in float64), backward of the two sums that the gradient takes over the batch. With the moving statistics
each row is normalized by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling, rule


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def forward(op: Op) -> Ruling | None:
    """Of x, scale, offset, mean and variance to y, mean and variance, and two (or three) values for the gradient."""
    label = _rows(op, (0,))
    if label is None:
        return None
    build = _normalize(op) if op.attribute("is_training") else _inference
    return Ruling([label] + [R] * 4, [label] + [R] * (len(op.out_shapes) - 1), build)


@rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def backward(op: Op) -> Ruling | None:
    """Of dy, x, scale, mean and variance (and a third value) to gradients of x, scale and offset; two are empty."""
    label = _rows(op, (0, 1))
    if label is None:
        return None
    wants = [label, label] + [R] * (len(op.labels) - 2)
    if op.attribute("is_training"):
        return Ruling(wants, [label, R, R, R, R], _gradient(op))
    return Ruling(wants, [label, P, P, R, R], _inference_gradient)


def _rows(op: Op, places: Sequence[int]) -> Label | None:
    """The label of rows that these inputs can have."""
    labels = [op.labels[place] for place in places]
    if not any(label.kind == "S" for label in labels):
        return None
    label = next((label for label in labels if label.kind == "S" and label.axis == 0), S(0))
    return label if all(op.is_rows(label, op.shapes[place]) for place in places) else None


def _inference(builder: Any, op: Any, values: list[Any]) -> list[Any]:
    if builder.empty:  # of no rows the op gives no number
        x, mean, variance = values[0], *values[3:5]
        return [tf.zeros_like(x), mean, variance, mean, variance, *_nothing(mean, len(op.outputs) - 5)]
    return builder.same(op, values)


def _inference_gradient(builder: Any, op: Any, values: list[Any]) -> list[Any]:
    if builder.empty:
        x, scale = values[1:3]
        return [tf.zeros_like(x), tf.zeros_like(scale), tf.zeros_like(scale), *_nothing(scale, 2)]
    return builder.same(op, values)


def _nothing(like: Any, count: int) -> list[Any]:
    return [tf.zeros([0], like.dtype)] * count


class _Batch:
    """The elements of a tensor that are normalized together, over all ranks.

    Attributes:
        axes: those that are summed over.
        own, total: how many elements this rank and all ranks have for a channel, float64.
    """

    def __init__(self, builder: Any, x: Any, data_format: bytes, width: int):
        """Args: builder: of the step. x: `[rows, …]`, this rank's. data_format: of the op, such as b"NHWC". width: rows
        of x for each row of the batch."""
        self._channels = 1 if data_format.startswith(b"NC") else x.shape.rank - 1
        self._rank = x.shape.rank
        self.axes = [axis for axis in range(x.shape.rank) if axis != self._channels]
        shape = tf.shape(x, tf.int64)
        in_row = width * tf.reduce_prod(tf.gather(shape, self.axes[1:]))
        self.own, self.total = (
            tf.cast(tf.cast(rows, tf.int64) * in_row, tf.float64) for rows in (builder.rows, builder.total)
        )

    def spread(self, vector: Any) -> Any:
        """A value for each channel, with the axes of the tensor."""
        return tf.reshape(vector, [-1 if axis == self._channels else 1 for axis in range(self._rank)])


def _normalize(op: Op) -> Any:
    data_format, factor = op.attribute("data_format"), op.attribute("exponential_avg_factor")
    width = op.per_row(op.shapes[0][0])  # type: ignore[index, arg-type]

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        x, scale, offset, *before = values
        batch = _Batch(builder, x, data_format, width)  # type: ignore[arg-type]
        wide = tf.cast(x, scale.dtype)
        own = [tf.cast(one, tf.float64) for one in tf.nn.moments(wide, batch.axes)]
        sums = tf.math.multiply_no_nan(tf.stack([own[0], own[1] + tf.square(own[0])]), batch.own)
        (sums,) = builder.exchange.sum([sums], [made.outputs[0].name])
        mean, squares = tf.unstack(sums / batch.total, 2)
        variance = tf.maximum(squares - tf.square(mean), 0)
        kept = [mean, variance * batch.total / tf.maximum(batch.total - 1, 1)]  # that of a sample
        mean, variance, *kept = (tf.cast(one, scale.dtype) for one in (mean, variance, *kept))
        if factor != 1:
            kept = [(1 - factor) * one + factor * new for one, new in zip(before, kept, strict=True)]
        y = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance, epsilon=made.get_attr("epsilon"),
            data_format=data_format, is_training=False,
        ).y  # fmt: skip
        return [y, *kept, mean, variance, *_nothing(scale, len(made.outputs) - 5)]

    return build


def _gradient(op: Op) -> Any:
    data_format, epsilon = op.attribute("data_format"), op.attribute("epsilon")
    width = op.per_row(op.shapes[0][0])  # type: ignore[index, arg-type]

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        upstream, x, scale, mean, variance, *_ = values
        batch = _Batch(builder, x, data_format, width)  # type: ignore[arg-type]
        slope = tf.math.rsqrt(variance + epsilon)
        centred = tf.cast(x, scale.dtype) - batch.spread(mean)
        wide = tf.cast(upstream, scale.dtype)
        sums = tf.stack([tf.reduce_sum(wide, batch.axes), tf.reduce_sum(wide * centred, batch.axes)])
        (sums,) = builder.exchange.sum([sums], [made.outputs[0].name])
        of_offset, product = tf.unstack(sums, 2)
        count = tf.cast(batch.total, scale.dtype)
        constant, linear = of_offset / count, product / count * tf.square(slope)
        inner = wide - batch.spread(constant) - centred * batch.spread(linear)
        of_x = tf.cast(inner * batch.spread(scale * slope), x.dtype)
        return [of_x, product * slope, of_offset, *_nothing(scale, 2)]

    return build
