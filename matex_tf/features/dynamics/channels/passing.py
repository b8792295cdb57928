"""What works on each entry, or along other axes than that of the channels: activations, dropout, pooling, sums.

Relies on (Keras 3.3 to 3.15): the names in `LAYERS` and `OPS`, `data_format` and `axis` of those that have one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.analysis import OWN, Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.dense import is_variable
from matex_tf.features.dynamics.channels.flow import Flow


def _same(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """The first tensor, each entry by itself; what else comes in, such as a mask, has no channels."""
    flow, *others = call.flows
    for other in others:
        analysis.fix(other.channels)
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


def _activation(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    name = getattr(layer.activation, "__name__", "")
    if name in ("softmax", "log_softmax", "sparsemax", "glu"):
        return _mixing(analysis, layer, call)
    return _same(analysis, layer, call)


def _mixing(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """A softmax and its like: along the channels it is over all of them."""
    flow = call.flows[0]
    axis = getattr(layer, "axis", -1)
    axes = {one % len(flow.shape) for one in (axis if isinstance(axis, (list, tuple)) else [axis])}
    if flow.axis in axes:
        analysis.fix(flow.channels)
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


def _prelu(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    flow = call.flows[0]
    if layer.alpha.shape[flow.axis - 1] == 1 and flow.shape[flow.axis] != 1:  # one for all channels
        return _same(analysis, layer, call)
    analysis.part(layer, layer.alpha, flow.axis - 1, flow.channels, OWN)
    if layer.input_spec is not None and flow.axis in (layer.input_spec.axes or {}):
        analysis.size(flow.channels, lambda count: layer.input_spec.axes.update({flow.axis: count}))
    return _same(analysis, layer, call)


def _pooling(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """Pooling, padding, cropping, upsampling: along all axes but that of the channels."""
    flow, (shape,) = call.flows[0], call.shapes
    first = getattr(layer, "data_format", "channels_last") == "channels_first"
    if flow.channels is not None and flow.axis != (1 if first else len(flow.shape) - 1):
        return analysis.leave_whole(layer, call.flows, call.shapes, "its channels come along another axis")
    return [Flow(shape, 1 if first else len(shape) - 1, flow.channels)]


def _merge(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """Add and its like: channels that meet are tied."""
    (shape,) = call.shapes
    return [_met(analysis, list(call.flows), [], layer, shape)]


def _meet(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    """Tie channels that meet in an op, one of whose operands may be a number, an array or a variable."""
    given = [call.argument(place, name) for place, name in enumerate(("x1", "x2"))]
    flows = [one for one in given if isinstance(one, Flow)]
    (shape,) = call.shapes
    return [_met(analysis, flows, [one for one in given if not isinstance(one, Flow)], operation, shape)]


def _met(analysis: Analysis, flows: list[Flow], others: list[Any], layer: Any, shape: Any) -> Flow:
    """Tensors that are broadcast against each other."""
    wide = [flow for flow in flows if flow.channels is not None]
    if not wide:
        return Flow.unknown(shape)
    place = min(flow.axis - len(flow.shape) for flow in wide)  # counted from the end
    main = max(wide, key=lambda flow: len(flow.channels))  # type: ignore[arg-type]
    known = all(flow.axis - len(flow.shape) == place for flow in wide)
    for flow in flows:
        size = flow.shape[place] if len(flow.shape) >= -place else 1
        if flow is main:
            continue
        if flow.channels is not None and len(flow.channels) == len(main.channels) and known:  # type: ignore[arg-type]
            analysis.tie(main.channels, flow.channels)
        elif flow.channels is not None:  # one that is spread over all, or channels along another axis
            analysis.fix(flow.channels)
            if not known:
                analysis.fix(main.channels)
        elif size != 1:
            analysis.fix(main.channels)
    for other in others:
        size = _size(other, place)
        if is_variable(other) and size == len(main.channels) and size != 1:  # type: ignore[arg-type]
            analysis.part(layer, other, len(other.shape) + place, main.channels, OWN)
        elif size != 1:
            analysis.fix(main.channels)
    return Flow(tuple(shape), len(shape) + place, main.channels) if known else Flow.unknown(shape)


def _size(given: Any, place: int) -> int | None:
    """The size of an operand along an axis, counted from the end; 1 where it is broadcast along it."""
    shape = tuple(given.shape) if hasattr(given, "shape") else np.shape(given)
    return shape[place] if len(shape) >= -place else 1


def _reduced(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    """A mean, sum or maximum along axes other than that of the channels."""
    (flow,), (shape,) = call.flows, call.shapes
    axes = operation.axis if isinstance(operation.axis, (list, tuple)) else [operation.axis]
    if flow.channels is None or None in axes or flow.axis in {axis % len(flow.shape) for axis in axes}:
        analysis.fix(flow.channels)
        return [Flow.unknown(shape)]
    gone = 0 if operation.keepdims else sum(axis % len(flow.shape) < flow.axis for axis in axes)
    return [Flow(shape, flow.axis - gone, flow.channels)]


def _compared(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    """Comparisons, as for masks: what comes out has no channels."""
    for flow in call.flows:
        analysis.fix(flow.channels)
    return [Flow.unknown(shape) for shape in call.shapes]


def _named(handler: Any, names: str) -> dict[str, Any]:
    return {name: handler for name in names.split()}


def _each(handler: Any, names: str) -> dict[str, Any]:
    return {f"{name}{rank}D": handler for name in names.split() for rank in (1, 2, 3)}


LAYERS = {
    **_named(_same, "ReLU LeakyReLU ELU Dropout GaussianDropout GaussianNoise AlphaDropout Identity Masking Rescaling"),
    **_named(_same, "ActivityRegularization StochasticDepth"),
    **_named(_activation, "Activation"),
    **_named(_mixing, "Softmax UnitNormalization"),
    **_named(_prelu, "PReLU"),
    **_named(_merge, "Add Subtract Multiply Average Maximum Minimum"),
    **_each(_pooling, "MaxPooling AveragePooling GlobalMaxPooling GlobalAveragePooling SpatialDropout ZeroPadding"),
    **_each(_pooling, "Cropping UpSampling"),
}
OPS = {
    **_named(
        _same,
        "Relu Relu6 Sigmoid Softplus Softsign SoftShrink Silu Squareplus LogSigmoid LeakyRelu HardSigmoid HardSilu Elu "
        "Selu Gelu Celu TanhShrink HardTanh HardShrink Threshold Tanh Exp Expm1 Log Log1p Sqrt Rsqrt Square Absolute "
        "Abs Negative Sin Cos Clip Sign Reciprocal Erf Cast StopGradient Copy Identity NanToNum",
    ),
    **_named(_mixing, "Softmax LogSoftmax Sparsemax"),
    **_named(_meet, "Add Subtract Multiply Divide TrueDivide Maximum Minimum"),
    **_named(_compared, "Equal NotEqual Greater GreaterEqual Less LessEqual LogicalNot LogicalAnd LogicalOr Any All"),
    **_named(_reduced, "Mean Sum Max Min Amax Amin"),
}
