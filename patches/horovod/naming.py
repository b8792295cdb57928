"""Names by which ranks find one another's collectives in the graph of a session, which runs ops in an order of its own.

A name is that of an op: the scope where the collective is made, the name that the script gave it or that of its tensor,
and a number where there is one already. Gradients are collectives too, and are named when they are made. So every
collective of a graph has a name of its own, the same on each rank that makes the same graph.

The collective of a loop has one name for all iterations: such a loop runs one iteration at a time. A function that is
traced once may be called in several places, all with the same names: a line says so before a session runs it.

Eagerly and in a `tf.function` collectives come in program order, and need no name.

Relies on (TensorFlow 2.16 to 2.21), all private: `while_v2._build_while_op(…, parallel_iterations, …)`;
`Graph._get_control_flow_context`, `WhileContext._parallel_iterations`, `loop_enters` and `outer_context` of control
flow as TensorFlow 1 had it; `FuncGraph.outer_graph`; `Graph._get_function` and the `graph` of what it gives.
"""

from __future__ import annotations

import collections
import re
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import wrapt

from matex_tf.patches import notes

#: Graphs of functions, branches and bodies of loops that have a collective in them, within the graph of a session.
_with_collectives: weakref.WeakSet[Any] = weakref.WeakSet()
#: Graphs of sessions with collectives, and their version when their functions were last looked at.
_seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


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
            _seen.setdefault(graph, -1)
            return
        _with_collectives.add(graph)
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
        alone = body_graph in _with_collectives or cond_graph in _with_collectives
        own = 1 if alone else parallel_iterations
        return wrapped(loop_vars, cond_graph, body_graph, output_shapes, own, *more, **named)

    return arguments(*args, **kwargs)


def look_at_calls(graph: Any) -> None:
    """Say where the graph of a session calls a function with collectives in more places than one."""
    if not _with_collectives or _seen.get(graph) in (None, graph.version):
        return
    _seen[graph] = graph.version
    places: collections.Counter[Any] = collections.Counter()
    for part in [graph, *(part for part in _with_collectives if _outermost(part) is graph)]:
        for op in part.get_operations():
            if op.type in _CALLS:
                called = getattr(part._get_function(op.get_attr("f").name), "graph", None)
                if called is not None and called in _with_collectives:
                    places[called] += 1
    for called, times in places.items():
        if times > 1:
            name = re.sub("_[0-9]+$", "", called.name.removeprefix("__backward_"))
            notes.say(
                f"the graph of a session calls the function {name}, or its gradient, in several places, and it has "
                "collectives of Horovod in it. Where one run takes several of them, ranks may do so in another order "
                "and get wrong results: order them with tf.control_dependencies, or make a function for each"
            )


def _outermost(graph: Any) -> Any:
    while graph.building_function:
        graph = graph.outer_graph
    return graph


wrapt.wrap_function_wrapper("tensorflow.python.ops.while_v2", "_build_while_op", _loop_in_order)
