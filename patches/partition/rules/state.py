"""Variables, and what has no rows: every rank has them whole, and gives them whole values.

A variable may keep a sum over the ranks, of which each has a part: what it gives and what it gets are parts then.
"""

from __future__ import annotations

from matex_tf.patches.partition.labels import F, P, R
from matex_tf.patches.partition.rules import Op, Ruling, rule


@rule("ReadVariableOp")
def read(op: Op) -> Ruling | None:
    """What the variable holds: a part of a sum, or a part of the elements, as its handle says."""
    label = op.labels[0]
    return Ruling([label], [label]) if label in (P, F) else None


@rule("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
def state(op: Op) -> Ruling:
    """A new value of a variable: whole on every rank, or a part of a sum."""
    label = op.labels[0] if op.labels[0] == P else R
    return Ruling([label] * len(op.labels), [label] * len(op.out_shapes))


@rule("Assert")
def check(op: Op) -> Ruling:
    """What is asserted is whole; what is printed if it fails is the rank's own."""
    return Ruling([R] + [None if label.kind != "P" else R for label in op.labels[1:]], [])
