"""Rows of tables that lie in parts, such as the weights of an embedding: each rank works on those that it has.

A rank asks the ranks that have them for the rows that its own rows of the batch name, each once. Where all ranks look
up the same ones, each gives its own and zeros for the others, and the sum is what one rank looks up, to the bit. Rows
that are added go to the ranks that have the table's (`Builder._to_owners`), which add them in the order of the batch.
What travels is as large as the different rows, not as the table, which no rank ever holds whole. A table with fewer
rows than a batch looks up is gathered instead.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition import shards
from matex_tf.patches.partition.labels import F, R
from matex_tf.patches.partition.rules import Op, Ruling, rule
from matex_tf.patches.partition.rules.indices import gather
from matex_tf.patches.partition.shapes.shaped import ROWS, shape_of


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
        how = _of_owners if indices != R else _of_this_rank if op.op in op.shaped.local else _of_all
        by_rows = functools.partial(how, of_table=of_table)
        return Ruling([F, indices] + [R] * (len(op.labels) - 2), [indices], by_rows, meets=how is not _of_this_rank)
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


def _of_owners(builder: Any, made: Any, values: list[Any], of_table: Any) -> list[Any]:
    """Of a batch: each different index of the rank's rows travels once, and back comes what it names."""
    once, places = tf.unique(tf.reshape(values[1], [-1]))
    to, counts = shards.to_owners(once, of_table, builder.exchange.ends(math.prod(of_table)))
    named, of_each = builder.sent(tf.gather(once, to), counts, made.name)
    given, _ = builder.sent(rows_of(builder, _read(made, values[0]), of_table, named), of_each, made.name)
    whole = tf.math.unsorted_segment_sum(given, to, tf.size(once))  # elements of a row may lie on several ranks
    return [tf.gather(whole, tf.reshape(places, tf.shape(values[1])))]


def _of_all(builder: Any, made: Any, values: list[Any], of_table: Any) -> list[Any]:
    """By indices that are the same on every rank: each row travels once."""
    once, places = tf.unique(tf.reshape(values[1], [-1]))
    whole = builder.summed(rows_of(builder, _read(made, values[0]), of_table, once), made.name)
    return [tf.gather(whole, tf.reshape(places, tf.shape(values[1])))]


def _of_this_rank(builder: Any, made: Any, values: list[Any], of_table: Any) -> list[Any]:
    """By indices that name rows of this rank, or of which no other row matters."""
    return [rows_of(builder, _read(made, values[0]), of_table, values[1])]


def _read(made: Any, table: Any) -> Any:
    """The rank's part of the table that an op looks up."""
    if made.type != "ResourceGather":
        return table
    return tf.raw_ops.ReadVariableOp(resource=table, dtype=made.outputs[0].dtype)


def rows_of(builder: Any, table: Any, of_table: Any, indices: Any) -> Any:
    """Rows of a table, with zeros for what other ranks have of them: `[count, …]`.

    Args:
        builder: see `build.Builder`. table: this rank's part. of_table: the shape of the whole. indices: `[count]`.
    """
    at, here, width, count = _mine(builder, of_table, indices)
    mine = tf.zeros([tf.size(at), width], table.dtype)
    if count:
        rows = tf.gather(tf.reshape(table, [count, width]), tf.where(here, at, 0))
        mine = tf.where(here[:, None], rows, tf.zeros([], table.dtype))
    return tf.reshape(mine, tf.concat([tf.shape(indices), of_table[1:]], 0))


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
