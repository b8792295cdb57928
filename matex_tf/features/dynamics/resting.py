"""Repeated blocks that rest: the model computes nothing of them, until they begin.

A block adds f(x) to a stream x. While it rests its sum gives x, so what is within f is pruned from the compiled step.
The last kernel of f is 0, and so is f(x): files, clones and what is computed from them agree with that. So a block that
begins changes no output, and learns from there on.

Relies on (Keras 3.3 to 3.15, private): `Functional._nodes_by_depth`, `Layer._flatten_layers`, `ops.numpy.Add`,
`MultiHeadAttention._output_dense`; that a layer calls its own `call`, which may be an attribute of that layer alone.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels import trace


@dataclasses.dataclass(eq=False)
class Branch:
    """What a residual sum adds to its stream, in a functional model.

    Attributes:
        total: the sum: a layer, or an operation.
        stream: which of its two inputs is the stream.
        layers: those of the branch, the last first; operations too.
        last: the last of them with a kernel.
        normalizations: behind that one.
    """

    total: Any
    stream: int
    layers: list[Any]
    last: Any
    normalizations: list[Any]

    def rest(self, share: float = 1.0) -> None:
        """Compute nothing of the branch from now on. Optimizers see gradients of 0.

        Args:
            share: of the stream that the branch is to add once it has begun. A normalization brings however small a
                kernel to the size of the stream with the first step, so its scale is made smaller.
        """
        from keras import tree

        for variable in self.zeros:
            variable.assign(np.zeros(variable.shape, np.float32))
        for layer in self.normalizations:
            if (scale := _scale_of(layer)) is not None:
                scale.assign(np.asarray(scale) * share)
        weights = [variable for layer in self.layers for variable in _weights(layer)]
        self.total.call = lambda *inputs: _stream_alone(tree.flatten(inputs)[self.stream], weights)
        for layer in self.layers:
            if _is_batch_normalization(layer):  # would keep means of what nobody needs, and so have it computed
                layer.call = lambda inputs, *_, **__: inputs

    def begin(self) -> None:
        """Compute it again; it gives 0 at first. What was compiled has to be compiled anew."""
        for layer in (self.total, *self.layers):
            vars(layer).pop("call", None)

    @property
    def gives_nothing(self) -> bool:
        """Whether what it gives is 0."""
        return not any(np.any(np.asarray(variable)) for variable in self.zeros)

    @property
    def zeros(self) -> list[Any]:
        """The variables that are 0 for the branch to give 0: a kernel and its bias, and what normalizations add."""
        added = [getattr(layer, name, None) for layer in self.normalizations for name in ("beta", "moving_mean")]
        return [*_gives(self.last).trainable_variables, *(one for one in added if one is not None)]


def branches(model: Any) -> Iterator[Branch]:
    """The branches that can rest."""
    for layer in model._flatten_layers():
        graph = trace.graph_of(layer)
        if graph is not None:
            yield from _branches(graph)


def _branches(graph: Any) -> Iterator[Branch]:
    nodes = [node for level in graph._nodes_by_depth.values() for node in level]
    calls = Counter(id(node.operation) for node in nodes)
    makes = {id(tensor): node for node in nodes for tensor in node.outputs}
    uses: dict[int, list[int]] = {id(tensor): [0] for tensor in graph.outputs}  # by nodes; 0 for who calls the model
    for node in nodes:
        for tensor in node.input_tensors:
            uses.setdefault(id(tensor), []).append(id(node))
    for node in nodes:
        if not _is_sum(node):
            continue
        for stream, tensor in enumerate(node.input_tensors):
            within = _within(node.input_tensors[1 - stream], tensor, makes)
            inside = {id(one) for one in (*within, node)}
            layers = [one.operation for one in within]
            alone = all(inside.issuperset(uses.get(id(output), ())) for one in within for output in one.outputs)
            once = all(calls[id(layer)] == 1 for layer in (node.operation, *layers))
            behind = _behind_last_kernel(within)
            if alone and once and behind is not None and _can_rest(layers, behind):
                last = layers[len(behind)]
                yield Branch(node.operation, stream, layers, last, [one for one in behind if _is_normalization(one)])


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors that are alike."""
    import keras
    from keras.src.ops import numpy

    if not isinstance(node.operation, (keras.layers.Add, numpy.Add)) or len(node.input_tensors) != 2:
        return False
    one, other = node.input_tensors
    return (tuple(one.shape), one.dtype) == (tuple(other.shape), other.dtype)


