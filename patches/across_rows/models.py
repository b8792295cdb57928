"""Models that look across the rows of a batch: a line says so, since each rank has only its part of the rows.

A model is tried once, before its first training step: if what it gives for a row changes when other rows are left out,
it looks across rows. That is known already of models that are made of Keras' layers alone, which are not tried.

It is tried as a graph, and only if that has no effects: a layer that runs Python, prints or draws is not run once more.

Relies on: `Model.stateless_call`, `Model.layers` and `Layer` (public), `Functional.operations` (Keras 3.3 to 3.15), the
modules of models and layers (tf_keras 2.16 to 2.21), and
`tensorflow.python.framework.op_def_registry` (private, TensorFlow 2.16 to 2.21).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from matex_tf.core.graph_ops import ops_of
from matex_tf.patches.common import batch_share, keras_lines, log_once, row_slicing

ROWS = 4  # at most, of which the first half is tried alone
#: What the same row may differ by in batches of different sizes, as sums are taken in another order.
_TOLERANCE = 1e-2

#: Ops that count as stateful, and only read or call; what they call is looked at by itself.
_HARMLESS = (
    *("ReadVariableOp", "VarHandleOp", "ResourceGather", "Placeholder", "StatefulPartitionedCall", "While", "If"),
    *("Case", "Assert", "NoOp"),
)
#: Ops that read a table (of `StringLookup`, say), and leave it as it is.
READ_TABLES = tuple(f"LookupTable{what}{version}" for what in ("Find", "Size", "Export") for version in ("", "V2"))

_KERAS = ("keras.src.layers.", "keras.src.ops.nn")
_KERAS_2 = ("tf_keras.src.layers.", "tf_keras.src.engine.input_layer")
_MODELS_2 = ("tf_keras.src.engine.functional", "tf_keras.src.engine.sequential")
#: Layers of Keras 2 that call functions of the script or of TensorFlow.
_CALLING_2 = ("tf_keras.src.layers.core.lambda_layer", "tf_keras.src.layers.core.tf_op_layer")


def tell(model: Any, data: Any, slices: tuple[bool, ...]) -> None:
    """Print a line where a model looks across rows. Changes nothing of the model.

    Args:
        model: built.
        data: a batch of (x, y, sample_weight) or less, as Keras gives it to `train_step`.
        slices: which of its arrays have rows; see `row_slicing.sliceable`.
    """
    if model.run_eagerly or is_of_keras(model) or not any(slices):
        return
    rows = min(ROWS, row_slicing.rows_of(data))  # a rank may have fewer
    if rows > 1 and _looks_across_rows(model, row_slicing.take(data, slices, 0, rows), rows // 2):
        log_once.log(
            f"model {model.name} looks across the rows of a batch: what it gives for a row depends on the other rows, "
            "and each rank has only its part of them, so the answer is not that of one rank. Leave the first axis "
            "out of sums, means and products, such as tf.tensordot(a, b, 2); see docs/patched-steps.md."
        )


def is_of_keras(model: Any) -> bool:
    """Whether a model is made of nothing but Keras' own layers, none of which looks across rows when it predicts."""
    if keras_lines.is_keras_2(model):
        return _is_of_keras_2(model)
    import keras

    if isinstance(model, keras.Sequential):
        parts = model.layers
    elif type(model).__module__.startswith("keras.src.models"):
        parts = getattr(model, "operations", model.layers)
    else:
        return False
    return all(
        is_of_keras(part)
        if isinstance(part, keras.Model)
        else type(part).__module__.startswith(_KERAS) and not isinstance(part, keras.layers.Lambda)
        for part in parts
    )


def _is_of_keras_2(part: Any) -> bool:
    """Whether a model or a layer is made of nothing but Keras 2's own layers, see `is_of_keras`."""
    module = keras_lines.place(type(part).__module__)
    if module in _MODELS_2:
        return all(map(_is_of_keras_2, part.layers))
    return module.startswith(_KERAS_2) and module not in _CALLING_2


def _looks_across_rows(model: Any, data: Any, some: int) -> bool:
    """Whether the first `some` rows give something else without the others; False where that cannot be found out."""
    x = data[0] if isinstance(data, (tuple, list)) else data
    try:
        with batch_share.hidden():
            outputs = _traced(model, x)
            if not has_no_effects(outputs.graph):
                return False
            whole, part = (
                [np.asarray(output, np.float64) for output in outputs(given)]
                for given in (x, row_slicing.take(x, row_slicing.sliceable(x), 0, some))
            )
        return not _same_rows(whole, part)
    except Exception:  # of the script's own code, which may need what only its train_step gives
        return False


def _traced(model: Any, x: Any) -> Any:
    """What a model gives for any number of rows, as a graph that changes nothing of it."""

    def outputs(x: Any) -> list[Any]:
        if keras_lines.is_keras_2(model):
            return tf.nest.flatten(keras_lines.converted(model.__call__, itself=False)(x))
        trained = [variable.value for variable in model.trainable_variables]
        others = [variable.value for variable in model.non_trainable_variables]
        return tf.nest.flatten(model.stateless_call(trained, others, x, return_losses=True)[0])

    specs = tf.nest.map_structure(row_slicing.any_rows, x)
    return tf.function(tf.autograph.experimental.do_not_convert(outputs)).get_concrete_function(specs)


def has_no_effects(graph: Any, besides: Sequence[str] = ()) -> bool:
    """Whether a graph only computes: it runs no Python of the script, prints nothing, and draws no random numbers.

    Args:
        besides: types of ops that it may have all the same.
    """
    known = op_def_registry.get
    return all(
        kind in (*_HARMLESS, *READ_TABLES, *besides)
        or (definition := known(kind)) is None
        or not definition.is_stateful
        for kind in kinds_of_ops(graph)
    )


def kinds_of_ops(graph: Any) -> set[str]:
    """The types of the ops of a graph, and of the functions that it calls."""
    return {node.op for node in ops_of(graph)}


def _same_rows(whole: list[np.ndarray], part: list[np.ndarray]) -> bool:
    """Whether outputs agree in the rows that both have; those that have no rows do not count."""
    for one, other in zip(whole, part, strict=True):
        if one.ndim and other.ndim and one.shape[1:] == other.shape[1:] and len(one) >= len(other):
            scale = np.abs(one).max(initial=1e-12)
            if np.abs(one[: len(other)] - other).max(initial=0) > _TOLERANCE * scale:
                return False
    return True
