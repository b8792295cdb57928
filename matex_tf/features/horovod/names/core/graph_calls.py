"""Functions with collectives that the graph of a session calls in several places: all calls have the same names.

A `tf.function` is traced once, and its collectives are named then. Where one run of a session takes two calls of it in
no order, ranks may take them in different ones, and nobody can tell which goes with which: such a run is refused.

Relies on (TensorFlow 2.16 to 2.21), private: `Graph._get_function` and the `graph` of what it gives.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from matex_tf.features.horovod.names.core.exceptions import BadArgument
from matex_tf.state import notes


class WithCollectives:
    """Of the graph of a function, a branch or a body, within that of a session: that it has a collective in it."""


class _Unordered(NamedTuple):
    """Of the graph of a session: its version, and pairs of its ops that have no order and call the same function."""

    version: int
    pairs: list[tuple[Any, Any, Any]]


_TYPES = ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase", "While",
          "StatelessWhile")  # fmt: skip


def check(graph: Any, targets: Iterable[Any]) -> None:
    """Look at what a session is about to run.

    Args:
        graph: the session's.
        targets: the ops to be run, with all that they need.

    Raises:
        BadArgument: two calls of a function with collectives are among it, in no order.
    """
    if not notes.having(WithCollectives):
        return
    known = notes.found(graph, _Unordered)
    if known is None or known.version != graph.version:
        notes.put(graph, known := _Unordered(graph.version, _without_order(graph)))
    if not known.pairs:
        return
    run = _needed(targets)
    for one, other, function in known.pairs:
        if one in run and other in run:
            name = re.sub("_[0-9]+$", "", function.name.removeprefix("__backward_"))
            raise BadArgument(
                f"one run of the session calls {name}, or its gradient, in two places, {one.name} and {other.name}, "
                "in no order. It has collectives of Horovod in it, which ranks could take in different orders: order "
                "the calls with tf.control_dependencies, run them one after the other, or make a function for each"
            )


def reached(op: Any) -> set[Any]:
    """The graphs with collectives that an op calls, or that these call."""
    if op.type not in _TYPES:
        return set()
    result = set()
    for value in op.node_def.attr.values():
        for function in [value.func] if value.HasField("func") else value.list.func:
            called = getattr(op.graph._get_function(function.name), "graph", None)
            if called is not None and notes.has(called, WithCollectives):
                result |= {called}.union(*(reached(inner) for inner in called.get_operations()))
    return result


def _without_order(graph: Any) -> list[tuple[Any, Any, Any]]:
    """Pairs of ops that call the same function, neither of which needs the other; and the function."""
    callers: dict[Any, list[Any]] = {}
    for op in graph.get_operations():
        for function in reached(op):
            callers.setdefault(function, []).append(op)
    before = {op: _needed([op]) for ops in callers.values() if len(ops) > 1 for op in ops}
    return [
        (one, other, function)
        for function, ops in callers.items()
        for one, other in itertools.combinations(ops, 2)
        if one not in before[other] and other not in before[one]
    ]


def _needed(targets: Iterable[Any]) -> set[Any]:
    """Ops, and all that they need."""
    left, result = list(targets), set()
    while left:
        op = left.pop()
        if op not in result:
            result.add(op)
            left.extend(tensor.op for tensor in op.inputs)
            left.extend(op.control_inputs)
    return result
