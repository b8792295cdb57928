"""Names by which ranks find one another's collectives in the graph of a session, which runs ops in an order of its own.

A name is that of an op: the scope where the collective is made, the name that the script gave it or that of its tensor,
and a number where there is one already. Gradients are collectives too, and are named when they are made. So every
collective of a graph has a name of its own, the same on each rank that makes the same graph.

The collective of a loop has one name for all iterations: such a loop runs one iteration at a time. A function that is
traced once may be called in several places, all with the same names: see `graph_calls`.

Eagerly and in a `tf.function` collectives come in program order, and need no name.

Relies on (TensorFlow 2.16 to 2.21), all private: `while_v2._build_while_op(…, parallel_iterations, …)`;
`Graph._get_control_flow_context`, `WhileContext._parallel_iterations`, `loop_enters` and `outer_context` of control
flow as TensorFlow 1 had it; `FuncGraph.outer_graph`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import wrapt

from matex_tf.features.horovod.names.core import graph_calls
from matex_tf.state import notes


def in_session() -> bool:
    """Whether what is made now will be run by a session."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def name_of(name: str | None, kind: str, tensors: Sequence[tf.Tensor] = ()) -> str:
    """The name of a collective that is made now; empty where it needs none.

    Args:
        name: what the script calls it; None for no name.
        kind: of the collective, such as "Allreduce".
        tensors: what it is given.
    """
    if not in_session():
        return name or ""
    _run_in_order()
    if not name:
        name = re.sub("[^a-zA-Z0-9_]", "_", f"Horovod{kind}_{tensors[0].name}" if tensors else f"Horovod{kind}")
    with tf.init_scope():  # the graph of the session, of which the graphs of loops, branches and functions are parts
        return str(tf.compat.v1.get_default_graph().unique_name(name))


def _run_in_order() -> None:
    """Let the loops around what is made now run one iteration at a time."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsWhileContext():
                _one_at_a_time(context)
            context = context.outer_context
        if not graph.building_function:
            return
        notes.of(graph, graph_calls.WithCollectives)
        graph = graph.outer_graph


def _one_at_a_time(loop: Any) -> None:
    loop._parallel_iterations = 1  # of the ops to come
    for enter in loop.loop_enters:
        enter.op._set_attr("parallel_iterations", tf.compat.v1.AttrValue(i=1))


def _loop_in_order(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    def arguments(
        loop_vars: Any, cond_graph: Any, body_graph: Any, output_shapes: Any, parallel_iterations: int, *more: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        parts = [cond_graph, body_graph]
        if any(notes.has(part, graph_calls.WithCollectives) for part in parts) or any(
            graph_calls.reached(op) for part in parts for op in part.get_operations()
        ):
            for part in parts:
                notes.of(part, graph_calls.WithCollectives)
            parallel_iterations = 1
        return wrapped(loop_vars, cond_graph, body_graph, output_shapes, parallel_iterations, *more, **named)

    return arguments(*args, **kwargs)


wrapt.wrap_function_wrapper("tensorflow.python.ops.while_v2", "_build_while_op", _loop_in_order)
