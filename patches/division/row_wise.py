"""Whether a function of whole batches makes each row from the same row of its arguments, with the same bits.

Then it can be given a part of the rows. Known are ops that go through a batch element by element, each rounded by
itself, so that it does not matter where in memory an element lies; everything else counts as looking at several rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

_UNARY = {
    "Identity", "Cast", "Neg", "Abs", "Square", "Sign", "Floor", "Ceil", "Round", "Rint", "LogicalNot", "ZerosLike",
    "OnesLike", "StopGradient", "Snapshot",
}  # fmt: skip
_BINARY = {
    "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Greater",
    "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "LogicalAnd", "LogicalOr",
}  # fmt: skip


def is_row_wise(function: Any) -> bool:
    """Whether a concrete function does that, of tensors whose first axis runs over rows."""
    graph = function.graph
    captured = {id(tensor) for tensor in graph.internal_captures}
    by_row: dict[int, bool] = {}  # whether a tensor has a row for each; False: it depends on no row
    for tensor in graph.inputs:
        by_row[id(tensor)] = id(tensor) not in captured
    for op in graph.get_operations():
        if op.type == "Placeholder":
            continue
        if not any(by_row.get(id(tensor), True) for tensor in op.inputs):
            found = False
        elif _keeps_rows(op, [by_row.get(id(tensor)) for tensor in op.inputs]):
            found = True
        elif op.outputs:
            return False
        else:
            continue
        by_row.update((id(tensor), found) for tensor in op.outputs)
    return all(by_row.get(id(tensor), False) and tensor.shape.rank for tensor in function.outputs)


def passed_on(function: Any, places: Collection[int]) -> dict[int, int] | None:
    """Where a concrete function hands on some of its arguments as they are.

    Args:
        places: of these arguments.

    Returns:
        For each result that is one of them, by place: which. None where another result depends on one.
    """
    known: dict[int, tuple[int, bool]] = {}  # of tensors that depend on one: which, and whether they are it
    for place, tensor in enumerate(function.graph.inputs):
        if place in places:
            known[id(tensor)] = place, True
    for op in function.graph.get_operations():
        found = next((known[id(tensor)] for tensor in op.inputs if id(tensor) in known), None)
        if found is not None:
            same = op.type == "Identity" and found[1]
            known.update((id(tensor), (found[0], same)) for tensor in op.outputs)
    results = {number: known[id(tensor)] for number, tensor in enumerate(function.outputs) if id(tensor) in known}
    if not all(same for _, same in results.values()):
        return None
    return {number: place for number, (place, _) in results.items()}


def _keeps_rows(op: Any, by_row: list[bool | None]) -> bool:
    ranks = [tensor.shape.rank for tensor in op.inputs]
    if None in ranks or None in by_row:
        return False
    if op.type in _UNARY:
        return bool(ranks[0])
    if op.type in _BINARY:
        most = max(ranks)
        return all(
            (rank == most if has_rows else rank < most or tensor.shape[0] == 1)
            for rank, has_rows, tensor in zip(ranks, by_row, op.inputs, strict=True)
        )
    if op.type == "GatherV2":  # of a table, by a number in each row
        return by_row == [False, True, False] and ranks[1] > 0 and not op.get_attr("batch_dims") and _zero(op.inputs[2])
    return False


def _zero(tensor: Any) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and int(value) == 0
