"""Recurrent layers: LSTM, GRU, SimpleRNN, alone or in both directions.

A unit has a column in each gate: a kernel (d, g·u) holds g gates of u columns side by side.

Relies on (Keras 3.3 to 3.15): `cell`, `state_size`; of the cell `units`, `state_size`, `output_size`, `kernel`,
`recurrent_kernel`, `bias`; of Bidirectional `forward_layer`, `backward_layer`, `merge_mode`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.analysis import MAKES, READS, Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.flow import Flow

_GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}


def _recurrent(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    if layer.stateful:
        return analysis.leave_whole(layer, call.flows, call.shapes, "it is stateful")
    sequences, *others = call.flows
    units = _units(analysis, layer, sequences)
    for flow in others:
        if len(flow.shape) == 2 and flow.shape[-1] == len(units) and flow.channels is not None:
            analysis.tie(units, flow.channels)  # an initial state
        else:
            analysis.fix(flow.channels)
            if len(flow.shape) == 2 and flow.shape[-1] == len(units):
                analysis.fix(units)
    return [Flow(shape, len(shape) - 1, units) for shape in call.shapes]


def _units(analysis: Analysis, layer: Any, sequences: Flow) -> np.ndarray:
    cell = layer.cell
    gates = next(_GATES[base.__name__] for base in type(layer).__mro__ if base.__name__ in _GATES)
    units = analysis.made_by(cell, cell.units)
    columns = np.tile(units, gates)
    analysis.part(layer, cell.kernel, 0, sequences.last, READS)
    analysis.part(layer, cell.kernel, 1, columns, MAKES)
    analysis.part(layer, cell.recurrent_kernel, 0, units, READS)
    analysis.part(layer, cell.recurrent_kernel, 1, columns, MAKES)
    analysis.part(layer, cell.bias, -1, columns, MAKES)
    if sequences.channels is not None and sequences.last is None:
        analysis.fix(sequences.channels)

    def put(count: int) -> None:
        several = isinstance(cell.state_size, (list, tuple))
        cell.units = cell.output_size = count
        cell.state_size = [count] * len(cell.state_size) if several else count
        layer.state_size = [count] * len(layer.state_size)

    analysis.size(units, put)
    return units


def _bidirectional(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    forward, backward = layer.forward_layer, layer.backward_layer
    kinds = [type(one).__name__ for one in (forward, backward)]
    states = layer.return_state or call.argument(1, "initial_state") is not None or forward.stateful
    if any(kind not in _GATES for kind in kinds) or states:
        return analysis.leave_whole(
            layer, call.flows, call.shapes, f"it is one of {' and '.join(kinds)}, or has states"
        )
    flow, *masks = call.flows
    for mask in masks:
        analysis.fix(mask.channels)
    analysis.calls += [(one, call) for one in (forward, backward)]
    there, back = (_units(analysis, one, flow) for one in (forward, backward))
    analysis.tie(there, back)  # Bidirectional says that its output is twice as wide as one of them
    if layer.merge_mode == "concat":
        there = np.concatenate([there, back])
    return [Flow(shape, len(shape) - 1, there) for shape in call.shapes]


LAYERS = {**dict.fromkeys(_GATES, _recurrent), "Bidirectional": _bidirectional}
