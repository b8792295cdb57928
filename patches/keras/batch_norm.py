"""`BatchNormalization(synchronized=True)`: mean and variance over the rows of all ranks.

The gradient: with the loss L = sum over r of w_r L_r, and y = sum over q of x_q on every rank, dL/dx_r is
sum over q of w_q dL_q/dy. What a rank returns is multiplied by w_r later, hence the division by w_r.

Relies on (Keras 3.3 to 3.15, private): `nn._compute_moments_sync(x, axes, keepdims)`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.exchange import tf_op
from matex_tf.patches.common import batch_share, log_once, wrapping

_WHAT = "add up the statistics of a synchronized BatchNormalization"


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.nn."""
    wrapping.wrap(module, "_compute_moments_sync", _moments)


def _moments(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    part = batch_share.current()
    if part is None:
        return wrapped(*args, **kwargs)
    if part.apart:
        log_once.log("BatchNormalization(synchronized=True) is over each rank's own rows: ranks do not wait in a step")
        return wrapped(*args, **kwargs)
    return _moments_of_all(part, *args, **kwargs)


def _moments_of_all(
    part: batch_share.StepShare, x: tf.Tensor, axes: Any, keepdims: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    alive = tf.cast(part.alive, x.dtype)
    own_sum = tf.reduce_sum(x, axis=axes, keepdims=True) * alive
    own_count = tf.reduce_sum(tf.ones_like(x), axis=axes, keepdims=True) * alive
    count = tf.stop_gradient(_sum(part, own_count))
    mean = _sum(part, own_sum) / count
    variance = _sum(part, tf.reduce_sum(tf.math.squared_difference(x, mean), axis=axes, keepdims=True) * alive) / count
    if not keepdims:
        mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
    return mean, variance


def _sum(part: batch_share.StepShare, own: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def over_ranks(x: tf.Tensor) -> Any:
        (total,) = tf_op.sum_over_ranks([x], _WHAT, ["moments"])

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            weight = tf.cast(part.weight, upstream.dtype)
            (whole,) = tf_op.sum_over_ranks([tf.math.multiply_no_nan(upstream, weight)], _WHAT, ["their gradient"])
            return tf.math.divide_no_nan(whole, weight)

        return total, gradient

    return over_ranks(own)
