"""Computing that is emulated, for hosts that are: layers that wait in front of a model's own, as long as an accelerator
that the host does not have would compute. What they leave of the cores is there for the exchange.

Backward computing takes twice as long as forward; each of the two is spread evenly over the layers, so that the
gradients of the last layers are there first.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np


def slowed(model: Any, seconds: float) -> Any:
    """The model, a Sequential, with forward and backward passes that take so much longer; the same object for 0."""
    import tensorflow as tf
    from tensorflow import keras

    if not seconds:
        return model
    each = seconds / (3 * len(model.layers))

    def waits(tensor: tf.Tensor, how_long: float) -> tf.Tensor:
        def wait(value: np.ndarray) -> np.ndarray:
            time.sleep(how_long)
            return value

        # Not stateful: TensorFlow would have everything stateful, exchanges among it, wait for all of these.
        after = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
        after.set_shape(tensor.shape)
        return after

    @tf.custom_gradient
    def computing(tensor: tf.Tensor) -> Any:
        return waits(tensor, each), lambda upstream: waits(upstream, 2 * each)

    class Computing(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return computing(inputs)

    body = [part for layer in model.layers for part in (layer, Computing())]
    return keras.Sequential([keras.Input(model.input_shape[1:]), *body])
