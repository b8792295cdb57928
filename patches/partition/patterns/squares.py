"""Sums of squares about a value that itself comes of an exchange, such as a variance: one exchange in place of two.

The sum of w (x - m)² over rows is s2 - 2 m s1 + m² s0, where s0, s1 and s2 are the sums of w, w x and w x². These need
no m, so they travel with what m is made of: a BatchNormalization has one exchange forward. They are float64. A rank
takes its own about its own mean (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
sample variances", 1979), so no digits are lost where the mean is large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from matex_tf.patches.partition.shapes.shaped import Shaped


@dataclasses.dataclass
class Statistic:
    """A sum over rows that no op of the step gives; it stands in a plan as a tensor does."""

    name: str
    shape: tf.TensorShape
    dtype: Any = tf.float64


@dataclasses.dataclass(frozen=True)
class Squares:
    """What an op of the step reduces.

    Attributes:
        x: what is squared; about: less this, which is the same along the axes.
        weight: what each square counts, numbers or booleans; None: all count alike.
        axes: over which it is summed up, in order.
    """

    x: Any
    about: Any
    weight: Any
    axes: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What the statistics depend on."""
        return id(self.x), id(self.weight), self.axes


def find(shaped: Shaped, ops: Iterable[Any], root: Callable[[Any], Any]) -> dict[Any, Squares]:
    """Sums and means of squares over rows, by op; and the means that they are about.

    Args:
        shaped: the step's graph. ops: those of it that outputs or effects depend on.
        root: gives the tensor that one is another name of.
    """
    found: dict[Any, Squares] = {}
    for op in ops:
        if op.type not in ("Sum", "Mean") or not op.outputs[0].dtype.is_floating:
            continue
        reduced = _squared(root(op.inputs[0]), root)
        axes = _axes(shaped, op)
        if reduced is None or not axes:
            continue
        squares = Squares(*reduced, axes)
        if not _fits(shaped, squares):
            continue
        found[op] = squares
        mean = squares.about.op
        of_x = mean.type == "Mean" and root(mean.inputs[0]) is squares.x and _axes(shaped, mean) == axes
        if of_x and squares.weight is None:
            found[mean] = squares
    return found


def _axes(shaped: Shaped, op: Any) -> tuple[int, ...]:
    """Over which an op reduces, if rows are among them."""
    known, shape = shaped.known.get(op.inputs[1]), shaped.shape(op.inputs[0])
    if known is None or not known.is_constant or not shape:
        return ()
    axes = tuple(sorted({int(axis) % len(shape) for axis in known.constant.ravel()}))
    return axes if any(shaped.counts(shape[axis]) for axis in axes) else ()


def _squared(tensor: Any, root: Callable[[Any], Any]) -> tuple[Any, Any, Any] | None:
    """`x`, what it is compared with, and the weight, of `weight * (x - about)²`."""
    op = tensor.op
    given = [root(one) for one in op.inputs]
    if op.type == "SquaredDifference":
        return given[0], given[1], None
    if op.type == "Square" or op.type == "Mul" and given[0] is given[1]:
        return _difference(given[0], root)
    if op.type == "Mul":
        for one, weight in (given, given[::-1]):
            if one.op.type in ("Square", "SquaredDifference"):
                found = _squared(one, root)
                return (*found[:2], weight) if found is not None and found[2] is None else None
    return None


def _difference(tensor: Any, root: Callable[[Any], Any]) -> tuple[Any, Any, Any] | None:
    op = tensor.op
    given = [root(one) for one in op.inputs]
    if op.type == "Sub":
        return given[0], given[1], None
    if op.type == "SelectV2" and given[1].op.type == "Sub" and _is_zero(given[2]):
        found = _difference(given[1], root)
        return None if found is None else (*found[:2], given[0])
    return None


def _is_zero(tensor: Any) -> bool:
    return tensor.op.type == "Const" and not tensor_util.MakeNdarray(tensor.op.get_attr("value")).any()


