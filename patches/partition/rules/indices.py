"""Ops by indices: what is looked up is whole, and the rows are those of the indices."""

from __future__ import annotations

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
    if not op.is_rows(label, op.shapes[0]) or not op.is_rows(label, op.shapes[1]):
        return None
    return Ruling([label, label, R], [P])


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
    if op.type == "DenseBincount" and op.attribute("binary_output"):
        return None
    weights = op.shapes[2]
    weighted = weights is not None and len(weights) > 0 and weights != [0]
    if weights is None or weighted and not op.is_rows(label, weights):
        return None
    wants = [label, R, label if weighted else R]
    if len(after) == 2 and op.is_rows(label, after):
        return Ruling(wants, [label])
    return Ruling(wants, [P])
