"""The walk through a model's graph: each layer is shown the channels that come in, and says which go out.

A functional or sequential model has its graph. Of a layer or model with a `call` of its own the graph is found by
calling it on symbolic tensors, which runs no computation; where that fails, the layer is left whole.

Relies on (Keras 3.3 to 3.15, private): `Functional._nodes_by_depth`, `Sequential._functional`, `Node.arguments`,
`KerasTensor._keras_history`, `Operation._inbound_nodes` and `_outbound_nodes`, `Layer._flatten_layers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf.features.dynamics.channels import table
from matex_tf.features.dynamics.channels.analysis import Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.flow import Flow


def analyse(model: Any, inputs: Sequence[Any] | None = None) -> Analysis:
    """Work out the channels of a built model.

    Args:
        model: of Keras 3, built.
        inputs: tensors, symbolic or not, whose shapes and dtypes are those of its inputs; needed by a model with a
            `call` of its own that was built without shapes.
    """
    analysis = Analysis()
    graph = graph_of(model)
    if graph is not None:
        symbolic = list(graph.inputs)
        flows = _walk(analysis, graph, [Flow.unknown(tensor.shape) for tensor in symbolic])
    else:
        symbolic = _symbolic_inputs(model, inputs)
        shapes = [tensor.shape for tensor in symbolic]
        call = Call((symbolic[0] if len(symbolic) == 1 else symbolic,), {}, [Flow.unknown(one) for one in shapes], [])
        flows = _expanded(analysis, model, symbolic, call)
    for flow in flows:
        analysis.fix(flow.channels)
    analysis.settle()
    return analysis


def apply(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    """Show an operation what comes in.

    Args:
        operation: a layer, a model or an op of Keras.
    """
    analysis.calls.append((operation, call))
    graph = graph_of(operation)
    if graph is not None:
        return _walk(analysis, graph, call.flows)
    handler = table.handler_of(operation)
    if handler is not None:
        return handler(analysis, operation, call)
    if table.is_of_keras(operation) or not hasattr(operation, "_flatten_layers"):
        return analysis.leave_whole(operation, call.flows, call.shapes, f"{type(operation).__name__} is not known")
    return _expanded(analysis, operation, call.tensors, call)


def graph_of(operation: Any) -> Any:
    """The functional model that says what a model computes; None for one with a `call` of its own."""
    from keras.src.models.functional import Functional
    from keras.src.models.sequential import Sequential

    if isinstance(operation, Sequential) and type(operation).call is Sequential.call:
        return operation._functional or None
    if isinstance(operation, Functional) and type(operation).call is Functional.call:
        return operation
    return None


def _walk(analysis: Analysis, graph: Any, flows: Sequence[Flow]) -> list[Flow]:
    """Through the nodes of a functional model, in their order; its outputs."""
    known: dict[int, Flow] = {}
    for tensor, flow in zip(graph.inputs, flows, strict=True):
        known[id(tensor)] = flow
        analysis.tensors.append((tensor, flow))
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            _visit(analysis, node, known)
    return [known[id(tensor)] for tensor in graph.outputs]


def _visit(analysis: Analysis, node: Any, known: dict[int, Flow]) -> None:
    if node.is_input or any(id(tensor) not in known for tensor in node.input_tensors):
        return
    call = Call.of(node, known)
    flows = apply(analysis, node.operation, call)
    if len(flows) != len(node.outputs):
        flows = analysis.leave_whole(node.operation, call.flows, call.shapes, "it gives other tensors than expected")
    for tensor, flow in zip(node.outputs, flows, strict=True):
        known[id(tensor)] = flow
        analysis.tensors.append((tensor, flow))


def _expanded(analysis: Analysis, layer: Any, tensors: Sequence[Any], call: Call) -> list[Flow]:
    """A layer with a `call` of its own, by the graph that this makes of symbolic tensors."""
    import keras
    from keras import tree

    fresh = [keras.KerasTensor(tensor.shape, tensor.dtype) for tensor in tensors]
    replace = {id(old): new for old, new in zip(tensors, fresh, strict=True)}
    args, kwargs = tree.map_structure(
        lambda leaf: replace.get(id(leaf), leaf), (call.symbolic_args, call.symbolic_kwargs)
    )
    with _nodes_put_back(layer):
        try:
            outputs = tree.flatten(layer.call(*args, **kwargs))
            order = _order(outputs)
            symbolic = all(isinstance(one, keras.KerasTensor) for one in outputs)
        except Exception as error:  # whatever a script's own code raises of symbolic tensors
            reason = f"its call does not take symbolic tensors ({type(error).__name__})"
            return analysis.leave_whole(layer, call.flows, call.shapes, reason)
        if not symbolic or (call.shapes and len(outputs) != len(call.shapes)):
            return analysis.leave_whole(layer, call.flows, call.shapes, "its call gives no symbolic tensors")
        known = {id(tensor): flow for tensor, flow in zip(fresh, call.flows, strict=True)}
        for node in order:
            _visit(analysis, node, known)
        return [known.get(id(tensor)) or Flow.unknown(tensor.shape) for tensor in outputs]


def _order(outputs: Sequence[Any]) -> list[Any]:
    """The nodes that make these symbolic tensors, each after those that it needs."""
    order: list[Any] = []
    seen: set[int] = set()
    stack = [(tensor, False) for tensor in reversed(outputs)]
    while stack:
        tensor, done = stack.pop()
        history = getattr(tensor, "_keras_history", None)
        if history is None or history.operation is None:
            continue
        node = history.operation._inbound_nodes[history.node_index]
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((tensor, True))
            stack += [(one, False) for one in reversed(node.input_tensors)]
    return order


@contextlib.contextmanager
def _nodes_put_back(layer: Any) -> Iterator[None]:
    """Let layers forget that they were called on symbolic tensors."""
    layers = list(layer._flatten_layers())
    before = [(len(one._inbound_nodes), len(one._outbound_nodes)) for one in layers]
    try:
        yield
    finally:
        for one, (inbound, outbound) in zip(layers, before, strict=True):
            del one._inbound_nodes[inbound:]
            del one._outbound_nodes[outbound:]


def _symbolic_inputs(model: Any, inputs: Sequence[Any] | None) -> list[Any]:
    """Symbolic tensors like the inputs of a model with a `call` of its own.

    Raises:
        ValueError: nobody knows their shapes.
    """
    import keras

    if inputs is not None:
        return [keras.KerasTensor((None, *one.shape[1:]), keras.backend.standardize_dtype(one.dtype)) for one in inputs]
    known = list((getattr(model, "_build_shapes_dict", None) or {}).values())
    if len(known) != 1 or not isinstance(known[0], (tuple, list)) or isinstance(known[0][0], (tuple, list)):
        raise ValueError(f"nobody knows the shapes of the inputs of {model.name}: give `inputs`, some of its data")
    return [keras.KerasTensor((None, *known[0][1:]), keras.config.floatx())]