def _fits(shaped: Shaped, squares: Squares) -> bool:
    """Whether all shapes are known, and what it is about and the weight have the axes that they should."""
    shape, about = shaped.shape(squares.x), shaped.shape(squares.about)
    if not shape or None in shape or about is None or len(about) > len(shape):
        return False
    aligned = [*[1] * (len(shape) - len(about)), *about]
    if any(size != (1 if axis in squares.axes else shape[axis]) for axis, size in enumerate(aligned)):
        return False
    if squares.weight is None:
        return True
    weight = shaped.shape(squares.weight)
    pairs = zip(weight or (), shape, strict=False)
    return weight is not None and len(weight) == len(shape) and all(one in (1, size) for one, size in pairs)


def statistics(squares: Squares) -> list[Statistic]:
    """The sums that travel: s1, s2, and s0 where there are weights."""
    shape = tf.TensorShape([size for axis, size in enumerate(squares.x.shape) if axis not in squares.axes])
    count = 2 if squares.weight is None else 3
    return [Statistic(f"{squares.x.op.name}/sums_{place}:0", shape) for place in range(count)]


def local(squares: Squares) -> Callable[..., list[Any]]:
    """What a rank gives of them, from its rows."""
    axes = list(squares.axes)

    def build(builder: Any, _: Any, values: list[Any]) -> list[Any]:
        x, *weights = values
        x = tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x
        if not weights:
            center = tf.reduce_mean(x, axes, keepdims=True)
            away = x - center
            count = tf.cast(tf.size(x), tf.float64) / tf.maximum(tf.cast(tf.size(center), tf.float64), 1)
            one, two = tf.reduce_sum(away, axes), tf.reduce_sum(tf.square(away), axes)
        else:
            weight = tf.cast(weights[0], x.dtype)
            kept = tf.where(weights[0], x, 0) if weights[0].dtype == tf.bool else weight * x
            center = tf.math.divide_no_nan(
                tf.reduce_sum(kept, axes, keepdims=True),
                tf.reduce_sum(tf.broadcast_to(weight, tf.shape(x)), axes, keepdims=True),
            )
            away = x - center
            away = tf.where(weights[0], away, 0) if weights[0].dtype == tf.bool else away
            one, two = tf.reduce_sum(weight * away, axes), tf.reduce_sum(weight * tf.square(away), axes)
            count = tf.cast(tf.reduce_sum(tf.broadcast_to(weight, tf.shape(x)), axes), tf.float64)
        center, one, two = (tf.cast(value, tf.float64) for value in (tf.squeeze(center, axes), one, two))
        sums = [one + count * center, two + 2 * center * one + count * tf.square(center)]
        return [*sums, count] if weights else sums

    return build


def whole(op: Any, squares: Squares, shape: list[int | None]) -> Callable[..., list[Any]]:
    """What makes the value of an op: of the statistics, and of what the squares are about if it is not their mean.

    Args:
        op: the Sum or Mean of the step. squares: what it reduces. shape: of their `x`, for the prime number of rows.

    Returns:
        A `Ruling.build`. Its values are s1 for the mean itself; otherwise what the squares are about, and all
        statistics.
    """
    is_mean, kept = op.type == "Mean", op.get_attr("keep_dims")
    axes = list(squares.axes)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        total = tf.cast(builder.count(shape, axes), tf.float64)
        if len(values) == 1:  # the mean itself
            result = values[0] / total
        else:
            about, one, two, *counted = values
            about = tf.reshape(tf.cast(about, tf.float64), tf.shape(one))
            count = counted[0] if counted else total
            result = two - 2 * about * one + tf.square(about) * count
            if squares.weight is None or squares.weight.dtype == tf.bool:
                result = tf.maximum(result, 0)
            result = result / total if is_mean else result
        for axis in axes if kept else ():
            result = tf.expand_dims(result, axis)
        return [tf.cast(result, made.outputs[0].dtype)]

    return build
