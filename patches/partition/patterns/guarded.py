"""Rows that are divided by rows of a table, with a look at the whole table before: a branch for zeros and NaN in it.

Keras divides a sparse gradient so, as Adagrad and RMSprop do. Where the divisor has a zero or a NaN, the result has the
indices of these rows too. What Keras does then is right only if no index occurs twice, so the division is made anew: it
is linear in the values, and each rank needs no other rows of the table than its own.

Relies on (Keras 3.3 to 3.15): the branch of `elementwise_division`; one that looks otherwise is left as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from matex_tf.patches.partition.labels import F, Label, R
from matex_tf.patches.partition.rules import Ruling
from matex_tf.patches.partition.rules.tables import rows_of
from matex_tf.patches.partition.shapes.shaped import Shaped

_BRANCHES = ("If", "StatelessIf")
_NAMES = ("Identity", "Cast")


@dataclasses.dataclass(frozen=True)
class Division:
    """What such a branch reads and gives.

    Attributes:
        indices, values, divisor: the places of these among the inputs of the op.
        gives_indices, gives_values: of its outputs.
    """

    indices: int
    values: int
    divisor: int
    gives_indices: int
    gives_values: int

    def of(self, op: Any) -> Any:
        """By what the op divides."""
        return op.inputs[self.divisor]

    def outputs(self, op: Any) -> list[Any]:
        """Its indices and values; what else the op has is not made."""
        return [op.outputs[self.gives_indices], op.outputs[self.gives_values]]


def find(shaped: Shaped, ops: Iterable[Any], root: Callable[[Any], Any]) -> dict[Any, Division]:
    """Such branches, by op.

    Args:
        shaped: the step's graph. ops: those of it that outputs or effects depend on.
        root: gives the tensor that one is another name of.
    """
    found: dict[Any, Division] = {}
    branches = [op for op in ops if op.type in _BRANCHES]
    read = {id(root(tensor)) for op in ops for tensor in op.inputs} | {id(root(tensor)) for tensor in shaped.outputs}
    for op in branches:
        for division in filter(None, map(_division, shaped.bodies[op])):
            others = [one for one in op.outputs if all(one is not made for made in division.outputs(op))]
            is_all = not read.intersection(map(id, others))
            if is_all and _looks_at(root(op.inputs[0]), root(division.of(op)), root):
                found[op] = division
    return found


def _division(body: Shaped) -> Division | None:
    """What a branch divides, if it does nothing else."""
    places = {id(tensor): 1 + place for place, tensor in enumerate(body.inputs)}
    outputs = list(map(_named, body.outputs))
    for gives_values, given in enumerate(outputs):
        if given.op.type != "RealDiv":
            continue
        values, rows = map(_named, given.op.inputs)
        if rows.op.type != "GatherV2" or rows.op.get_attr("batch_dims") or not _is_zero(rows.op.inputs[2]):
            continue
        divisor, indices = map(_named, rows.op.inputs[:2])
        at, of, by = (places.get(id(tensor), 0) for tensor in (indices, values, divisor))
        same = [place for place, tensor in enumerate(outputs) if tensor is indices]
        if at and of and by and len(same) == 1:
            return Division(at, of, by, same[0], gives_values)
    return None


def _named(tensor: Any) -> Any:
    while tensor.op.type in _NAMES and (tensor.op.type == "Identity" or tensor.dtype.is_integer):
        tensor = tensor.op.inputs[0]
    return tensor


def _is_zero(tensor: Any) -> bool:
    return tensor.op.type == "Const" and not tensor_util.MakeNdarray(tensor.op.get_attr("value")).any()


def _looks_at(test: Any, divisor: Any, root: Callable[[Any], Any]) -> bool:
    """Whether a test is true only if a divisor has a zero or a NaN."""
    op = test.op
    given = [root(one) for one in op.inputs]
    if op.type == "Any":
        return _looks_at(given[0], divisor, root)
    if op.type == "LogicalOr":
        return all(_looks_at(one, divisor, root) for one in given)
    if op.type == "Equal":
        return given[0] is divisor and _is_zero(given[1])
    return op.type == "IsNan" and given[0] is divisor


def ruling(op: Any, by: Division, labels: Sequence[Label], is_local: bool) -> Ruling:
    """How a rank divides sums by index.

    Args:
        op: the branch. by: what it divides. labels: of its inputs; F for a table of which each rank has a part.
        is_local: whether these are the sums for the rows of this rank, and not those that all ranks have.
    """
    is_part = labels[by.divisor] == F
    meets = is_part and not is_local
    table = by.of(op).shape.as_list()
    wants: list[Label | None] = [None] * len(labels)
    wants[by.indices] = wants[by.values] = R
    wants[by.divisor] = F if is_part else R

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        indices, given, divisor = values[by.indices], values[by.values], values[by.divisor]
        more = _not_numbers(divisor, table, builder.exchange.span(math.prod(table)) if is_part else None, indices)
        every = tf.concat([indices, builder.gathered(more, made.name) if meets else more], 0)
        rows = rows_of(builder, divisor, table, every) if is_part else tf.gather(divisor, every)
        rows = builder.summed(rows, made.name) if meets else rows
        zeros = tf.zeros(tf.concat([tf.shape(every) - tf.shape(indices), table[1:]], 0), given.dtype)
        divided = tf.concat([given, zeros], 0) / rows
        return [tf.cast(every, made.outputs[by.gives_indices].dtype), divided]

    return Ruling(wants, [R, R], build, meets=meets)


def _not_numbers(divisor: Any, table: Sequence[int], span: tuple[int, int] | None, indices: Any) -> Any:
    """The rows of a table with a zero or a NaN that no index names.

    Args:
        divisor: the table, or a rank's part of it, from the first element of `span` to the one after the last.
        table: its shape. indices: `[count]`.
    """
    width = math.prod(table[1:])
    low, high = span or (0, math.prod(table))
    first, last = low // width, -(-high // width)
    strange = tf.reshape(tf.equal(divisor, 0) | tf.math.is_nan(divisor), [-1])
    whole = tf.pad(strange, [[low - first * width, last * width - high]])
    of_rows = tf.concat([tf.reduce_any(tf.reshape(whole, [last - first, width]), 1), [False]], 0)
    at = tf.cast(indices, tf.int64) - first
    at = tf.where((at >= 0) & (at < last - first), at, last - first)
    others = tf.tensor_scatter_nd_update(of_rows, at[:, None], tf.zeros(tf.shape(at), tf.bool))
    return tf.cast(tf.where(others[:-1])[:, 0] + first, indices.dtype)
