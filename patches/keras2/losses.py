"""Losses of Keras 2 that are no plain mean over rows: sums, and means over what a mask leaves.

See `matex_tf.patches.keras.losses`, which does the same for Keras 3.

Relies on (tf_keras 2.16 to 2.21): `losses_utils.compute_weighted_loss(losses, ...)`, its
`reduce_weighted_loss(weighted_losses, reduction)` and `apply_valid_mask(losses, sw, mask, reduction)`, private.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows import keras_losses
from matex_tf.patches.common import batch_share, wrapping
from matex_tf.patches.keras import losses


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.utils.losses_utils."""
    reduce_signature = inspect.signature(wrapping.require(module, "reduce_weighted_loss"))
    mask_signature = inspect.signature(wrapping.require(module, "apply_valid_mask"))

    def reduce_weighted_loss(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        given = losses.bound(reduce_signature, args, kwargs)
        result = wrapped(*args, **kwargs)
        values = given["weighted_losses"]
        if part is None or given["reduction"] != "sum" or not _of_rows(values):
            return result
        return result * tf.math.divide_no_nan(tf.cast(part.total, result.dtype), tf.cast(part.rows, result.dtype))

    def apply_valid_mask(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        given = losses.bound(mask_signature, args, kwargs)
        result = wrapped(*args, **kwargs)
        scaled = given["mask"] is not None and given["reduction"] in ("auto", "sum_over_batch_size")
        if part is None or part.apart or not scaled or not _of_rows(given["losses"]):
            return result
        valid = tf.reduce_sum(tf.cast(given["mask"], result.dtype))
        # Where a rank has no valid entry, Keras divides by 0.
        return tf.math.multiply_no_nan(
            result, tf.cast(losses.own_to_whole(valid, part, "the loss's mask"), result.dtype)
        )

    def compute_weighted_loss(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if not keras_losses.is_of_whole_batch(_losses_of(*args, **kwargs)):
            return wrapped(*args, **kwargs)
        with batch_share.hidden():  # it is whole already, be it one number or one for each column
            return wrapped(*args, **kwargs)

    wrapping.wrap(module, "compute_weighted_loss", compute_weighted_loss)
    wrapping.wrap(module, "reduce_weighted_loss", reduce_weighted_loss)
    wrapping.wrap(module, "apply_valid_mask", apply_valid_mask)


def _losses_of(losses: Any, *rest: Any, **options: Any) -> Any:
    return losses


def _of_rows(values: Any) -> bool:
    return bool(values.shape.rank) and not keras_losses.is_of_whole_batch(values)