def _within(end: Any, stream: Any, makes: dict[int, Any]) -> list[Any]:
    """The nodes from a stream to a tensor, the last first; none where something else comes in too."""
    found: dict[int, Any] = {}
    waiting = [end]
    while waiting:
        tensor = waiting.pop(0)
        if tensor is stream:
            continue
        node = makes.get(id(tensor))
        if node is None or node.is_input:
            return []
        if id(node) not in found:
            found[id(node)] = node
            waiting.extend(node.input_tensors)
    return list(found.values())


def _behind_last_kernel(within: Sequence[Any]) -> list[Any] | None:
    """The layers behind the last one with a kernel, the last first; None where something joins there, or there is none.

    Args:
        within: nodes, the last first.
    """
    import keras

    names = ("Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D")
    with_kernels = tuple(getattr(keras.layers, name) for name in names)
    behind: list[Any] = []
    for node in within:
        if isinstance(_gives(node.operation), with_kernels):
            return behind
        if len(node.input_tensors) != 1 or (_weights(node.operation) and not _is_normalization(node.operation)):
            break
        behind.append(node.operation)
    return None


def _weights(layer: Any) -> list[Any]:
    """The variables of a layer that are trained; an operation has none."""
    return list(getattr(layer, "trainable_variables", ()))


def _can_rest(layers: Sequence[Any], behind: Sequence[Any]) -> bool:
    """Whether a branch gives 0 where its last kernel does, and nothing within it counts what it has seen.

    Args:
        layers: the last first.
        behind: of these, those behind the last kernel.
    """
    import keras

    for layer in layers:
        kept = [] if _is_batch_normalization(layer) else getattr(layer, "non_trainable_variables", ())
        if any("seed" not in variable.name for variable in kept):
            return False
    last = layers[len(behind)]
    data = keras.ops.zeros([size or 1 for size in last.output.shape])
    for layer in (getattr(_gives(last), "activation", None), *reversed(behind)):
        if layer is not None and not _is_normalization(layer):
            data = layer(data)
    return not np.any(np.asarray(data))


def _gives(layer: Any) -> Any:
    """The layer within a layer that makes what it gives."""
    return getattr(layer, "_output_dense", layer)  # of an attention layer


def _is_batch_normalization(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.layers.BatchNormalization)


def _is_normalization(layer: Any) -> bool:
    """Whether a layer brings what it gets to one size; it gives 0 for 0 where it adds nothing."""
    import keras

    names = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization")
    return isinstance(layer, tuple(getattr(keras.layers, name) for name in names if hasattr(keras.layers, name)))


def _scale_of(layer: Any) -> Any:
    """The variable that a normalization multiplies by; None where it has none."""
    scale = getattr(layer, "gamma", None)
    return getattr(layer, "scale", None) if scale is None and not hasattr(layer, "gamma") else scale


def _stream_alone(stream: Any, weights: Sequence[Any]) -> Any:
    """The stream; gradients of some weights are 0 rather than missing."""
    import tensorflow as tf

    @tf.custom_gradient
    def alone(stream: Any, *values: Any) -> Any:
        def backward(gradient: Any) -> Any:
            return gradient, *[tf.zeros_like(value) for value in values]

        return tf.identity(stream), backward

    return alone(stream, *[tf.convert_to_tensor(weight.value) for weight in weights])
