"""The ops of a graph of TensorFlow, with those of the functions that it calls; and the graphs around one."""

from __future__ import annotations

from typing import Any


def ops_of(graph: Any) -> list[Any]:
    """The ops of a graph and of those that it calls, as NodeDefs.

    Args:
        graph: a FuncGraph.

    Raises:
        ValueError: it has more than 2 GB, and does not fit into a message.
    """
    definition = graph.as_graph_def()
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def within(graph: Any) -> list[Any]:
    """A graph and those that it is traced within, the innermost first; nothing of None."""
    found = []
    while graph is not None:
        found.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return found
