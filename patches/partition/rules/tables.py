"""Rows of tables that lie in parts, such as the weights of an embedding: each rank works on those that it has.

Every rank knows the indices of the whole batch. Where rows are looked up, it gives its own and zeros for the others,
and the sum over the ranks is what one rank looks up, to the bit. Where rows are added, each rank adds its own, in the
order of the batch. What travels is as large as the rows, not as the table, which no rank ever holds whole. A table with
fewer rows than a batch looks up is gathered instead.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import F, R
from matex_tf.patches.partition.rules import Op, Ruling, rule
from matex_tf.patches.partition.rules.indices import gather
from matex_tf.patches.partition.schedule import shape_of
from matex_tf.patches.partition.shapes.shaped import ROWS


@rule("ResourceGather", "GatherV2")
def look_up(op: Op) -> Ruling | None:
    """Rows of a table, by indices."""
    of_table: Any = shape_of(op.op.inputs[0]) if op.type == "ResourceGather" else op.shapes[0]
    indices = op.labels[1]
    if op.labels[0] != F or indices.kind not in "SR" or op.attribute("batch_dims"):
        return None
    if op.type == "GatherV2" and op.constant(2) != 0:
        return None
    if of_table and None not in of_table and _are_fewer(op, of_table[0]):
        by_rows = functools.partial(_looked_up, of_table=of_table, gives=indices)
        return Ruling([F] + [R] * (len(op.labels) - 1), [indices], by_rows, meets=True)
    if op.type == "GatherV2":
        return gather(op)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        handle, own = values
        mine = tf.raw_ops.ReadVariableOp(resource=handle, dtype=made.outputs[0].dtype)
        return [tf.gather(builder.joined(mine, of_table, made.name, [own]), own)]

    return Ruling([F, indices], [indices], build, meets=True)


def _are_fewer(op: Op, rows: int) -> bool:
    """Whether a batch looks up fewer rows than a table has; what is not known counts as few."""
    shape: Any = op.shapes[1]
    if shape is None or None in shape:
        return op.labels[1] == R
    return bool(math.prod([size // op.shaped.prime * ROWS if op.counts(size) else size for size in shape]) <= rows)


def _looked_up(builder: Any, made: Any, values: list[Any], of_table: Any, gives: Any) -> list[Any]:
    """Each row travels once."""
    table, indices = values[:2]
    if made.type == "ResourceGather":
        table = tf.raw_ops.ReadVariableOp(resource=table, dtype=made.outputs[0].dtype)
    once, places = tf.unique(tf.reshape(indices, [-1]))  # the same on every rank
    at, here, width, count = _mine(builder, of_table, once)
    mine = tf.zeros([tf.size(at), width], table.dtype)
    if count:
        rows = tf.gather(tf.reshape(table, [count, width]), tf.where(here, at, 0))
        mine = tf.where(here[:, None], rows, tf.zeros([], table.dtype))
    total = tf.reshape(builder.summed(mine, made.name), tf.concat([[-1], of_table[1:]], 0))
    places = tf.reshape(places, tf.shape(indices))
    return [tf.gather(total, places if gives == R else builder.rows_of(made.inputs[1], places, gives))]


def _mine(builder: Any, of_table: Any, indices: Any, drops: bool = False) -> tuple[Any, Any, int, int]:
    """Where indices are in this rank's part of a table, and which of them are; the width and the number of its rows.

    If a row lies on two ranks, these are its elements, of width 1.

    Args:
        drops: whether the op drops rows with negative indices.
    """
    size, width = math.prod(of_table), math.prod(of_table[1:])
    low, high = builder.exchange.span(size)
    at = tf.reshape(tf.cast(indices, tf.int64), [-1])
    inside = tf.reduce_all((at < of_table[0]) if drops else (at >= 0) & (at < of_table[0]))
    check = tf.debugging.Assert(inside, [f"an index is not in [0, {of_table[0]}):", indices])
    with tf.control_dependencies([check]):
        at = tf.identity(at)
    if low % width or high % width:
        at, width = tf.reshape(at[:, None] * width + tf.range(width, dtype=tf.int64), [-1]), 1
    at, count = at - low // width, (high - low) // width
    return at, (at >= 0) & (at < count), width, count


@rule("UnsortedSegmentSum")
def add_up(op: Op) -> Ruling | None:
    """A table of sums of rows, such as the gradient of a table: each rank its part of it."""
    after = op.out_shapes[0]
    if tuple(after or ()) not in op.shaped.in_parts or any(label != R for label in op.labels):
        return None

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        rows, indices = values[:2]
        at, here, width, count = _mine(builder, after, indices, drops=True)
        sums = tf.math.unsorted_segment_sum(tf.reshape(rows, [-1, width]), tf.where(here, at, -1), count)
        return [tf.reshape(sums, [-1])]

    return Ruling([R] * len(op.labels), [F], build)


@rule("ResourceScatterAdd", "ResourceScatterSub")
def add_to(op: Op) -> Ruling | None:
    """Rows that are added to a variable, one after the other."""
    of_table = shape_of(op.op.inputs[0])
    if op.labels[0] != F or not of_table or None in of_table:
        return None

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        handle, indices, rows = values
        at, here, width, _ = _mine(builder, of_table, indices)
        rows = tf.broadcast_to(rows, tf.concat([tf.shape(indices), of_table[1:]], 0))  # a scalar may be added to all
        rows = tf.boolean_mask(tf.reshape(rows, [-1, width]), here)
        at = tf.boolean_mask(at, here)[:, None] * width + tf.range(width, dtype=tf.int64)
        getattr(tf.raw_ops, made.type)(resource=handle, indices=at, updates=rows)
        return []

    return Ruling([F, R, R], [], build)
