"""`BatchNormalization` of Keras 2: mean and variance over the rows of all ranks, as in `patches.keras`.

A layer whose computation TensorFlow has fused is computed in parts in training, in float32 as there. The variance
that it keeps is that of a sample, as there: divided by one less than the number of elements.

Relies on (tf_keras 2.16 to 2.21), private: `BatchNormalizationBase._calculate_mean_and_var(inputs, reduction_axes,
keep_dims, mask)`, `_fused_batch_norm(inputs, mask, training)`, its `_assign_moving_average`, `_param_dtype`, `axis`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.errors import MatexError
from matex_tf.patches.common import batch_share, wrapping
from matex_tf.patches.keras import batch_norm


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.layers.normalization.batch_normalization."""
    wrapping.wrap(module, "BatchNormalizationBase._calculate_mean_and_var", _mean_and_variance)
    wrapping.wrap(module, "BatchNormalizationBase._fused_batch_norm", _fused)


def _part(layer: Any) -> batch_share.StepShare | None:
    """The part of the batch that the step works on, where the layer is over the rows of all ranks."""
    part = batch_share.current()
    if part is None or part.apart or not batch_norm.over_all_rows(layer):
        return None
    if layer.virtual_batch_size is not None:
        raise MatexError(
            f"layer {layer.name} normalizes virtual batches of {layer.virtual_batch_size} rows, which do not fit "
            "the rows of a rank: leave out virtual_batch_size, or take --batch-norm rank with a size that divides them."
        )
    return part


def _mean_and_variance(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    part = _part(layer)
    if part is None:
        return wrapped(*args, **kwargs)

    inputs, axes, keep_dims, mask, *_ = wrapping.taken(
        args, kwargs, inputs=None, reduction_axes=(), keep_dims=False, mask=None
    )
    return batch_norm.moments(part, layer.name, inputs, axes, keep_dims, mask, epsilon=0.0)


def _fused(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    inputs, _, training, *_ = wrapping.taken(args, kwargs, inputs=None, mask=None, training=None)
    part = _part(layer) if training is not None and not tf.is_tensor(training) and bool(training) else None
    if part is None:
        return wrapped(*args, **kwargs)
    values = tf.cast(inputs, layer._param_dtype)
    axes = [axis for axis in range(len(inputs.shape)) if axis not in layer.axis]
    mean, variance = batch_norm.Moments(part, axes, None, layer.name)(values)
    shape = tf.shape(mean)
    scale, offset = (tf.reshape(one, shape) if one is not None else None for one in (layer.gamma, layer.beta))
    output = tf.nn.batch_normalization(values, mean, variance, offset, scale, layer.epsilon)
    layer._assign_moving_average(layer.moving_mean, tf.squeeze(mean, axes), layer.momentum, None)
    kept = tf.squeeze(variance, axes) * tf.cast(_bessel(values, mean, part), variance.dtype)
    layer._assign_moving_average(layer.moving_variance, kept, layer.momentum, None)
    return tf.cast(output, inputs.dtype)


def _bessel(values: Any, mean: Any, part: batch_share.StepShare) -> Any:
    """n / (n - 1) for the n elements of the whole batch, by which the fused op corrects the variance that is kept."""
    of_row = tf.size(values) // tf.size(mean) // tf.shape(values)[0]
    count = tf.cast(of_row * part.total, tf.float64)
    return count / tf.maximum(count - 1, 1)
