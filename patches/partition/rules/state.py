"""Variables, and what has no rows: every rank has them whole, and gives them whole values."""

from __future__ import annotations

from matex_tf.patches.partition.labels import R
from matex_tf.patches.partition.rules import Op, Ruling, rule


@rule("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
def state(op: Op) -> Ruling:
    """The same on every rank."""
    return Ruling([R] * len(op.labels), [R] * len(op.out_shapes))


@rule("Assert")
def check(op: Op) -> Ruling:
    """What is asserted is whole; what is printed if it fails is the rank's own."""
    return Ruling([R] + [None if label.kind != "P" else R for label in op.labels[1:]], [])
