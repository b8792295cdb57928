"""Integers of a step that follow from shapes: they are made again for any number of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from matex_tf.patches.partition.patterns import fixed_rows
from matex_tf.patches.partition.shapes import affine
from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.shaped import Shaped


def known(op: Any, inputs: Sequence[Any], new: Shaped) -> list[Affine] | None:
    """The integers that an op gives, one value for each output; None if they do not follow from shapes.

    Args:
        op: of the traced step. inputs: what it reads, tensors of the new graph. new: the graph that is made.
    """
    if op.type in ("Shape", "ShapeN", "Size"):
        found = [_dimensions(tensor, new) for tensor in inputs]
        if any(value is None for value in found):
            return None
        if op.type == "Size":
            count = affine.product(found[0])  # type: ignore[arg-type]
            return None if count is None else [count]
        return found  # type: ignore[return-value]
    if op.type == "Rank" and inputs[0].shape.rank is not None:
        return [Affine.of(inputs[0].shape.rank)]
    if op.type == "Const":
        dtype, size = op.outputs[0].dtype, op.outputs[0].shape.num_elements()
        if (dtype.is_integer or dtype == tf.bool) and size is not None and size <= 64:
            value = tensor_util.MakeNdarray(op.get_attr("value"))
            return [fixed_rows.sizes(op, value, new.fixed) if new.fixed else Affine.of(value)]
        return None
    if not op.outputs or not all(tensor.dtype.is_integer or tensor.dtype == tf.bool for tensor in op.outputs):
        return None
    if op.type == "StridedSlice" and inputs[0] not in new.known:
        return _rows_of_shape(op, inputs, new)
    given = [new.known.get(tensor) for tensor in inputs]
    folded = affine.fold(op, given)
    if folded is not None or not new.fixed or op.type not in ("Slice", "Reshape"):
        return folded
    values = [value for value in given if value is not None]
    if len(values) < len(given) or not values[0].is_constant:
        return None
    as_traced: list[Affine | None] = [Affine.of(value.at(new.fixed)) for value in values]
    return affine.fold(op, as_traced)  # what is cut out of numbers counts no rows


def _rows_of_shape(op: Any, inputs: Sequence[Any], new: Shaped) -> list[Affine] | None:
    """The number of rows that a slice takes out of a shape of which other numbers are not known: one of `Shape`, or the
    number of strings that were split into words."""
    sized, begin = new.sized(inputs[0]), new.known.get(inputs[1])
    sizes = None if sized is None else new.shape(sized)
    if sizes is None or op.outputs[0].shape.rank != 0 or begin is None or not begin.is_constant:
        return None
    place, count = int(begin.constant[0]), inputs[0].shape[0]
    place += count if place < 0 else 0
    if not 0 <= place < len(sizes) or not new.counts(size := sizes[place]):
        return None
    return [Affine(np.asarray(size // new.prime, np.int64), np.zeros((), np.int64))]  # type: ignore[operator]


def reshaped(inputs: Sequence[Any], new: Shaped) -> Any:
    """The shape that a `Reshape` of a step for a fixed number of rows asks for: which of its numbers counts rows, the
    elements say that it is given, where several may.

    Args:
        inputs: what the op reads, tensors of the new graph. new: the graph that is made.

    Returns:
        A tensor of that graph, integers `[dimensions]`; the one that it reads if nothing is known.
    """
    before, asked = new.shape(inputs[0]), new.known.get(inputs[1])
    if before is None or None in before or asked is None or asked.constant.ndim != 1:
        return inputs[1]
    sizes: list[int] = list(before)  # type: ignore[arg-type]
    numbers = asked.at(new.fixed).tolist()
    outer = math.prod(sizes[: next((axis for axis, size in enumerate(sizes) if new.counts(size)), 0)])
    places = [place for place, number in enumerate(numbers) if number and number % new.fixed == 0]
    # Rows after as many elements as before, then the number itself, then multiples of it.
    places.sort(key=lambda place: (math.prod(numbers[:place]) != outer, numbers[place] != new.fixed))
    for place in [None, *places]:
        per_row = np.asarray([number // new.fixed if p == place else 0 for p, number in enumerate(numbers)], np.int64)
        found = Affine(per_row, np.where(per_row > 0, 0, np.asarray(numbers, np.int64)))
        if math.prod(found.at(new.prime).tolist()) == math.prod(sizes):
            return made(found, inputs[1].dtype, new)
    return inputs[1]


def rows_of_ragged(made: Any, new: Shaped) -> int | None:
    """How many rows `RaggedTensorToTensor` gives, for the prime number of rows; None if that is not known.

    Args:
        made: the op. new: the graph that it is in.
    """
    first = new.known.get(made.inputs[3])
    return int(first.at(new.prime)) if made.get_attr("row_partition_types")[0] == b"FIRST_DIM_SIZE" and first else None


def _dimensions(tensor: Any, new: Shaped) -> Affine | None:
    """The shape of a tensor; None if a dimension depends on the rows and is no multiple of them."""
    sizes = new.shape(tensor)
    if sizes is None or None in sizes:
        return None
    per_row = [size // new.prime if new.counts(size) else 0 for size in sizes]  # type: ignore[operator]
    constant = [0 if new.counts(size) else size for size in sizes]
    return Affine(np.asarray(per_row, np.int64), np.asarray(constant, np.int64))


def filled(shape: Affine, value: Any, op: Any, new: Shaped) -> tuple[list[Any], list[Any]]:
    """A constant of one value, as many times as there are rows: its tensor, and the op of that.

    Args:
        shape: `[dimensions]`. value: a scalar. op: the constant of the traced step. new: the graph that is made.
    """
    dims, given = made(shape, tf.int32, new), tf.constant(value, op.outputs[0].dtype)
    rows = tf.fill(dims, given)
    for one in (given.op, rows.op):
        new.attributes[one] = dict(one.node_def.attr)
        new.ops.append(one)
    return [rows], [rows.op]


def by_row(op: Any, new: Shaped) -> tuple[list[Any], list[Any]]:
    """The rows of a constant, one for each row of the batch: its tensor, and the op of that.

    Args:
        op: the constant of the traced step. new: the graph that is made.
    """
    count = made(Affine(np.ones((), np.int64), np.zeros((), np.int64)), tf.int32, new)
    with tf.name_scope(f"{op.name}/"):
        value = tf.constant(tensor_util.MakeNdarray(op.get_attr("value")), op.outputs[0].dtype)
        rows = tf.gather(value, tf.range(count))
    todo, found = [rows.op], list[Any]()
    while todo:
        one = todo.pop()
        if one not in new.attributes:
            new.attributes[one] = dict(one.node_def.attr)
            found.append(one)
            todo += [tensor.op for tensor in one.inputs]
    new.ops += reversed(found)
    return [rows], [rows.op]


def made(value: Affine, dtype: Any, new: Shaped) -> Any:
    """The integers `value`, for the prime number of rows, as a constant of this `dtype` in the graph `new`: one for all
    that are equal."""
    key = value.key, dtype
    if key not in new.integers:
        with new.graph.control_dependencies(None):
            tensor = new.integers[key] = tf.constant(value.at(new.prime), dtype)
        new.known[tensor] = value
        new.attributes[tensor.op] = dict(tensor.op.node_def.attr)
        new.ops.append(tensor.op)
    return new.integers[key]


def fits(value: Affine, prime: int, op: Any) -> bool:
    """Whether the integers `value` for `prime` rows fit the dtype that `op` gives."""
    return bool((np.abs(value.at(prime)) <= op.outputs[0].dtype.max).all())
