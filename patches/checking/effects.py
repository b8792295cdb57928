"""What a traced step does besides computing, and putting back the variables that it changes.

Relies on (TensorFlow 2.16 to 2.21): `ConcreteFunction.variables`, `captured_inputs` and `graph`, public;
`tensorflow.python.framework.op_def_registry` and `_handle_data` of the handle of a variable, private. `ReadVariableOp`
gives a variable's own memory, and updates of variables leave memory alone that is held elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from matex_tf.core.graph_ops import ops_of
from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows.models import READ_TABLES

#: Ops that count as stateful, and only call, check or stand for something.
_HARMLESS = {
    "StatefulPartitionedCall",
    "While",
    "If",
    "Case",
    "Placeholder",
    "Assert",
    "NoOp",
    "Timestamp",
    *READ_TABLES,
}

#: Ops that read and change variables, generators among them.
_OF_VARIABLES = re.compile(
    "ReadVariableOp|Assign(Add|Sub)?VariableOp|VariableShape|VarIsInitializedOp|ResourceGather(Nd)?"
    "|ResourceStridedSliceAssign|ResourceScatter.*|Resource(Sparse)?Apply.*|RngReadAndSkip|RngSkip|StatefulUniform.*"
    "|StatefulStandardNormal.*|StatefulTruncatedNormal|StatefulRandomBinomial"
)

_WORDS = {
    "EagerPyFunc": "it runs Python (tf.py_function)",
    "PyFunc": "it runs Python (tf.numpy_function)",
    "PrintV2": "it prints (tf.print)",
}


def obstacle(function: Any) -> str:
    """Why a traced step cannot be run once more without a trace, in words; "" where it can.

    Args:
        function: a ConcreteFunction.
    """
    try:
        nodes = ops_of(function.graph)
    except ValueError:  # it does not fit into a message
        return "its graph has more than 2 GB"
    for node in nodes:
        definition = op_def_registry.get(node.op)
        if definition is None or node.op in _HARMLESS or _OF_VARIABLES.fullmatch(node.op):
            continue
        if node.op == "PyFunc" and tf_op.OP_NAME in node.name:
            continue
        of_resource = any(one.type == tf.resource.as_datatype_enum for one in definition.input_arg)
        if definition.is_stateful or of_resource:
            return _WORDS.get(node.op, f"it has an effect of its own ({node.op})")
    known = {id(variable.handle) for variable in function.variables}
    if any(_is_variable(one) and id(one) not in known for one in function.captured_inputs):
        return "it uses a variable that nobody holds"
    return ""


def _is_variable(captured: Any) -> bool:
    """Whether what a function has captured is the handle of a variable; one of a table says nothing of a shape."""
    return captured.dtype == tf.resource and getattr(captured, "_handle_data", None) is not None


def kept(function: Any) -> Callable[[], None]:
    """What gives every variable of a traced step the value back that it has now, to the bit."""
    before = [
        (variable.handle, tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))
        for variable in function.variables
    ]

    def put_back() -> None:
        for handle, value in before:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    return put_back


def nudge(function: Any, by: float, random: np.random.Generator) -> None:
    """Change every number of the weights of a traced step by a part of it, up or down.

    Args:
        function: a ConcreteFunction.
        by: the part.
        random: decides which go up.
    """
    for variable in function.variables:
        if variable.trainable and variable.dtype.is_floating:
            signs = random.choice(np.array([-by, by], np.float32), variable.shape.as_list())
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            nudged = value + value * tf.cast(signs, variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=nudged)
