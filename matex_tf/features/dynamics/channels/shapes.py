"""What gives tensors another shape: Flatten, Reshape, Permute, Concatenate, what takes a part, TimeDistributed.

Relies on (Keras 3.3 to 3.15): `target_shape`, `dims`, `axis`, `data_format`, `newshape`, `axes` of the layers and ops
below; `Wrapper.layer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.analysis import Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.flow import Flow, reshaped


def _flatten(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    (flow,), (shape,) = call.flows, call.shapes
    if flow.channels is None:
        return [Flow.unknown(shape)]
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        return analysis.leave_whole(layer, call.flows, call.shapes, "it flattens channels_first")
    found = reshaped(flow, shape)
    if found is None:
        return analysis.leave_whole(layer, call.flows, call.shapes, "sizes of what it flattens are not known")
    analysis.size(found.channels, _expects(layer))
    return [found]


def _expects(layer: Any) -> Any:
    """Flatten notes the sizes of its input, and checks the next one against them; they may change."""

    def put(count: int) -> None:
        if getattr(layer, "input_spec", None) is not None and layer.input_spec.axes:
            layer.input_spec.axes = {}

    return put


def _reshape(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    (flow,), (shape,) = call.flows, call.shapes
    if flow.channels is None:
        return [Flow.unknown(shape)]
    found = reshaped(flow, shape)
    if found is None or found.channels is None:
        return analysis.leave_whole(layer, call.flows, call.shapes, "it lays channels along several axes")
    place = found.axis - 1
    if layer.target_shape[place] != -1:

        def put(count: int) -> None:
            layer.target_shape = tuple(count if i == place else size for i, size in enumerate(layer.target_shape))

        analysis.size(found.channels, put)
    return [found]


def _reshape_op(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    """A size that stands in the script's code cannot be changed, unless it is -1."""
    (flow,), (shape,) = call.flows, call.shapes
    found = None if flow.channels is None else reshaped(flow, shape)
    if found is None or tuple(operation.newshape)[found.axis] != -1:
        analysis.fix(flow.channels)
        return [Flow.unknown(shape)]
    return [found]


def _permute(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    (flow,), (shape,) = call.flows, call.shapes
    return [Flow(shape, 1 + tuple(layer.dims).index(flow.axis), flow.channels)]


def _transpose(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    (flow,), (shape,) = call.flows, call.shapes
    order = operation.axes or tuple(reversed(range(len(shape))))
    if flow.channels is None or order[0] % len(shape) != 0:
        analysis.fix(flow.channels)
        return [Flow.unknown(shape)]
    return [Flow(shape, [axis % len(shape) for axis in order].index(flow.axis), flow.channels)]


def _concatenate(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    (shape,), flows = call.shapes, list(call.flows)
    axis = layer.axis % len(shape)
    known = [flow for flow in flows if flow.channels is not None]
    if not known:
        return [Flow.unknown(shape)]
    if any(flow.axis != axis for flow in known):  # along another axis: the channels of all are the same
        if len(known) == len(flows) and len({flow.axis for flow in known}) == 1:
            for flow in known[1:]:
                analysis.tie(known[0].channels, flow.channels)
            return [Flow(shape, known[0].axis, known[0].channels)]
        for flow in known:
            analysis.fix(flow.channels)
        return [Flow.unknown(shape)]
    parts = []
    for place, flow in enumerate(flows):
        if flow.channels is None and flow.shape[axis] is None:
            for other in known:
                analysis.fix(other.channels)
            return [Flow.unknown(shape)]
        if flow.channels is None:  # channels of others: they stay, and keep their places
            stay = analysis.made_by(layer, int(flow.shape[axis]), f"from input {place}")
            analysis.fix(stay)
            parts.append(stay)
        else:
            parts.append(flow.channels)
    return [Flow(shape, axis, np.concatenate(parts))]


def _get_item(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    """A part of a tensor along other axes than that of its channels, as in `x[:, 0]`."""
    (flow,), (shape,) = call.flows, call.shapes
    key = call.argument(1, "key")
    keys = list(key) if isinstance(key, (tuple, list)) else [key]
    plain = flow.channels is not None and all(isinstance(one, (int, slice)) for one in keys)
    if not plain or (len(keys) > flow.axis and keys[flow.axis] != slice(None)):
        analysis.fix(flow.channels)
        return [Flow.unknown(shape)]
    gone = sum(isinstance(one, int) for one in keys[: flow.axis])
    return [Flow(shape, flow.axis - gone, flow.channels)]


def _expand_dims(analysis: Analysis, operation: Any, call: Call) -> list[Flow]:
    (flow,), (shape,) = call.flows, call.shapes
    axes = operation.axis if isinstance(operation.axis, (list, tuple)) else [operation.axis]
    axis = flow.axis
    for one in sorted(one % len(shape) for one in axes):
        axis += one <= axis
    return [Flow(shape, axis, flow.channels)]


def _time_distributed(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    from matex_tf.features.dynamics.channels import trace

    flow, (shape,) = call.flows[0], call.shapes
    if flow.channels is not None and flow.axis == 1:
        return analysis.leave_whole(layer, call.flows, call.shapes, "its channels come along the axis of time")
    step = Flow((flow.shape[0], *flow.shape[2:]), flow.axis - 1, flow.channels)
    (found,) = trace.apply(analysis, layer.layer, call.inside([step], [(shape[0], *shape[2:])]))
    return [Flow(shape, found.axis + 1, found.channels)]


LAYERS = {
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Permute": _permute,
    "Concatenate": _concatenate,
    "RepeatVector": lambda analysis, layer, call: [call.flows[0].shaped(shape) for shape in call.shapes],
    "TimeDistributed": _time_distributed,
}
OPS = {
    "Reshape": _reshape_op,
    "Transpose": _transpose,
    "Concatenate": _concatenate,
    "GetItem": _get_item,
    "ExpandDims": _expand_dims,
}
