"""Computing that is emulated, for hosts that are: layers that wait in front of a model's own, as long as an accelerator
that the host does not have would compute. What they leave of the cores is there for the exchange.

Backward computing takes twice as long as forward; each of the two is spread evenly over the layers, so that the
gradients of the last layers are there first.

What an accelerator has to do is queued, and it goes from one layer to the next by itself: a layer ends so long after
the one before, and not after the time when the host, whose cores are busy, has noticed that.
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
    end = 0.0  # of the layer before

    def waits(tensor: tf.Tensor, how_long: float, first: bool = False) -> tf.Tensor:
        def wait(value: np.ndarray) -> np.ndarray:
            nonlocal end
            now = time.perf_counter()
            end = (now if first else end) + how_long
            time.sleep(max(0.0, end - now))
            return value

        # Not stateful: TensorFlow would have everything stateful, exchanges among it, wait for all of these.
        after = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
        after.set_shape(tensor.shape)
        return after

    class Computing(keras.layers.Layer):
        def __init__(self, first: bool):
            super().__init__()
            self.first = first

        def call(self, inputs: Any) -> Any:
            @tf.custom_gradient
            def computing(tensor: tf.Tensor) -> Any:
                return waits(tensor, each, self.first), lambda upstream: waits(upstream, 2 * each)

            return computing(inputs)

    body = [part for number, layer in enumerate(model.layers) for part in (layer, Computing(number == 0))]
    return keras.Sequential([keras.Input(model.input_shape[1:]), *body])
