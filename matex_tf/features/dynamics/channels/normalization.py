"""Normalizations and scales: of each channel by itself, or of all channels of a row together.

Relies on (Keras 3.3 to 3.15): `axis`, `groups`, `gamma`, `beta`, `moving_mean`, `moving_variance`, `scale`,
`input_spec`; of `keras.applications.convnext` the layers `LayerScale`, with `gamma` and `projection_dim`, and
`StochasticDepth`.
"""

from __future__ import annotations

from typing import Any

from matex_tf.features.dynamics.channels.analysis import OWN, Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.dense import reads_last
from matex_tf.features.dynamics.channels.flow import Flow


def _batch_normalization(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    flow = call.flows[0]
    if flow.channels is not None and layer.axis % len(flow.shape) != flow.axis:
        return analysis.leave_whole(layer, call.flows, call.shapes, "it normalizes along another axis")
    for name in ("gamma", "beta", "moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev"):
        if len(getattr(getattr(layer, name, None), "shape", ())) == 1:
            analysis.part(layer, getattr(layer, name), 0, flow.channels, OWN)
    analysis.size(flow.channels, reads_last(layer, layer.axis))
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


def _together(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """LayerNormalization and RMSNormalization."""
    flow = call.flows[0]
    axes = {axis % len(flow.shape) for axis in (layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis])}
    if flow.channels is not None and axes != {flow.axis}:
        return analysis.leave_whole(layer, call.flows, call.shapes, "it normalizes along several axes, or another one")
    for name in ("gamma", "beta", "scale"):
        if len(getattr(getattr(layer, name, None), "shape", ())) == 1:
            analysis.part(layer, getattr(layer, name), 0, flow.channels, OWN)
    analysis.across(flow.channels)
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


def _in_groups(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """GroupNormalization: of each channel by itself where there are as many groups."""
    flow = call.flows[0]
    if flow.channels is not None and layer.axis % len(flow.shape) != flow.axis:
        return analysis.leave_whole(layer, call.flows, call.shapes, "it normalizes along another axis")
    for variable in (layer.gamma, layer.beta):
        analysis.part(layer, variable, 0, flow.channels, OWN)
    if flow.channels is not None and layer.groups == len(flow.channels):
        analysis.size(flow.channels, lambda count: setattr(layer, "groups", count))
    else:
        analysis.tie_groups(flow.channels, layer.groups)
        analysis.across(flow.channels)
    analysis.size(flow.channels, reads_last(layer, layer.axis))
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


def _adapted(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    """Normalization, by constants that were worked out before training: mostly of inputs, which no layer makes."""
    flow = call.flows[0]
    if flow.channels is not None and any(axis % len(flow.shape) == flow.axis for axis in layer.axis):
        return analysis.leave_whole(layer, call.flows, call.shapes, "its constants are those of certain channels")
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


def _layer_scale(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    (flow,) = call.flows
    if flow.channels is not None and flow.last is None:
        return analysis.leave_whole(layer, call.flows, call.shapes, "it scales along another axis")
    analysis.part(layer, layer.gamma, 0, flow.last, OWN)
    analysis.size(flow.last, lambda count: setattr(layer, "projection_dim", count))
    return [Flow(shape, flow.axis, flow.channels) for shape in call.shapes]


LAYERS = {
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _together,
    "RMSNormalization": _together,
    "GroupNormalization": _in_groups,
    "Normalization": _adapted,
    "LayerScale": _layer_scale,
}
