"""`BatchNormalization`: mean and variance over the rows of all ranks, forward and backward.

A layer takes one small sum over the ranks forward, and one backward. Forward, each rank gives its count, its sum and
its sum of squares, in float64, so that taking one from the other costs no digits. Backward: with the loss
L = sum over r of w_r L_r, and y = sum over q of x_q on every rank, dL/dx_r is the sum over q of w_q dL_q/dy. What a
rank returns is multiplied by w_r later, hence the division by w_r.

Relies on (Keras 3.3 to 3.15, private): `BatchNormalization._moments(inputs, mask)` and its `_reduction_axes`;
`nn._compute_moments_sync(x, axes, keepdims)`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.exchange import tf_op, virtual_ranks
from matex_tf.patches.common import batch_share, keras_lines, log_once, wrapping

_WHAT = "add up the statistics of BatchNormalization"


def install(module: ModuleType) -> None:
    """Patch keras.src.layers.normalization.batch_normalization, or keras.src.backend.tensorflow.nn or ….ops.nn."""
    if module.__name__.endswith(".nn"):
        wrapping.wrap(module, "_compute_moments_sync", _moments_of_op)
    else:
        wrapping.wrap(module, "BatchNormalization._moments", _moments_of_layer)


def over_all_rows(layer: Any) -> bool:
    """Whether what a layer learns of its input is over the rows of all ranks, and so the same on each."""
    if getattr(layer, "synchronized", False):
        return True
    return (
        any(cls.__name__.startswith("BatchNormalization") and keras_lines.of_keras(cls) for cls in type(layer).__mro__)
        and settings.current().batch_norm == "batch"
        and strategies.current().averages_gradients
    )


def _moments_of_layer(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    part = batch_share.current()
    if part is None or part.apart or not over_all_rows(layer) or 0 not in layer._reduction_axes or _has_all_rows():
        return wrapped(*args, **kwargs)

    inputs, mask, *_ = wrapping.taken(args, kwargs, inputs=None, mask=None)
    return moments(part, layer.name, inputs, layer._reduction_axes, mask=mask)


def _moments_of_op(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    part = batch_share.current()
    if part is None:
        return wrapped(*args, **kwargs)
    if part.apart:
        log_once.log(
            "BatchNormalization(synchronized=True) uses each rank's own rows: with this --strategy ranks do not "
            "wait in a step"
        )
        return wrapped(*args, **kwargs)

    return moments(part, "moments", *args, **kwargs)


def moments(
    part: batch_share.StepShare,
    name: str,
    x: tf.Tensor,
    axes: Any,
    keepdims: bool = False,
    mask: Any = None,
    epsilon: float | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of a tensor over the rows of all ranks.

    Args:
        part, name, axes, epsilon: see `Moments`.
        x: float32 or float64.
        keepdims: whether reduced axes stay, of size 1.
        mask: of all axes of `x` but the last: what counts; None: all.
    """
    kept = None if mask is None else tf.broadcast_to(tf.expand_dims(tf.cast(mask, tf.bool), -1), tf.shape(x))
    mean, variance = Moments(part, axes, kept, name, epsilon)(x)
    return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))


def _has_all_rows() -> bool:
    """Whether this rank has never had others, and stands for no virtual ones: Keras's own moments are faster."""
    return wrapping.is_only_rank() and virtual_ranks.current() is None


class Moments:
    """Mean and variance of one tensor over the rows of all ranks, differentiable any number of times."""

    def __init__(
        self, part: batch_share.StepShare, axes: Any, kept: tf.Tensor | None, name: str, epsilon: float | None = None
    ):
        """Args:
        part: of the batch that the tensor's rows are of.
        axes: those that are reduced.
        kept: boolean, of the tensor's shape: the elements that count; None for all.
        name: of the layer, for messages.
        epsilon: what is added to the number of those that are kept; None: Keras 3's.
        """
        self._part = part
        self._axes = list(axes)
        self._kept = kept
        self._name = name
        self._epsilon = epsilon

    def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Args: x: float32 or float64. Returns: mean and variance in its dtype, the reduced axes of size 1."""

        @tf.custom_gradient
        def moments(x: tf.Tensor) -> Any:
            count, total, squares = self._sums(x)
            divisor = count
            if self._kept is not None:  # as Keras divides where there is a mask
                divisor = count + self._added()
            mean = total / divisor
            variance = tf.maximum((squares - 2 * mean * total + tf.square(mean) * count) / divisor, 0)
            mean, variance, divisor = (tf.cast(value, x.dtype) for value in (mean, variance, divisor))

            def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
                whole = self._weighted(tf.stack([of_mean, of_variance]))
                # What is small is put together first: each operation on `x` reads and writes all of it.
                slope, constant = 2 * whole[1] / divisor, whole[0] / divisor
                upstream = (x - self._known(x, mean, divisor)) * slope + constant
                return upstream if self._kept is None else tf.where(self._kept, upstream, 0)

            return (mean, variance), gradient

        result: tuple[tf.Tensor, tf.Tensor] = moments(x)
        return result

    def _added(self) -> float:
        if self._epsilon is not None:
            return self._epsilon
        from keras import backend

        return float(backend.epsilon())

    def _sums(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Over all ranks: how many elements there are, their sum, and the sum of their squares; float64."""
        if self._kept is None:
            mean, variance = tf.nn.moments(x, self._axes, keepdims=True)
            count = tf.cast(tf.size(x), tf.float64) / tf.cast(tf.size(mean), tf.float64)
            count = tf.fill(tf.shape(mean), count)
        else:
            kept = tf.cast(self._kept, x.dtype)
            counted = tf.reduce_sum(kept, self._axes, keepdims=True)
            mean = tf.math.divide_no_nan(tf.reduce_sum(x * kept, self._axes, keepdims=True), counted)
            distances = tf.where(self._kept, tf.math.squared_difference(x, mean), 0)
            variance = tf.math.divide_no_nan(tf.reduce_sum(distances, self._axes, keepdims=True), counted)
            count = tf.cast(counted, tf.float64)
        mean, variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        own = tf.stack([tf.ones_like(mean), mean, variance + tf.square(mean)])
        count = count * tf.cast(self._part.alive, tf.float64)
        (whole,) = tf_op.sum_over_ranks([tf.math.multiply_no_nan(own, count)], _WHAT, [self._name])
        return whole[0], whole[1], whole[2]

    def _known(self, x: tf.Tensor, mean: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
        """The mean, which is known already, as what depends on `x`."""

        @tf.custom_gradient
        def known(x: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                spread = tf.broadcast_to(self._weighted(upstream) / divisor, tf.shape(x))
                return spread if self._kept is None else tf.where(self._kept, spread, 0)

            return tf.identity(mean), gradient

        return known(x)

    def _weighted(self, upstream: tf.Tensor) -> tf.Tensor:
        """What comes back to this rank of a gradient that each rank has its own part of."""

        @tf.custom_gradient
        def summed(own: tf.Tensor) -> Any:
            (whole,) = tf_op.sum_over_ranks([own], f"{_WHAT}, backward", [self._name])
            return whole, self._weighted

        weight = tf.cast(self._part.weight, upstream.dtype)
        return tf.math.divide_no_nan(summed(tf.math.multiply_no_nan(upstream, weight)), weight)
