"""Dense layers, embeddings and products with a matrix.

Relies on (Keras 3.3 to 3.15): `units`, `_kernel`, `bias`, `output_dim`, `_embeddings`, `input_spec`.
"""

from __future__ import annotations

from typing import Any

from matex_tf.features.dynamics.channels.analysis import MAKES, READS, Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.flow import Flow


def reads_last(layer: Any, axis: int = -1) -> Any:
    """Sets how many channels a layer expects along an axis of its input: for `put` of a `Size`.

    Args:
        layer: of Keras; nothing is set where its `input_spec` is none, or several.
        axis: of the input, as the `input_spec` counts it.
    """

    def put(count: int) -> None:
        if layer.input_spec is not None and not isinstance(layer.input_spec, (list, tuple)):
            layer.input_spec.axes = {**(layer.input_spec.axes or {}), axis: count}

    return put


def is_plain(layer: Any) -> bool:
    """Whether the weights of a layer are what they seem: not quantized, not of low rank."""
    return not getattr(layer, "lora_enabled", False) and not getattr(layer, "quantization_mode", None)


def _dense(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    (flow,) = call.flows
    if not is_plain(layer) or (flow.channels is not None and flow.last is None):
        return analysis.leave_whole(layer, call.flows, call.shapes, "its weights are not those of a plain layer")
    units = analysis.made_by(layer, layer.units)
    analysis.part(layer, layer._kernel, 0, flow.last, READS)
    analysis.part(layer, layer._kernel, 1, units, MAKES)
    analysis.part(layer, layer.bias, 0, units, MAKES)
    analysis.size(units, lambda count: setattr(layer, "units", count))
    analysis.size(flow.last, reads_last(layer))
    if _mixes_units(layer.activation):
        analysis.fix(units)
    return [Flow(shape, len(shape) - 1, units) for shape in call.shapes]


def _mixes_units(activation: Any) -> bool:
    """Whether an activation looks at all units together."""
    name = getattr(activation, "__name__", type(activation).__name__)
    return name in ("softmax", "log_softmax", "sparsemax", "glu", "Softmax")


def _embedding(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    if not is_plain(layer):
        return analysis.leave_whole(layer, call.flows, call.shapes, "its weights are not those of a plain layer")
    for flow in call.flows:
        analysis.fix(flow.channels)  # numbers of rows
    columns = analysis.made_by(layer, layer.output_dim)
    variable = getattr(layer, "_embeddings", None)
    analysis.part(layer, layer.embeddings if variable is None else variable, 1, columns, MAKES)
    analysis.size(columns, lambda count: setattr(layer, "output_dim", count))
    return [Flow(shape, len(shape) - 1, columns) for shape in call.shapes]


def _matmul(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """A product with a variable that a layer of the script's own holds."""
    first, second = call.argument(0, "x1"), call.argument(1, "x2")
    rows = isinstance(first, Flow) and first.last is not None and is_variable(second) and len(second.shape) == 2
    if not rows:
        for flow in call.flows:
            analysis.fix(flow.channels)
    else:
        analysis.part(layer, second, 0, first.last, READS)
    return [Flow.unknown(shape) for shape in call.shapes]


def is_variable(given: Any) -> bool:
    """Whether it is a variable of Keras."""
    import keras

    return isinstance(given, keras.Variable)


def _einsum_dense(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """Where the last axis of the input is summed over, and one new axis comes last."""
    (flow,) = call.flows
    reads, kernel, makes = layer.equation.replace(" ", "").replace("->", ",").split(",")
    plain = len(kernel) == 2 and kernel[0] == reads[-1] and kernel[1] == makes[-1] and reads[:-1] == makes[:-1]
    if not plain or not is_plain(layer) or (flow.channels is not None and flow.last is None):
        return analysis.leave_whole(layer, call.flows, call.shapes, f"its equation is {layer.equation}")
    units = analysis.made_by(layer, int(layer._kernel.shape[1]))
    analysis.part(layer, layer._kernel, 0, flow.last, READS)
    analysis.part(layer, layer._kernel, 1, units, MAKES)
    if layer.bias is not None and len(layer.bias.shape) == 1:
        analysis.part(layer, layer.bias, 0, units, MAKES)
    elif layer.bias is not None:
        analysis.fix(units)

    def put(count: int) -> None:
        for name in ("partial_output_shape", "full_output_shape"):
            if getattr(layer, name, None):
                setattr(layer, name, (*tuple(getattr(layer, name))[:-1], count))

    analysis.size(units, put)
    return [Flow(shape, len(shape) - 1, units) for shape in call.shapes]


LAYERS = {"Dense": _dense, "Embedding": _embedding, "EinsumDense": _einsum_dense}
OPS = {"Matmul": _matmul}
