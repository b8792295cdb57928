"""Batch normalization over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.features.horovod.names.core import basics, ops
from matex_tf.features.horovod.names.optimizers.which_keras import IS_2, keras


@keras.saving.register_keras_serializable(package="horovod")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with mean and variance over all ranks, each of which counts alike.

    Relies on (Keras 3.3 to 3.15): `BatchNormalization._moments(inputs, mask)`, private; (tf_keras 2.16 to 2.21)
    `_moments(inputs, reduction_axes, keep_dims, mask)`, private, and `fused`.
    """

    def __init__(self, fused: bool = False, **kwargs: Any):
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        super().__init__(**({"fused": False} if IS_2 else {}), **kwargs)

    def _moments(self, inputs: Any, *args: Any, **how: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, *args, **how)
        if not basics.is_initialized() or basics.size() == 1:
            return mean, variance
        both = tf.stack([mean, variance + tf.square(mean)])  # Var[x] = E[x²] - E[x]²
        mean, mean_of_square = tf.unstack(ops.allreduce([both], basics.Average)[0])
        return mean, mean_of_square - tf.square(mean)
