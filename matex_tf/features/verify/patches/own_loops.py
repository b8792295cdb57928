"""Writes down steps of a loop of the script's own where a Keras optimizer has applied gradients; see `recorder`.

Relies on (Keras 3.3 to 3.15): `BaseOptimizer.apply`, public.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.exchange import tf_op
from matex_tf.features.verify.patches import recorder
from matex_tf.patches.checking import precision
from matex_tf.patches.common import keras_lines, wrapping
from matex_tf.state import run_state


def install(module: ModuleType) -> None:
    """Patch keras.src.optimizers.base_optimizer."""
    owner = wrapping.require(module, "BaseOptimizer")
    owner.apply = _applying(owner.apply)


def nudge(variables: Iterable[Any], step: Any) -> None:
    """Nudge weights after a step of a loop of the script's own, also in a graph.

    Args:
        variables: the weights. step: int scalar, other each time.
    """
    for place, variable in enumerate(variables if run_state.part(recorder.Recorder).nudge else ()):
        seed = tf.stack([tf.constant(run_state.part(recorder.Recorder).nudge + 1000 * place), tf.cast(step, tf.int32)])
        random = tf.random.stateless_uniform(variable.shape, seed, -1.0, 1.0, tf.float64)
        value = tf.cast(tf.convert_to_tensor(variable), tf.float64) * (1 + precision.current().nudge * random)
        variable.assign(tf.cast(value, tf.as_dtype(variable.dtype)))


def add(known: list[Any], slots: Iterable[Any], step: Any) -> None:
    """Record what an optimizer has applied.

    Args:
        known: what it trains. slots: its own variables. step: see `nudge`.
    """
    own = [*known, *slots]
    names = recorder.unique(map(keras_lines.path, own))  # a loop may train variables of TensorFlow
    nudge(known, step)

    def write(*values: np.ndarray) -> None:
        if not tf_op.is_trial():  # else the step is held against one rank, and put back
            recorder.add_step(names, values, len(known))

    tensors = [tf.convert_to_tensor(variable) for variable in own]
    tf.numpy_function(write, tensors, [], stateful=True, name=tf_op.OP_NAME)


def _applying(original: Any) -> Any:
    """`apply` of an optimizer, after which its variables are recorded where a loop of the script's own calls it."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        result = original(self, grads, trainable_variables)
        if not recorder.in_keras:
            known = self._trainable_variables if trainable_variables is None else trainable_variables
            add(list(known), self.variables, self.iterations)
        return result

    return tf.autograph.experimental.do_not_convert(apply)
