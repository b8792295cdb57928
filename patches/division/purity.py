"""What a function of a tf.data pipeline does beside computing its results from its arguments.

A function that does nothing else gives an element the same wherever and whenever it is called: it can be called for
some elements and not for others, and behind a `shuffle` in place of before it.

Relies on (TensorFlow 2.16 to 2.21, private): `tensorflow.python.framework.op_def_registry.get`.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def effects(function: Any) -> str:
    """What else a concrete function does, in words; empty where it computes its results and nothing more."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
    known = {one.signature.name for one in definition.library.function}
    return _effects(nodes, known)


def keeps_state(node: Any, functions: dict[str, Any]) -> bool:
    """Whether an op does more than compute its results, or calls a function that does.

    Args:
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
