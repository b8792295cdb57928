"""Normalizations: of each channel by itself, or of all channels of a row together.

Relies on (Keras 3.3 to 3.15): `axis`, `gamma`, `beta`, `moving_mean`, `moving_variance`, `scale`, `input_spec`.
"""

from __future__ import annotations

from typing import Any

from matex_tf.dynamics.channels.analysis import OWN, Analysis
from matex_tf.dynamics.channels.call import Call
from matex_tf.dynamics.channels.dense import reads_last
from matex_tf.dynamics.channels.flow import Flow


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


LAYERS = {
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _together,
    "RMSNormalization": _together,
}
