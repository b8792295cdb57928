"""Slices: of other axes than that of the rows, or whole blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling, rule
from matex_tf.patches.partition.rules.layout import is_part
from matex_tf.patches.partition.shapes import sliced
from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.sliced import MASKS, Spec


@rule("StridedSlice")
def strided_slice(op: Op) -> Ruling | None:
    """All rows, or whole blocks of them, and any part of the other axes."""
    label, shape, begin, end, step = op.labels[0], op.shapes[0], op.known(1), op.known(2), op.constant(3)
    if is_part(op):
        return Ruling([None, R, R, R], [P])
    if label.kind != "S" or shape is None or shape[label.axis] is None:
        return None
    if begin is None or end is None or step is None:
        return None
    found = _rows(op, label, shape, begin, end, step)  # type: ignore[arg-type]
    if found is None or sliced.shape(op.op, op.op.outputs[0], op.shaped) is not None:
        return None
    gives, item, first, last = found

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        arguments = _arguments(builder, op, begin, end, step, item, first, last, made)
        return [tf.raw_ops.StridedSlice(input=values[0], **arguments)]

    return Ruling([None, R, R, R], [gives], build)


def _rows(
    op: Op, label: Label, shape: Sequence[int], begin: Affine, end: Affine, step: Any
) -> tuple[Label, int | None, int, int] | None:
    """The label of the result; which item is about rows; its bounds, in elements for each row."""
    spec = Spec(op.attribute, len(shape), len(step))
    axis = label.axis
    if axis not in spec.to:
        return None
    for item in spec.item.values():  # other axes have bounds that do not depend on the rows
        if item != spec.item.get(axis) and (begin.per_row[item] or end.per_row[item]):
            return None
    if axis not in spec.item:
        return S(spec.to[axis], label.blocks), None, 0, 0
    item, size = spec.item[axis], shape[axis]
    if step[item] != 1:
        return None
    bounds = spec.bounds(item, begin, end, size, op.shaped.prime)
    width = op.per_row(size, label.blocks)
    if width is None:
        return None
    block = width * op.shaped.prime
    if bounds[0] % block or bounds[1] % block or bounds[1] <= bounds[0]:
        return None
    gives = S(spec.to[axis], (bounds[1] - bounds[0]) // block)
    return gives, item, bounds[0] // op.shaped.prime, bounds[1] // op.shaped.prime


def _arguments(
    builder: Any, op: Op, begin: Affine, end: Affine, step: Any, item: int | None, first: int, last: int, made: Any
) -> dict[str, Any]:
    """The arguments of the local slice: bounds of the item about rows count the rank's rows."""
    dtype, masks = made.inputs[1].dtype, {name: op.attribute(name) for name in MASKS}
    bounds = []
    for mask, value, own in (("begin_mask", begin, first), ("end_mask", end, last)):
        given = [int(one) for one in value.constant]
        if item is None:
            bounds.append(tf.constant(given, dtype))
            continue
        masks[mask] &= ~(1 << item)
        at: list[Any] = list(given)
        at[item] = tf.cast(builder.rows, dtype) * own if own else 0
        bounds.append(tf.stack([tf.cast(one, dtype) for one in at]))
    return {"begin": bounds[0], "end": bounds[1], "strides": tf.constant(step, dtype), **masks}


@rule("StridedSliceGrad")
def strided_slice_grad(op: Op) -> Ruling | None:
    """A slice put into zeros, where the slice is of whole blocks of rows."""
    shape, begin, end, step = op.out_shapes[0], op.known(1), op.known(2), op.constant(3)
    label = op.labels[4]
    if label.is_sum and shape is not None and not any(op.counts(size) for size in shape):
        return Ruling([R, R, R, R, None], [P])
    if shape is None or None in shape or begin is None or end is None or step is None or op.known(0) is None:
        return None
    for axis in (axis for axis, size in enumerate(shape) if op.counts(size)):
        for blocks in _blocks(op, shape[axis]):
            found = _rows(op, S(axis, blocks), shape, begin, end, step)  # type: ignore[arg-type]
            if found is None or not op.is_rows(found[0], op.shapes[4]):
                continue
            if label.kind == "S" and label != found[0]:
                continue
            return _grad(op, S(axis, blocks), found, begin, end, step)
    return None


def _blocks(op: Op, size: int | None) -> list[int]:
    width = op.per_row(size or 0) or 1
    return [blocks for blocks in range(1, min(width, 8) + 1) if width % blocks == 0]


def _grad(
    op: Op, gives: Label, found: tuple[Label, int | None, int, int], begin: Affine, end: Affine, step: Any
) -> Ruling:
    own, item, first, last = found

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        arguments = _arguments(builder, op, begin, end, step, item, first, last, made)
        shape = tf.cast(builder.local_shape(op.out_shapes[0], gives), made.inputs[1].dtype)
        return [tf.raw_ops.StridedSliceGrad(shape=shape, dy=values[4], **arguments)]

    return Ruling([R, R, R, R, own], [gives], build)


@rule("Slice")
def slice_(op: Op) -> Ruling | None:
    """All rows, or whole blocks of them."""
    label, shape, begin, size = op.labels[0], op.shapes[0], op.known(1), op.known(2)
    if is_part(op):
        return Ruling([None, R, R], [P])
    if label.kind != "S" or shape is None or shape[label.axis] is None or begin is None or size is None:
        return None
    axis, prime = label.axis, op.shaped.prime
    others = [other for other in range(len(shape)) if other != axis]
    if begin.per_row[others].any() or size.per_row[others].any():
        return None
    first, count = int(begin.at(prime)[axis]), int(size.at(prime)[axis])
    count = shape[axis] - first if count < 0 else count  # type: ignore[operator]
    width = op.per_row(shape[axis], label.blocks)  # type: ignore[arg-type]
    block = (width or 0) * prime
    if not block or first % block or count % block or not count:
        return None
    gives = S(axis, count // block)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        at, sizes = list(begin.constant), list(size.constant)
        local = lambda elements: builder.rows * (elements // prime) if elements else tf.constant(0)  # noqa: E731
        firsts = tf.stack([local(first) if i == axis else tf.constant(int(one)) for i, one in enumerate(at)])
        counts = tf.stack([local(count) if i == axis else tf.constant(int(one)) for i, one in enumerate(sizes)])
        return [tf.slice(values[0], firsts, counts)]

    return Ruling([None, R, R], [gives], build)
