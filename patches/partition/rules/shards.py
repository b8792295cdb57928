"""Variables that lie in parts on the ranks, and what is computed of them element by element: each rank its part.

A slot is read as F, an update that is elementwise stays F, and is gathered where it changes a weight. A sum over the
ranks (a gradient) becomes F by a reduce-scatter where something elementwise, and not linear, is computed of it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import F, Label, P, R, part
from matex_tf.patches.partition.rules import Op, Ruling, rule
from matex_tf.patches.partition.rules.elementwise import ELEMENTWISE, broadcast

_REDUCTIONS = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "All": "all", "Any": "any"}


def _has_part(op: Op, shape: list[int | None] | None) -> bool:
    """Whether a value of a shape is a part already, or a sum over the ranks that can become one."""
    if not shape or None in shape or any(map(op.counts, shape)):
        return False
    sums = tuple(shape) in op.shaped.in_parts
    alike = [label for label, own in zip(op.labels, op.shapes, strict=True) if own == shape]
    return F in alike or (sums and any(label.is_sum for label in alike))


@rule(*ELEMENTWISE)
def elementwise(op: Op) -> Ruling | None:
    """Of values of one shape, and of scalars."""
    after = op.out_shapes[0]
    if not op.shaped.in_parts and F not in op.labels:
        return None
    if not _has_part(op, after) or any(label.kind in "SL" for label in op.labels):
        return None
    if any(shape is None or (shape != after and not _is_scalar(shape)) for shape in op.shapes):
        return None
    if F not in op.labels and (linear := broadcast(op)) is not None:
        return linear
    alike = [shape == after for shape in op.shapes]

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        given = [value if same else tf.reshape(value, []) for value, same in zip(values, alike, strict=True)]
        return given if op.type == "EnsureShape" else builder.same(made, given)

    return Ruling([F if same else R for same in alike], [F], build)


def _is_scalar(shape: list[int | None]) -> bool:
    return all(size == 1 for size in shape)


@rule("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
def assign(op: Op) -> Ruling | None:
    """To each rank's part: a copy, if it is a piece of a whole value, whose memory it would keep."""
    if op.labels[0] != F:
        return None

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        handle, value = values
        if made.type == "AssignVariableOp" and builder.plan.labels[builder.plan.root(made.inputs[1])] != F:
            value = tf.raw_ops.DeepCopy(x=value)
        return builder.same(made, [handle, value])

    return Ruling([F, F], [], build)


@rule("Reshape", "ExpandDims", "Squeeze")
def reshape(op: Op) -> Ruling | None:
    """The elements in the same order."""
    if op.labels[0] != F or op.out_shapes[0] is None or None in op.out_shapes[0]:
        return None
    return Ruling([F] + [R] * (len(op.labels) - 1), [F], lambda builder, _, values: values[:1])


@rule(*_REDUCTIONS, "Mean", "L2Loss")
def reduce(op: Op) -> Ruling | None:
    """Over all axes, or all but the first: each rank of its part, and then over the ranks."""
    shape = op.shapes[0]
    if op.labels[0] != F or shape is None:
        return None
    if op.type == "L2Loss":
        return Ruling([F], [P])
    axes = op.constant(1)
    over = None if axes is None else {int(axis) % len(shape) for axis in axes.ravel()}
    if over == {*range(1, len(shape))} and op.type in ("Sum", "Any"):
        return Ruling([F, R], [part(_REDUCTIONS[op.type])], _of_each)
    if over != {*range(len(shape))}:
        return None
    gives: Label = P if op.type == "Mean" else part(_REDUCTIONS[op.type])
    rank, count = len(op.out_shapes[0] or ()), 1
    for size in shape:
        count *= size or 0

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        kind = "Sum" if op.type == "Mean" else op.type
        total = getattr(tf.raw_ops, kind)(input=values[0], axis=[0])
        if op.type == "Mean":
            total /= tf.cast(count, total.dtype)
        return [tf.reshape(total, [1] * rank)]

    return Ruling([F, R], [gives], build)


def _of_each(builder: Any, made: Any, values: list[Any]) -> list[Any]:
    """Of what each index of the first axis has; 0 where that is on other ranks."""
    shape = made.inputs[0].shape
    size, width = shape.num_elements(), shape[1:].num_elements()
    low, high = builder.exchange.span(size)
    first, last = low // width, -(-high // width)
    rows = tf.reshape(tf.pad(values[0], [[low - first * width, last * width - high]]), [last - first, width])
    mine = getattr(tf.raw_ops, made.type)(input=rows, axis=[1])
    return [tf.reshape(tf.pad(mine, [[first, shape[0] - last]]), made.outputs[0].shape)]
