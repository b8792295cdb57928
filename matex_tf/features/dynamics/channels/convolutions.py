"""Convolutions of one to three dimensions: plain, in groups, transposed, depthwise and separable.

Relies on (Keras 3.3 to 3.15): `filters`, `groups`, `_kernel`, `kernel`, `depthwise_kernel`, `pointwise_kernel`, `bias`,
`depth_multiplier`, `data_format`, `input_spec`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.analysis import MAKES, OWN, READS, Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.dense import is_plain, reads_last
from matex_tf.features.dynamics.channels.flow import Flow


def _axis(layer: Any, shape: Any) -> int:
    """Where the channels of a layer lie."""
    return 1 if layer.data_format == "channels_first" else len(shape) - 1


def _read(layer: Any, call: Call) -> np.ndarray | None:
    """The channels that a layer reads; raises LookupError where they lie along another axis."""
    (flow,) = call.flows
    if flow.channels is not None and flow.axis != _axis(layer, flow.shape):
        raise LookupError("its channels come along another axis")
    return flow.channels


def _known(handler: Any) -> Any:
    def careful(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
        try:
            if not is_plain(layer):
                raise LookupError("its weights are not those of a plain layer")
            return handler(analysis, layer, call)
        except LookupError as reason:
            return analysis.leave_whole(layer, call.flows, call.shapes, str(reason.args[0]))

    return careful


def _made(analysis: Analysis, layer: Any, call: Call) -> tuple[np.ndarray, list[Flow]]:
    filters = analysis.made_by(layer, layer.filters)
    analysis.part(layer, layer.bias, 0, filters, MAKES)
    analysis.size(filters, lambda count: setattr(layer, "filters", count))
    return filters, [Flow(shape, _axis(layer, shape), filters) for shape in call.shapes]


def _expects(analysis: Analysis, layer: Any, channels: np.ndarray | None) -> None:
    analysis.size(channels, reads_last(layer, 1 if layer.data_format == "channels_first" else -1))


@_known
def _conv(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    channels = _read(layer, call)
    if layer.groups != 1 and layer._kernel.shape[-2] == 1:
        return _conv_by_channel(analysis, layer, call, channels)
    filters, flows = _made(analysis, layer, call)
    analysis.tie_groups(filters, layer.groups)
    analysis.part(layer, layer._kernel, -2, analysis.tie_groups(channels, layer.groups), READS)
    analysis.part(layer, layer._kernel, -1, filters, MAKES)
    _expects(analysis, layer, channels)
    return flows


def _conv_by_channel(analysis: Analysis, layer: Any, call: Call, channels: np.ndarray | None) -> list[Flow]:
    """A convolution in as many groups as it reads channels."""
    each = layer.filters // layer.groups

    def resize(count: int) -> None:
        layer.groups, layer.filters = count, count * each

    analysis.size(channels, resize)
    return _each_by_itself(analysis, layer, call, channels, each, layer._kernel, -1)


def _each_by_itself(
    analysis: Analysis, layer: Any, call: Call, channels: np.ndarray | None, each: int, kernel: Any, axis: int
) -> list[Flow]:
    """A convolution that makes `each` outputs of each channel that it reads, with a kernel that has its outputs along
    the last axis, or what it reads along the one before."""
    if channels is None:
        return [Flow.unknown(shape) for shape in call.shapes]
    several = np.repeat(channels, each)
    analysis.part(layer, kernel, axis, several if axis == -1 else channels, OWN)
    analysis.part(layer, layer.bias, 0, several, OWN)
    _expects(analysis, layer, channels)
    return [Flow(shape, _axis(layer, shape), several) for shape in call.shapes]


@_known
def _conv_transpose(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    channels = _read(layer, call)
    filters, flows = _made(analysis, layer, call)
    analysis.part(layer, layer.kernel, -1, channels, READS)
    analysis.part(layer, layer.kernel, -2, filters, MAKES)
    _expects(analysis, layer, channels)
    return flows


@_known
def _depthwise(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    return _each_by_itself(analysis, layer, call, _read(layer, call), layer.depth_multiplier, layer.kernel, -2)


@_known
def _separable(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    channels = _read(layer, call)
    filters, flows = _made(analysis, layer, call)
    analysis.part(layer, layer.depthwise_kernel, -2, channels, OWN)
    if channels is not None:
        analysis.part(layer, layer.pointwise_kernel, -2, np.repeat(channels, layer.depth_multiplier), READS)
    analysis.part(layer, layer.pointwise_kernel, -1, filters, MAKES)
    _expects(analysis, layer, channels)
    return flows


def _each(names: str, handler: Any, ranks: str = "123") -> dict[str, Any]:
    return {names.format(rank): handler for rank in ranks}


LAYERS = {
    **_each("Conv{}D", _conv),
    **_each("Conv{}DTranspose", _conv_transpose),
    **_each("DepthwiseConv{}D", _depthwise),
    **_each("SeparableConv{}D", _separable),
}
