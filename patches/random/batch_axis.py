"""Where a size in a graph comes from: whether it counts rows of the batch, and how they lie along their axis.

The shape of a draw is followed back through the graph of the step: `tf.shape(x)[0]` of what comes of the batch counts
rows; `tf.shape(x)[1]` does not, unless `x` was transposed. What is joined (`tf.concat` of real and made-up images)
counts them one stretch after the other, what is reshaped ((rows * steps, features)) several for each row. What cannot
be followed is taken to count rows; when the step runs it must have as many as the step sees.

Relies on (TensorFlow 2.16 to 2.21, private): `tensorflow.python.framework.tensor_util.constant_value_as_shape`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import tensor_util as _tensor_util

_SAME = ("Cast", "Identity", "StopGradient", "Snapshot", "EnsureShape", "CheckNumerics", "PreventGradient")
#: What picks elements by their values, so that their number has nothing to do with rows.
_PICKS = ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "DynamicPartition", "NonMaxSuppressionV3", "ListDiff")

#: What sizes are computed with.
_ARITHMETIC = ("AddV2", "Cast", "FloorDiv", "Maximum", "Minimum", "Mul", "Squeeze", "StridedSlice", "Sub")


class Stretch(NamedTuple):
    """A part of an axis.

    Attributes:
        size: its length as a scalar tensor; None: that of the whole axis.
        rows: whether it runs over rows of the batch.
        several: whether it may have several elements for each row, one row's after another's.
    """

    size: Any = None
    rows: bool = True
    several: bool = False


_ROWS, _OTHER = (Stretch(),), (Stretch(rows=False),)


def static_shape(shape: Any) -> list[int | None] | None:
    """What is known of a shape while a step is traced; None where not even its length is."""
    known = _tensor_util.constant_value_as_shape(shape)
    if known.rank is None:
        return None
    sizes = known.as_list()
    if shape.op.type == "Pack":  # TensorFlow does not say what `tf.shape(x)[0]` is, not even if x has a fixed shape
        sizes = [_number(one) if size is None else size for size, one in zip(sizes, shape.op.inputs, strict=True)]
    return sizes


def _number(value: Any) -> int | None:
    """A scalar of a graph that is computed of constants alone; None for others."""
    found = _computed(value)
    return None if found is None else int(found)


def _computed(value: Any) -> Any | None:
    known = tf.get_static_value(value)
    op = value.op
    if known is not None or op.type not in _ARITHMETIC:
        return known
    inputs = [_computed(one) for one in op.inputs]
    if any(one is None for one in inputs):
        return None
    definition = op.op_def
    inferred = {name for one in definition.input_arg for name in (one.type_attr, one.number_attr, one.type_list_attr)}
    attributes = {one.name: op.get_attr(one.name) for one in definition.attr if one.name not in inferred}
    given = {argument.name: one for argument, one in zip(definition.input_arg, inputs, strict=True)}
    with tf.init_scope():
        return getattr(tf.raw_ops, op.type)(**given, **attributes).numpy()


def of_element(shape: Any, axis: int) -> tuple[Stretch, ...]:
    """What an element of a shape counts: the stretches of that axis, in their order.

    Args:
        shape: int vector in a graph. axis: the place of the element.
    """
    op = shape.op
    while op.type in _SAME:
        op = op.inputs[0].op
    if op.type == "Pack":
        return _of_scalar(op.inputs[axis])
    if op.type in ("Shape", "ShapeN"):
        inputs = list(op.inputs)
        source = inputs[0] if len(inputs) == 1 else inputs[list(op.outputs).index(op.outputs[shape.value_index])]
        return _of_axis(source, axis)
    if op.type == "ConcatV2":
        for piece in op.inputs[:-1]:
            length = piece.shape[0] if piece.shape.rank == 1 else None
            if length is None:
                break
            if axis < length:
                return of_element(piece, axis)
            axis -= length
        return _ROWS
    if op.type == "StridedSlice":
        begin, step = (tf.get_static_value(op.inputs[place]) for place in (1, 3))
        if begin is not None and step is not None and step[0] == 1 and begin[0] >= 0:
            first = 0 if op.get_attr("begin_mask") & 1 else int(begin[0])
            return of_element(op.inputs[0], first + axis)
    if op.type == "BroadcastArgs" and (length := shape.shape[0]) is not None:
        ends = [(one, axis - length + (one.shape[0] or 0)) for one in op.inputs]
        found = [of_element(one, place) for one, place in ends if place >= 0]
        return next((one for one in found if any(stretch.rows for stretch in one)), _OTHER)
    if op.type == "Const":
        return _OTHER
    return _ROWS


def _of_scalar(value: Any) -> tuple[Stretch, ...]:
    op = value.op
    while op.type in (*_SAME, "Squeeze", "Reshape", "ExpandDims"):
        op = op.inputs[0].op
    if op.type == "StridedSlice":
        begin = tf.get_static_value(op.inputs[1])
        if begin is not None and len(begin) == 1 and op.get_attr("shrink_axis_mask") & 1:
            vector, place = op.inputs[0], int(begin[0])
            if place < 0:
                place += vector.shape[0] or 0
            return of_element(vector, place) if place >= 0 else _ROWS
    if op.type in ("Mul", "Prod"):  # rows * steps
        if op.type == "Mul":
            factors = [_of_scalar(factor) for factor in op.inputs]
        elif (length := op.inputs[0].shape[0] if op.inputs[0].shape.rank == 1 else None) is not None:
            factors = [of_element(op.inputs[0], place) for place in range(length)]
        else:
            return _ROWS
        if any(stretch.rows for factor in factors for stretch in factor):
            return (Stretch(several=True),)
        return _OTHER
    if op.type in ("Maximum", "Minimum"):  # of one or more
        counted = [one for one in op.inputs if tf.get_static_value(one) is None]
        return _of_scalar(counted[0]) if len(counted) == 1 else _ROWS
    if op.type in ("FloorDiv", "RealDiv") and any(stretch.rows for stretch in _of_scalar(op.inputs[1])):
        return _OTHER  # how many there are for each row
    return _OTHER if op.type == "Const" else _ROWS


def _is_left_open(shape: Any, axis: int) -> bool:
    """Whether an element of a shape that is reshaped to is -1: all that the others leave; or cannot be seen."""
    op = shape.op
    while op.type in _SAME:
        op = op.inputs[0].op
    if op.type == "Pack":
        return bool(tf.get_static_value(op.inputs[axis]) == -1)
    if op.type == "ConcatV2" and op.inputs[0].shape.rank == 1 and (op.inputs[0].shape[0] or 0) > axis:
        return _is_left_open(op.inputs[0], axis)
    known = tf.get_static_value(shape)
    return op.type not in ("Shape", "ShapeN") and (known is None or known[axis] == -1)


def _of_axis(value: Any, axis: int) -> tuple[Stretch, ...]:
    """What an axis of a tensor runs over."""
    several, asked = False, axis
    while True:
        rank = value.shape.rank
        if rank is not None and value.shape[axis] is not None:
            return _OTHER
        op = value.op
        kind = op.type
        if kind in _PICKS:
            return _OTHER
        if kind == "ConcatV2" and (joined := _joined(op, rank, axis)) is not None:
            return tuple(stretch._replace(several=True) for stretch in joined) if several else joined
        if kind == "Placeholder":
            outer = _captured(value)
            if outer is None:
                break
            value = outer
        elif kind in ("Fill", "RandomUniform", "RandomStandardNormal"):
            found = of_element(op.inputs[0], axis)
            return tuple(stretch._replace(several=True) for stretch in found) if several else found
        elif kind == "Reshape":
            if axis:
                break
            if not _is_left_open(op.inputs[1], 0):
                found = of_element(op.inputs[1], 0)
                return tuple(stretch._replace(several=True) for stretch in found) if several else found
            several, value = True, op.inputs[0]
            if not value.shape.rank:
                break
            sizes = value.shape.as_list()
            axis = next((place for place, size in enumerate(sizes) if size != 1), 0)  # those before it add nothing
        elif kind == "Transpose":
            order = tf.get_static_value(op.inputs[1])
            if order is None:
                break
            value, axis = op.inputs[0], int(order[axis])
        elif kind == "ExpandDims":
            place = tf.get_static_value(op.inputs[1])
            if place is None or rank is None:
                break
            place = int(place) % rank
            value, axis = op.inputs[0], axis - (axis > place)
        elif kind == "StridedSlice":
            if axis or not (op.get_attr("begin_mask") & op.get_attr("end_mask") & 1):
                break
            value = op.inputs[0]
        elif kind in ("GatherV2", "ResourceGather"):
            value = op.inputs[1]
            if value.shape.rank is None or axis >= value.shape.rank:
                break
        else:
            following = _followed(op, rank, axis)
            if following is None:
                break
            value = following
    if axis and asked and not several:
        return _OTHER
    return (Stretch(several=several),)  # also of a first axis that was transposed before, as recurrent layers do it


def _joined(op: Any, rank: int | None, axis: int) -> tuple[Stretch, ...] | None:
    """The stretches of an axis along which tensors were joined; None where they were joined along another."""
    along = tf.get_static_value(op.inputs[-1])
    if along is None or rank is None or int(along) % rank != axis:
        return None
    found: list[Stretch] = []
    for piece in op.inputs[:-1]:
        stretches = _of_axis(piece, axis)
        if len(stretches) == 1:
            stretches = (stretches[0]._replace(size=tf.shape(piece)[axis]),)
        found += stretches
    return tuple(found)


def _captured(value: Any) -> Any | None:
    """What a function's argument stands for, where the function has captured it from around itself."""
    graph = value.graph
    for outer, inner in getattr(graph, "captures", ()):
        if inner is value:
            return outer if hasattr(outer, "op") and outer.shape.rank == value.shape.rank else None
    return None


def _followed(op: Any, rank: int | None, axis: int) -> Any | None:
    """The input of an op from which its result has an axis."""
    if rank is None:
        return None
    alike = [one for one in op.inputs if one.shape.rank == rank and one.shape[axis] is None]
    if alike:
        return alike[0]
    first = op.inputs[0] if len(op.inputs) else None
    if first is not None and axis == 0 and first.shape.rank and first.shape[0] is None and first.dtype != tf.resource:
        return first
    return None
