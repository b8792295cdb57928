"""Ops by indices: what is looked up is whole, and the rows are those of the indices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import P, R, S, part
from matex_tf.patches.partition.rules import Op, Ruling, rule


@rule("GatherV2", "Gather")
def gather(op: Op) -> Ruling | None:
    """Rows of indices, or rows of what they take elements of."""
    table, indices = op.labels[0], op.labels[1]
    shape, of_indices = op.shapes[0], op.shapes[1]
    where = op.constant(2) if op.type == "GatherV2" else 0
    batch = op.attribute("batch_dims") if op.type == "GatherV2" else 0
    if shape is None or of_indices is None or where is None:
        return None
    axis, rest = int(where) % len(shape), [R] * (len(op.labels) - 2)
    batch %= len(of_indices) + 1
    if batch:
        label = table if table.kind == "S" else indices
        if label.kind == "S" and label.axis < batch and op.is_rows(label, shape) and op.is_rows(label, of_indices):
            return Ruling([label, label, *rest], [label])
        return None
    if indices.kind == "S":
        return Ruling([R, None, *rest], [S(axis + indices.axis, indices.blocks)])
    if table.kind == "S" and table.axis != axis:
        moved = table.axis + (len(of_indices) - 1 if table.axis > axis else 0)
        return Ruling([None, R, *rest], [S(moved, table.blocks)])
    if table.is_sum and not any(op.counts(size) for size in shape):
        return Ruling([None, R, *rest], [P])
    return None


@rule("ResourceGather")
def resource_gather(op: Op) -> Ruling | None:
    """Rows of a variable."""
    label = op.labels[1]
    return Ruling([R, None], [label]) if label.kind == "S" and op.attribute("batch_dims") == 0 else None


@rule("GatherNd", "ResourceGatherNd")
def gather_nd(op: Op) -> Ruling | None:
    """Elements by several indices."""
    label, shape = op.labels[1], op.shapes[1]
    if label.kind != "S" or shape is None or label.axis == len(shape) - 1:
        return None
    return Ruling([R, None], [label])


@rule("UnsortedSegmentSum")
def segment_sum(op: Op) -> Ruling | None:
    """Sums of rows by their indices: a part, like any sum over rows."""
    label, after = op.labels[1], op.out_shapes[0]
    label = label if label.kind == "S" else op.labels[0]
    if label.kind != "S" or after is None or any(op.counts(size) for size in after):
        return None
    if not op.may_have(0, label) or not op.may_have(1, label):
        return None
    return Ruling([label, label, R], [P])


@rule("UnsortedSegmentSum")
def segments_of_rows(op: Op) -> Ruling | None:
    """Segments that each row has of its own, as in the gradient of a look-up with batch dimensions."""
    label, after = op.labels[0] if op.labels[0].kind == "S" else op.labels[1], op.out_shapes[0]
    if label != S(0) or any(not op.is_rows(label, shape) for shape in (op.shapes[0], op.shapes[1], after)):
        return None
    width = op.per_row(after[0])  # type: ignore[index, arg-type]
    if width is None or not _are_of_own_row(op, width):
        return None

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        rows, indices, _ = values
        first = tf.cast(builder.first, indices.dtype) * width
        return [tf.math.unsorted_segment_sum(rows, indices - first, builder.rows * width)]

    return Ruling([label, label, R], [label], build)


@rule(
    "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd",
    "SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd",
)  # fmt: skip
def segments_of_others(op: Op) -> Ruling | None:
    """Segments of another axis than the rows, such as the edges of a graph that all rows have."""
    label, ids = op.labels[0], op.shapes[1]
    if label.kind != "S" or op.labels[1].kind == "S" or ids is None or label.axis < len(ids):
        return None
    return Ruling([None] + [R] * (len(op.labels) - 1), [S(label.axis - len(ids) + 1, label.blocks)])


@rule("ScatterNd")
def scatter_nd(op: Op) -> Ruling | None:
    """Sums of rows by several indices."""
    label, after = op.labels[1] if op.labels[1].kind == "S" else op.labels[0], op.out_shapes[0]
    if label.kind != "S" or after is None or any(op.counts(size) for size in after):
        return None
    indices = op.shapes[0]
    if indices is None or label.axis >= len(indices) - 1:
        return None
    if not op.is_rows(label, indices) or not op.is_rows(label, op.shapes[1]):
        return None
    dtype = op.op.outputs[0].dtype
    if dtype.is_bool:  # an index that is there at all, as the optimizers of Keras ask
        return Ruling([label, label, R], [part("any")])
    return Ruling([label, label, R], [P]) if dtype.is_floating or dtype.is_integer or dtype.is_complex else None


@rule("LookupTableFindV2")
def find(op: Op) -> Ruling | None:
    """A table that is only read: each key by itself."""
    label = op.labels[1]
    if label.kind != "S" or (label != S(0) and op.out_shapes[0] is None):
        return None
    return Ruling([R, None, R], [label])


@rule("Bincount", "DenseBincount")
def bincount(op: Op) -> Ruling | None:
    """Counts of what is in rows: of each row along its own axis, or of all."""
    label, shape, after = op.labels[0], op.shapes[0], op.out_shapes[0]
    if label.kind != "S" or label.axis or shape is None or after is None:
        return None
    weights = op.shapes[2]
    weighted = weights is not None and len(weights) > 0 and weights != [0]
    if weights is None or weighted and not op.is_rows(label, weights):
        return None
    wants = [label, R, label if weighted else R]
    if len(after) == 2 and op.is_rows(label, after):
        return Ruling(wants, [label])
    is_sum = op.type == "Bincount" or not op.attribute("binary_output")
    return Ruling(wants, [P]) if is_sum else None


def _are_of_own_row(op: Op, width: int) -> bool:
    """Whether the indices of segments are those of a look-up with batch dimensions, row by row: `width` of each row."""
    shaped, given = op.shaped, op.op.inputs[1]
    each, most = 0, 0  # segments of an element of the rows, and the largest number beside that
    while (indices := _renamed(given)).op.type in ("Add", "AddV2"):  # what each batch dimension adds
        left, right = indices.op.inputs
        both = [(one, _per_row(op, one), other) for one, other in ((left, right), (right, left))]
        found = [(one, times, other) for one, times, other in both if times or one in shaped.known]
        if len(found) != 1:
            return False
        one, times, given = found[0]
        number = shaped.known.get(one)
        if times is not None and not each and times[0] * times[1] == width:
            each = times[1]
        elif number is not None and number.is_constant and number.constant.min(initial=0) >= 0:
            most += int(number.constant.max(initial=0))
        else:
            return False
    for reader in given.consumers() if each else ():
        if reader.type == "GatherV2" and reader.inputs[1] is given and reader.get_attr("batch_dims") > 0:
            shape, axis = shaped.shape(reader.inputs[0]), shaped.known.get(reader.inputs[2])
            size = None if shape is None or axis is None or not axis.is_constant else shape[int(axis.constant)]
            if size is not None and not op.counts(size) and size + most <= each:
                return True
    return False


def _per_row(op: Op, tensor: Any) -> tuple[int, int] | None:
    """Of a tensor that is 0, 1, 2, … along its rows times a number: how many there are for each row, and the number."""
    known, made = op.shaped.known, _renamed(tensor).op
    if made.type != "Mul" or op.shaped.rows_axes(tensor) != [0]:
        return None
    left, right = made.inputs
    for one, other in ((left, right), (right, left)):
        numbers, times = _renamed(one).op, known.get(other)
        if numbers.type != "Range" or times is None or not times.is_constant or times.constant.size != 1:
            continue
        start, limit, delta = (known.get(value) for value in numbers.inputs)
        if start is None or limit is None or delta is None or limit.constant.any():
            continue
        if start.is_constant and delta.is_constant and (int(start.constant), int(delta.constant)) == (0, 1):
            return int(limit.per_row), int(times.constant)
    return None


def _renamed(tensor: Any) -> Any:
    """What a tensor has the elements of, in this order."""
    while tensor.op.type in ("Reshape", "Identity", "Cast", "PlaceholderWithDefault"):
        tensor = tensor.op.inputs[0]
    return tensor
