"""MultiHeadAttention: its heads are channels of their own.

A head has a slice of the kernels of query, key and value (d, H, k), and of that of the output (H, v, d).

Relies on (Keras 3.3 to 3.15, private): `_num_heads`, `_output_shape`, `_query_dense`, `_key_dense`, `_value_dense`,
`_gate_dense`, `_output_dense`, and of these `_kernel`, `bias`, `partial_output_shape`, `full_output_shape`.
"""

from __future__ import annotations

from typing import Any

from matex_tf.features.dynamics.channels.analysis import MAKES, READS, Analysis
from matex_tf.features.dynamics.channels.call import Call
from matex_tf.features.dynamics.channels.dense import is_plain
from matex_tf.features.dynamics.channels.flow import Flow


def _attention(analysis: Analysis, layer: Any, call: Call) -> list[Flow]:
    query, value = call.argument(0, "query"), call.argument(1, "value")
    key = call.argument(2, "key")
    key = value if key is None else key
    output = layer._output_dense
    plain = all(isinstance(one, Flow) and (one.channels is None or one.last is not None) for one in (query, value, key))
    projections = {"_query_dense": query, "_key_dense": key, "_value_dense": value, "_gate_dense": query}
    held = {name: getattr(layer, name) for name in projections if getattr(layer, name, None) is not None}
    if not plain or len(output._kernel.shape) != 3 or not all(map(is_plain, [*held.values(), output])):
        return analysis.leave_whole(layer, call.flows, call.shapes, "its weights or inputs are not the usual ones")
    heads = analysis.made_by(layer, layer._num_heads, "heads")
    for flow in call.flows:
        if not any(flow is one for one in (query, value, key)):
            analysis.fix(flow.channels)  # masks
    for name, dense in held.items():
        analysis.part(layer, dense._kernel, 0, projections[name].last, READS)
        analysis.part(layer, dense._kernel, 1, heads, MAKES)
        analysis.part(layer, dense.bias, 0, heads, MAKES)
        analysis.size(heads, _puts(dense, -2))
    columns = analysis.made_by(layer, int(output._kernel.shape[2]), "output")
    analysis.part(layer, output._kernel, 0, heads, READS)
    analysis.part(layer, output._kernel, 2, columns, MAKES)
    analysis.part(layer, output.bias, 0, columns, MAKES)
    analysis.size(heads, lambda count: setattr(layer, "_num_heads", count))
    analysis.size(columns, _puts(output, -1))
    if layer._output_shape is None:  # as wide as the query
        analysis.tie(columns, query.last)
    else:
        analysis.size(columns, lambda count: setattr(layer, "_output_shape", (count,)))
    first, *scores = call.shapes
    if scores:
        analysis.fix(heads)
    return [Flow(first, len(first) - 1, columns), *map(Flow.unknown, scores)]


def _puts(dense: Any, place: int) -> Any:
    """Sets a size that an EinsumDense keeps."""

    def put(count: int) -> None:
        for name in ("partial_output_shape", "full_output_shape"):
            if getattr(dense, name, None):
                shape = list(getattr(dense, name))
                shape[place] = count
                setattr(dense, name, tuple(shape))

    return put


LAYERS = {"MultiHeadAttention": _attention}
