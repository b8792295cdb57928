"""Values in parts: which elements each rank has, and which variables of a step can lie so.

Elements are shared out in units of `UNIT`, in their order: kernels that compute many elements at once compute those
of a part as they do those of the whole, so the bits are the same.

Relies on (TensorFlow 2.13 to 2.21, private): see `schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from matex_tf.patches.partition.shapes.shaped import BRANCHES, LOOPS, Shaped

#: Elements that stay together: a multiple of what a vector register holds, and of what the exchange aligns to.
UNIT = 64
_READ_OR_ASSIGNED = ("ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_OF_ROWS = ("ResourceGather", "ResourceScatterAdd", "ResourceScatterSub")  # rules.tables knows them


class Slots(Protocol):
    """What chooses the variables that lie in parts."""

    def part_of(self, handle: Any, fits: bool, in_loop: bool) -> Any:
        """The handle of the variable that holds this rank's part of the one with this handle; None if that is whole.

        Args:
            handle: which the traced step captures.
            fits: whether the step does nothing with it but read and assign it; in_loop: whether it does so in a loop.
        """


def span(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first element of `rank`, and the one after its last, of `size` elements that lie on so many `ranks`."""
    units = -(-size // UNIT)
    return min(size, rank * units // ranks * UNIT), min(size, (rank + 1) * units // ranks * UNIT)


def lengths(size: int, ranks: int) -> list[int]:
    """How many of `size` elements each of so many `ranks` has."""
    return [high - low for low, high in (span(size, rank, ranks) for rank in range(ranks))]


def to_owners(indices: Any, table: Sequence[int], ends: Sequence[int]) -> tuple[Any, Any]:
    """Which indices of rows of a table each rank gets that has elements of these rows.

    An index that no row has goes to every rank, so that all of them have the error.

    Args:
        indices: `[count]`, integers. table: its shape. ends: see `build.Exchange.ends`.

    Returns:
        Places among the indices, in the order of the ranks that get them, int64; how many each rank gets, int64
        `[ranks]`.
    """
    width = math.prod(table[1:])
    at = tf.cast(indices, tf.int64)
    begins = [0, *ends[:-1]]
    named = (at * width < tf.constant(ends, tf.int64)[:, None]) & (
        at * width + width > tf.constant(begins, tf.int64)[:, None]
    )
    given = named | (at < 0) | (at >= table[0])
    return tf.where(given)[:, 1], tf.reduce_sum(tf.cast(given, tf.int64), 1)


def part(whole: Any, rank: int, ranks: int) -> Any:
    """A rank's part of a tensor: flat.

    Args:
        whole: of a shape that is known. rank: from 0. ranks: how many there are.
    """
    low, high = span(whole.shape.num_elements(), rank, ranks)
    return tf.reshape(whole, [-1])[low:high]


def in_loop(shaped: Shaped, handle: Any) -> bool:
    """Whether a loop of a step reads or assigns a variable.

    Args:
        shaped: the step's graph; loops inside of its branches do not count. handle: of the variable, an input of it.
    """
    return any(op.type in LOOPS and any(tensor is handle for tensor in op.inputs) for op in shaped.ops)


def fits(shaped: Shaped, handle: Any, inside: bool = False) -> bool:
    """Whether a step only reads and assigns a variable, be it in a branch or a loop, or looks up rows of it and adds to
    them.

    Args:
        shaped: the step's graph. handle: of the variable, an input of it. inside: whether it is the graph of a loop or
            a branch, where no rows may be looked up or added.
    """
    for op in (op for op in shaped.ops if any(tensor is handle for tensor in op.inputs)):
        if op.type in LOOPS + BRANCHES:
            places = [place for place, tensor in enumerate(op.inputs) if tensor is handle]
            first = 0 if op.type in LOOPS else 1
            bodies = shaped.bodies[op]
            if not all(fits(body, body.inputs[place - first], True) for body in bodies for place in places):
                return False
        elif op.type not in _READ_OR_ASSIGNED and (inside or op.type not in _OF_ROWS):
            return False
    return True
