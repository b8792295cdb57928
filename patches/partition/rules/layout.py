"""Ops that move elements and compute nothing: rows stay rows if they stay together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling, _size, rows_of, rule, same_rows


def is_part(op: Op, place: int = 0) -> bool:
    """Whether an input of `op`, by its `place`, is a part that stays one where its elements are moved: the result is
    not larger."""
    larger = _size(op.out_shapes[0]) > op.size(place)
    return op.labels[place].is_sum and not larger


def carry(op: Op, label: Label, before: Sequence[int | None], after: Sequence[int | None]) -> Label | None:
    """The label of rows after a reshape, which keeps the order of elements: outer blocks, rows, elements of a row.

    Args:
        op: the reshape. label: S, of what goes in.
        before, after: the shapes for the prime number of rows of what goes in and comes out.

    Returns:
        The label S of what comes out; None if its rows do not lie along one axis.
    """
    if any(size is None for size in [*before[: label.axis], *after]):
        return None
    outer = math.prod(before[: label.axis]) * label.blocks  # type: ignore[arg-type]
    done = 1
    for axis, size in enumerate(after):
        if op.counts(size) and outer % done == 0 and outer // done % op.shaped.prime:
            found = S(axis, outer // done)
            return found if op.is_rows(found, after) else None
        if op.counts(size) and outer % (done * size):  # type: ignore[operator]
            return None
        done *= size  # type: ignore[operator]
    return None


@rule("Reshape", "ExpandDims", "Squeeze")
def reshape(op: Op) -> Ruling | None:
    """The elements in the same order."""
    before, after, label = op.shapes[0], op.out_shapes[0], op.labels[0]
    if is_part(op):
        return Ruling([None] + [R] * (len(op.labels) - 1), [P])
    if label.kind != "S" or before is None or after is None:
        return None
    found = carry(op, label, before, after)
    if found is None:
        return _of_axes(op, label, before)

    def build(builder: Any, _: Any, values: list[Any]) -> list[Any]:
        return [tf.reshape(values[0], builder.local_shape(after, found))]  # a rank may have one row: it stays an axis

    return Ruling([None] + [R] * (len(op.labels) - 1), [found], build)


def _of_axes(op: Op, label: Label, before: Sequence[int | None]) -> Ruling | None:
    """One axis more, axes of one element less, or the first ones as one, if a size is not known."""
    after, rank = op.out_shapes[0], len(before)
    if op.type == "Reshape" and label == S(0) and after and after[0] is None and None not in after[1:]:
        merged = len(after) <= rank and after[1:] == before[rank - len(after) + 1 :]
        build = lambda builder, made, values: [tf.reshape(values[0], [-1, *after[1:]])]  # noqa: E731
        return Ruling([None, R], [S(0)], build) if merged and all(after[1:]) else None
    if op.type == "ExpandDims" and (place := op.constant(1)) is not None:
        axis = int(place.ravel()[0]) % (rank + 1)
        return Ruling([None, R], [S(label.axis + (axis <= label.axis), label.blocks)])
    axes = {axis % rank for axis in op.attribute("squeeze_dims")} if op.type == "Squeeze" else set()
    if not axes or label.axis in axes:
        return None
    return Ruling([None], [S(label.axis - sum(axis < label.axis for axis in axes), label.blocks)])


@rule("Shape", "ShapeN", "Size")
def shape(op: Op) -> Ruling | None:
    """The other axes of rows are as long on every rank as in the whole batch."""
    sizes = [
        None if label.kind != "S" or dims is None else op.per_row(dims[label.axis] or 0, label.blocks)
        for label, dims in zip(op.labels, op.shapes, strict=True)
    ]
    if not all(width or label.kind in "RP" for width, label in zip(sizes, op.labels, strict=True)):
        return None

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        given = []
        for value, label, width, output in zip(values, op.labels, sizes, made.outputs, strict=True):
            dims = tf.shape(value, output.dtype)
            if width:
                rows = tf.cast(builder.total * width * label.blocks, output.dtype)
                dims = tf.stack([rows if axis == label.axis else dims[axis] for axis in range(len(value.shape))])
            given.append(tf.reduce_prod(dims) if made.type == "Size" else dims)
        return given

    return Ruling([None] * len(op.labels), [R] * len(op.out_shapes), build)


@rule("Fill", "BroadcastTo")
def filled(op: Op) -> Ruling | None:
    """A value for each row of a batch whose shape is known: the rank makes its rows alone."""
    after, of_shape, of_value = op.out_shapes[0], *((0, 1) if op.type == "Fill" else (1, 0))
    dims = op.known(of_shape)
    if after is None or None in after or dims is None:
        return None
    value, shape = op.labels[of_value], op.shapes[of_value]
    if shape is None:
        return None
    label = S(value.axis + len(after) - len(shape), value.blocks) if value.kind == "S" else None
    if label is None:
        axes = [axis for axis, size in enumerate(after) if op.counts(size)]
        if not axes or dims.is_constant:
            return None
        label = S(axes[0])
    own = label.axis - (len(after) - len(shape))
    if not op.is_rows(label, after):
        return None
    if own >= 0 and shape[own] != 1:
        want = S(own, label.blocks)
        if not op.is_rows(want, shape):
            return None
    else:
        want = R
    found = label

    def build(builder: Any, _: Any, values: list[Any]) -> list[Any]:
        return [tf.broadcast_to(values[of_value], builder.local_shape(after, found))]

    wants = [R, R]
    wants[of_value] = want
    return Ruling(wants, [found], build)


@rule("Transpose")
def transpose(op: Op) -> Ruling | None:
    """By a permutation that is known."""
    label, order = op.labels[0], op.constant(1)
    if is_part(op):
        return Ruling([None, R], [P])
    if label.kind != "S" or order is None:
        return None
    return Ruling([None, R], [S(order.tolist().index(label.axis), label.blocks)])


@rule("Tile")
def tile(op: Op) -> Ruling | None:
    """Along the axis of rows, copies become blocks."""
    label, times, shape = op.labels[0], op.constant(1), op.shapes[0]
    if is_part(op):
        return Ruling([None, R], [P])
    if label.kind != "S" or times is None or shape is None or not times[label.axis]:
        return None
    return Ruling([None, R], [S(label.axis, label.blocks * int(times[label.axis]))])


@rule("Pad", "PadV2", "MirrorPad", "ReverseV2", "MirrorPadGrad", "Roll", "MatrixBandPart")
def other_axes(op: Op) -> Ruling | None:
    """Rows are left alone."""
    label, before, after = op.labels[0], op.shapes[0], op.out_shapes[0]
    if label.is_sum and is_part(op) and op.type in ("ReverseV2", "Roll"):
        return Ruling([None] + [R] * (len(op.labels) - 1), [P])
    if label.kind != "S" or before is None or after is None or before[label.axis] != after[label.axis]:
        return None
    if op.type == "MatrixBandPart" and label.axis >= len(before) - 2:
        return None
    if op.type in ("ReverseV2", "Roll"):
        axes = op.constant(1 if op.type == "ReverseV2" else 2)
        if axes is None or label.axis in [int(axis) % len(before) for axis in axes.ravel()]:
            return None
    return Ruling([None] + [R] * (len(op.labels) - 1), [label])


@rule("ConcatV2")
def concat(op: Op) -> Ruling | None:
    """Along another axis than that of the rows; along this, tensors of rows become blocks."""
    data, where = list(range(len(op.labels) - 1)), op.constant(len(op.labels) - 1)
    after = op.out_shapes[0]
    if where is None or after is None or any(op.shapes[place] is None for place in data):
        return None
    axis, label = int(where) % len(after), rows_of(op, data)
    if label is None:
        return _parts(op, data)
    if axis != label.axis:
        fits = all(op.is_rows(label, op.shapes[place]) for place in data)
        return same_rows(op, label, data, [label]) if fits else None
    widths, blocks = set(), 0
    wants: list[Label | None] = []
    for place in data:
        own = op.labels[place] if op.labels[place].kind == "S" else S(axis)
        if own.axis != axis or not op.is_rows(own, op.shapes[place]):
            return None
        widths.add(op.per_row(op.shapes[place][axis], own.blocks))  # type: ignore[index, arg-type]
        blocks += own.blocks
        wants.append(own)
    return Ruling([*wants, R], [S(axis, blocks)]) if len(widths) == 1 else None


def _parts(op: Op, data: Sequence[int]) -> Ruling | None:
    """Parts beside parts, and beside whole values."""
    if not any(op.labels[place].is_sum for place in data) or op.op.outputs[0].dtype.is_integer:
        return None
    if any(op.labels[place].kind != "R" and not op.labels[place].is_sum for place in data):
        return None
    return same_rows(op, P, data, [P] * len(op.out_shapes))


@rule("RaggedTensorToTensor")
def padded(op: Op) -> Ruling | None:
    """Rows that are padded to one length: each rank knows all of them, and takes its own."""
    if not op.is_rows(S(0), op.out_shapes[0]):
        return None

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        return [builder.rows_of(made.outputs[0], builder.same(made, values)[0], S(0))]

    return Ruling([R] * len(op.labels), [S(0)], build)


@rule("Pack")
def pack(op: Op) -> Ruling | None:
    """Along a new axis."""
    data = range(len(op.labels))
    after, label = op.out_shapes[0], rows_of(op, data)
    if after is None:
        return None
    if label is None:
        return _parts(op, data)
    if not all(op.is_rows(label, op.shapes[place]) for place in data):
        return None
    axis = op.attribute("axis") % len(after)
    return same_rows(op, label, data, [S(label.axis + (axis <= label.axis), label.blocks)])


@rule("Unpack")
def unpack(op: Op) -> Ruling | None:
    """Along another axis than that of the rows."""
    label, before = op.labels[0], op.shapes[0]
    if before is None:
        return None
    if label.is_sum:
        return Ruling([None], [P] * len(op.out_shapes))
    axis = op.attribute("axis") % len(before)
    if label.kind != "S" or axis == label.axis:
        return None
    return Ruling([None], [S(label.axis - (axis < label.axis), label.blocks)] * len(op.out_shapes))


@rule("Split", "SplitV")
def split(op: Op) -> Ruling | None:
    """Along another axis than that of the rows; along this, blocks become tensors of rows."""
    data, at = (1, 0) if op.type == "Split" else (0, 2)
    label, before, where = op.labels[data], op.shapes[data], op.constant(at)
    wants: list[Label | None] = [R] * len(op.labels)
    wants[data] = None
    if label.is_sum:
        return Ruling(wants, [P] * len(op.out_shapes))
    if label.kind != "S" or before is None or where is None:
        return None
    if int(where) % len(before) != label.axis:
        return Ruling(wants, [label] * len(op.out_shapes))
    count = len(op.out_shapes)
    if op.type == "SplitV" or label.blocks % count:
        return None
    return Ruling(wants, [S(label.axis, label.blocks // count)] * count)


@rule("DepthToSpace", "SpaceToDepth")
def spaces(op: Op) -> Ruling | None:
    """Of each row."""
    label = op.labels[0]
    return Ruling([None], [label]) if label.kind == "S" and label.axis == 0 else None


@rule("IdentityN")
def identity_n(op: Op) -> Ruling:
    """As they are."""
    return Ruling([None] * len(op.labels), list(op.labels), lambda builder, _, values: list(values))
