"""An op of a graph once more, on other inputs, in a graph that is made.

TensorFlow's own way to make an op also notes which lines of Python it comes from, and looks for gradients and contexts
that a script may have set. That takes three times as long as making the op, and a step has a thousand of them.

Relies on (TensorFlow 2.13 to 2.21, private; without `Operation._from_c_op` TensorFlow's own way is taken): `FuncGraph`
and its `capture`, `unique_name`, `_create_op_internal`, `_c_graph`, `_control_dependencies_for_inputs`,
`_record_op_seen_by_control_dependencies`, `_apply_device_functions`, `_colocation_stack`; `Operation._from_c_op` and
`_c_op`, `Tensor._as_tf_output`, `ops._reconstruct_sequence_inputs`, `op_def_registry.get`; and `TF_NewOperation`,
`TF_AddInput`, `TF_AddInputList`, `TF_AddControlInput`, `TF_SetAttrValueProto` and `TF_FinishOperation` of
`pywrap_tf_session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as tf_ops


def again(graph: Any, op: Any, inputs: Sequence[Any], attributes: dict[str, Any], name: str) -> Any:
    """The op of this graph that does what another one does, on these inputs. It waits for the control dependencies that
    are set.

    Args:
        attributes: AttrValues by their names.
        name: of the op; a number follows if it is taken.

    Raises:
        ValueError: the op cannot have such inputs.
    """
    if graph._colocation_stack or not hasattr(tf_ops.Operation, "_from_c_op"):
        types = [tensor.dtype for tensor in op.outputs]
        return graph._create_op_internal(op.type, list(inputs), types, attrs=attributes, name=name, op_def=op.op_def)
    given = [one if getattr(one, "graph", None) is graph else graph.capture(one) for one in inputs]
    waits = graph._control_dependencies_for_inputs({one.op for one in given})
    with graph._c_graph.get() as c_graph:
        made = c_api.TF_NewOperation(c_graph, op.type, graph.unique_name(name))
    for one in tf_ops._reconstruct_sequence_inputs(op_def_registry.get(op.type), given, attributes):
        if isinstance(one, (list, tuple)):
            c_api.TF_AddInputList(made, [each._as_tf_output() for each in one])
        else:
            c_api.TF_AddInput(made, one._as_tf_output())
    for before in waits:
        c_api.TF_AddControlInput(made, before._c_op)
    for key, value in attributes.items():
        c_api.TF_SetAttrValueProto(made, key, value.SerializeToString())
    try:
        result = tf_ops.Operation._from_c_op(c_api.TF_FinishOperation(made), graph)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from error
    graph._record_op_seen_by_control_dependencies(result)
    graph._apply_device_functions(result)
    return result
