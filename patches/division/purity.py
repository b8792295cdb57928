"""What a function of a tf.data pipeline does beside computing its results from its arguments.

A function that does nothing else gives an element the same wherever and whenever it is called: it can be called for
some elements and not for others, and behind a `shuffle` in place of before it.

Relies on (TensorFlow 2.16 to 2.21, private): `tensorflow.python.framework.op_def_registry.get`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

#: Ops that TensorFlow counts as stateful, and that give the same for the same arguments: calls (what they call is
#: looked at by itself), checks, and what reads variables and tables.
_HARMLESS = {
    "StatefulPartitionedCall", "PartitionedCall", "If", "While", "Case", "For", "Assert", "Print", "PrintV2",
    "Placeholder", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "LookupTableFind", "LookupTableFindV2",
    "LookupTableSize", "LookupTableSizeV2", "LookupTableExportV2", "VarIsInitializedOp", "VariableShape",
}  # fmt: skip
#: Ops that hand on whatever they are given.
_PASSING = {"Identity", "IdentityN", "StatelessIf", "StatelessWhile", "StatelessCase", "Switch", "Merge", "NoOp"}
#: Datasets that may give something else the second time, by a part of their names; others read, or only hand on.
_STATES = ("Generator", "Random", "Shuffle", "Cache", "Snapshot", "Sampl", "Sql", "Save")
_PYTHON = ("PyFunc", "EagerPyFunc")
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "Poisson", "Stateful", "SampleDistortedBoundingBox")

#: Ops that go through a batch element by element, each rounded by itself, so that it does not matter where in memory an
#: element lies; all others count as looking at several rows.
_UNARY = {
    "Identity", "Cast", "Neg", "Abs", "Square", "Sign", "Floor", "Ceil", "Round", "Rint", "LogicalNot", "ZerosLike",
    "OnesLike", "StopGradient", "Snapshot",
}  # fmt: skip
_BINARY = {
    "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Greater",
    "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "LogicalAnd", "LogicalOr",
}  # fmt: skip


def effects(function: Any) -> str:
    """What else a concrete function does, in words; empty where it computes its results and nothing more."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
    known = {one.signature.name for one in definition.library.function}
    return _effects(nodes, known)


def keeps_state(node: Any, functions: dict[str, Any]) -> bool:
    """Whether an op does more than compute its results, or calls a function that does.

    Args:
        node: of the op, a NodeDef.
        functions: by name: those of the library of its graph.
    """
    pending, nodes = [node], []
    seen: set[str] = set()
    while pending:
        one = pending.pop()
        nodes.append(one)
        called = {value.func.name for value in one.attr.values() if value.HasField("func")} & set(functions)
        called |= {value.name for attr in one.attr.values() for value in attr.list.func} & set(functions)
        called |= {one.op} & set(functions)
        for name in called - seen:
            pending += functions[name].node_def
        seen |= called
    return bool(_effects(nodes, set(functions)))


def _effects(nodes: Iterable[Any], known: set[str]) -> str:
    for node in nodes:
        if node.op in _HARMLESS or node.op in _PASSING or node.op in known:
            continue
        op = op_def_registry.get(node.op)
        if op is None:
            return f"has an op that nobody knows ({node.op})"
        if not op.is_stateful and not any(argument.type == tf.resource.as_datatype_enum for argument in op.input_arg):
            continue
        if "Dataset" in node.op and not any(part in node.op for part in _STATES):
            continue
        if node.op in _PYTHON:
            return "calls Python"
        if any(part in node.op for part in _RANDOM):
            return "draws random numbers from a state"
        return f"keeps a state ({node.op})"
    return ""


def is_row_wise(function: Any) -> bool:
    """Whether a concrete function of whole batches makes each row from the same row of its arguments, with the same
    bits: then it can be given a part of the rows. The first axis of all tensors runs over rows."""
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
