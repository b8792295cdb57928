"""Reductions: over rows they give a part, over other axes rows stay rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import Label, P, R, S, part
from matex_tf.patches.partition.rules import Op, Ruling, rule

COMBINE = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "All": "all", "Any": "any"}

#: Of what several have reduced, each over some axes, the reduction over the other axes is that of all.
_REPEATED = ("max", "min", "any", "all")


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def reduce(op: Op) -> Ruling | None:
    """Over axes that are known."""
    label, shape, axes = op.labels[0], op.shapes[0], op.constant(1)
    if shape is None or axes is None:
        return None
    reduced = {int(axis) % len(shape) for axis in axes.ravel()} if shape else set()
    if label.is_sum and op.type in ("Sum", "Mean") and not op.op.inputs[0].dtype.is_integer:
        if op.type == "Mean" and any(op.counts(shape[axis]) for axis in reduced):
            return None
        return Ruling([None, R], [P])
    if label.kind == "P" and label.combine == COMBINE.get(op.type) and label.combine in _REPEATED:
        return Ruling([None, R], [label])
    if label.kind != "S":
        return None
    if label.axis not in reduced:
        return Ruling([None, R], [_kept(label, reduced, op.attribute("keep_dims"))])
    if op.type == "Mean":
        return _mean(op, shape, sorted(reduced))
    if op.type not in COMBINE:
        return None
    return Ruling([None, R], [part(COMBINE[op.type])])


def _kept(label: Label, reduced: set[int], keep: bool) -> Label:
    gone = 0 if keep else sum(axis < label.axis for axis in reduced)
    return S(label.axis - gone, label.blocks)


def _mean(op: Op, shape: list[int | None], reduced: list[int]) -> Ruling | None:
    """The sum of the rank's elements over the number of all ranks' elements: a part of the mean."""
    if op.op.inputs[0].dtype.is_integer:
        return None
    keep = op.attribute("keep_dims")

    def build(builder: Any, _: Any, values: list[Any]) -> list[Any]:
        x = values[0]
        wide = tf.float32 if x.dtype in (tf.float16, tf.bfloat16) else x.dtype
        total = tf.reduce_sum(tf.cast(x, wide), reduced, keepdims=keep)
        count = builder.count(shape, reduced, x)
        return [tf.cast(total / tf.cast(count, wide), x.dtype)]

    return Ruling([None, R], [P], build)


@rule("L2Loss", "BiasAddGrad")
def sum_of_rows(op: Op) -> Ruling | None:
    """Sums over rows."""
    label, shape = op.labels[0], op.shapes[0]
    if shape is None:
        return None
    if op.type == "BiasAddGrad":
        channels = len(shape) - 1 if op.attribute("data_format") == b"NHWC" else 1
        if label.is_sum:
            return Ruling([None], [P])
        if label.kind == "S" and label.axis != channels:
            return Ruling([None], [P])
        return None
    return Ruling([None], [P]) if label.kind == "S" else None


@rule("ArgMax", "ArgMin", "Cumsum", "Cumprod", "CumulativeLogsumexp")
def along(op: Op) -> Ruling | None:
    """Along one axis, which is not that of the rows."""
    label, shape, axis = op.labels[0], op.shapes[0], op.constant(1)
    if label.kind != "S" or shape is None or axis is None:
        return None
    along_axis = int(axis) % len(shape)
    if along_axis == label.axis:
        return None
    gone = int(op.type.startswith("Arg") and along_axis < label.axis)
    return Ruling([None, R], [S(label.axis - gone, label.blocks)])
