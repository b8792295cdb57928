"""Batch normalization over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from matex_tf.patches.horovod.core import basics, ops


@keras.saving.register_keras_serializable(package="horovod")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with mean and variance over all ranks, each of which counts alike.

    Relies on (Keras 3.3 to 3.15): `BatchNormalization._moments(inputs, mask)`, private.
    """

    def __init__(self, fused: bool = False, **kwargs: Any):
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        if not basics.is_initialized() or basics.size() == 1:
            return mean, variance
        both = tf.stack([mean, variance + tf.square(mean)])  # Var[x] = E[x²] - E[x]²
        mean, mean_of_square = tf.unstack(ops.allreduce([both], basics.Average)[0])
        return mean, mean_of_square - tf.square(mean)
