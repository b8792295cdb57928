"""A map that draws random numbers, as two maps: one that draws, and one that only computes.

`tf.image.random_flip_left_right` draws a number and then works on the image. What it draws does not depend on the
element, so every rank can draw it for all elements, in their order, with the same op: the numbers are those of one
rank. The work is done by a rank for its own rows. With `num_parallel_calls` one rank gives numbers to elements as time
will have it; here they come in the order of elements, which is one of those orders.

What reads and advances the state of Keras' seed generators goes into the first map too. A map that draws as many
numbers as an element asks for (of the shape of an image that is not known beforehand), or that draws in a branch, stays
whole.

Relies on (TensorFlow 2.16 to 2.21): `tf.graph_util.import_graph_def`, public; `graph`, `captured_inputs` and `outputs`
of a concrete function, and `internal_captures` and `capture` of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf.patches.division import purity


class Split(NamedTuple):
    """The two maps of one.

    Attributes:
        draw: gives the tensors that are drawn for an element.
        compute: a concrete function of the tensors of an element and those that were drawn for it.
        drawn: the specs of what is drawn.
    """

    draw: Callable[[], list[Any]]
    compute: Any
    drawn: list[tf.TensorSpec]


def split(function: Any) -> Split | None:
    """A concrete function of an element as two; None if what it draws depends on the element."""
    graph = function.graph
    names, arguments = captured_of(function), arguments_of(function)
    found = _drawing(graph, {tensor.op.name for tensor in arguments})
    if not found:
        return None
    drawn = _drawn(graph, found, function.outputs)
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in drawn):
        return None
    definition = graph.as_graph_def()
    first = _only(definition, sorted(found))

    def draw() -> list[Any]:
        return imported(first, names, {}, drawn)

    specs = [[tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors] for tensors in (arguments, drawn)]
    rest = _only(_without(definition, found), [tensor.op.name for tensor in function.outputs])

    def compute(*tensors: Any) -> list[Any]:
        known = {tensor.name: given for tensor, given in zip((*arguments, *drawn), tensors, strict=True)}
        return imported(rest, names, known, function.outputs)

    computing = tf.function(compute, autograph=False).get_concrete_function(*specs[0], *specs[1])
    return None if purity.effects(computing) else Split(draw, computing, specs[1])


def arguments_of(function: Any) -> list[Any]:
    """The tensors in the graph of a concrete function that stand for what it is called with."""
    captured = {id(tensor) for tensor in function.graph.internal_captures}
    return [tensor for tensor in function.graph.inputs if id(tensor) not in captured]


def captured_of(function: Any) -> dict[str, Any]:
    """What a concrete function takes from outside, by the names of the tensors in its graph that stand for it."""
    names = (one.name for one in function.graph.internal_captures)
    return dict(zip(names, function.captured_inputs, strict=True))


def _drawing(graph: Any, of_element: set[str]) -> set[str]:
    """The names of ops that draw or keep a state, and of those that read it; none if one depends on the element."""
    calls = {one.signature.name: one for one in graph.as_graph_def().library.function}
    depending, found = set(of_element), set()
    for op in graph.get_operations():
        before = [*(tensor.op.name for tensor in op.inputs), *(one.name for one in op.control_inputs)]
        if any(name in depending for name in before):
            depending.add(op.name)
        if op.type not in ("Placeholder", "NoOp") and purity.keeps_state(op.node_def, calls):
            found.add(op.name)
    ops = [graph.get_operation_by_name(name) for name in sorted(found)]
    states = {tensor.name for op in ops for tensor in op.inputs if tensor.dtype == tf.resource}
    reading = {op.name for op in graph.get_operations() if op.type == "ReadVariableOp" and op.inputs[0].name in states}
    found |= reading
    return set() if found & depending or any("PyFunc" in op.type for op in ops) else found


def _drawn(graph: Any, found: set[str], outputs: Sequence[Any]) -> list[Any]:
    """What of these ops others read."""
    read = {tensor.name: tensor for op in graph.get_operations() if op.name not in found for tensor in op.inputs}
    read |= {tensor.name: tensor for tensor in outputs}
    return [tensor for _, tensor in sorted(read.items()) if tensor.op.name in found]


def _only(definition: Any, names: list[str]) -> Any:
    """What some ops need of a graph."""
    nodes = {node.name: node for node in definition.node}
    kept: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in kept:
            kept.add(name)
            pending += [one.removeprefix("^").partition(":")[0] for one in nodes[name].input]
    result = type(definition)()
    result.CopyFrom(definition)
    del result.node[:]
    result.node.extend(node for node in definition.node if node.name in kept)
    return result


def _without(definition: Any, found: set[str]) -> Any:
    """A graph in which these ops do nothing; all that reads them is given something else."""
    result = type(definition)()
    result.CopyFrom(definition)
    for node in result.node:
        if node.name in found:
            node.ClearField("input")
            node.ClearField("attr")
            node.op = "NoOp"
        else:
            kept = [one for one in node.input if one.removeprefix("^").partition(":")[0] not in found or one[0] != "^"]
            del node.input[:]
            node.input.extend(kept)
    return result


def imported(definition: Any, captured: dict[str, Any], known: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    """Some tensors of a graph, in the one that is built now.

    Args:
        definition: of the graph, a GraphDef. results: those tensors of it.
        captured: by the names of placeholders: what they stand for, outside of any graph.
        known: by the names of tensors: what to take in their place.
    """
    here = tf.compat.v1.get_default_graph()
    present = {node.name for node in definition.node}
    given = {name: here.capture(value) for name, value in captured.items()} | known
    given = {name: value for name, value in given.items() if _used(definition, name, present)}
    asked = [tensor.name for tensor in results if tensor.name not in known]
    made = iter(tf.graph_util.import_graph_def(definition, given, asked, name="matex") if asked else ())
    return [known[tensor.name] if tensor.name in known else next(made) for tensor in results]


def _used(definition: Any, name: str, present: set[str]) -> bool:
    """Whether a graph reads a tensor: what it does not read may not be given."""
    short = name.removesuffix(":0")
    return short in present and any(short in node.input or name in node.input for node in definition.node)
