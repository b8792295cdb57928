"""Losses that are no plain mean over rows, made such that weighting by rows still gives the loss of the whole batch.

With w = rows / total of a rank, gradients and logged losses of ranks are added up as w L_r.
- reduction="sum": a rank returns its sum divided by w, so that the sum over ranks is the sum over the batch.
- a mask, or reduction="mean_with_sample_weight": the mean divides by the valid entries, or the weights, V of the whole
  batch, times w; V is summed over ranks in the forward pass. Where a rank trains apart the mean stays that of its own
  rows.

Relies on (Keras 3.3 to 3.15, private): `losses.loss.reduce_values` and `losses.loss.apply_mask`, which
`reduce_weighted_values` calls.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import keras_losses
from matex_tf.patches.common import batch_share, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.losses.loss."""
    reduce_signature = inspect.signature(wrapping.require(module, "reduce_values"))
    mask_signature = inspect.signature(wrapping.require(module, "apply_mask"))

    def reduce_values(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        given = bound(reduce_signature, args, kwargs)
        result = wrapped(*args, **kwargs)
        if part is None or len(given["values"].shape) == 0 or keras_losses.is_of_whole_batch(given["values"]):
            return result
        if given["reduction"] == "sum":
            whole = tf.math.divide_no_nan(tf.cast(part.total, result.dtype), tf.cast(part.rows, result.dtype))
            return result * whole
        if given["reduction"] == "mean_with_sample_weight" and given.get("sample_weight") is not None:
            if part.apart:
                return result
            whole = own_to_whole(tf.reduce_sum(given["sample_weight"]), part, "the loss's sample weights")
            return result * tf.cast(whole, result.dtype)
        return result

    def apply_mask(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        given = bound(mask_signature, args, kwargs)
        result = wrapped(*args, **kwargs)
        if (
            part is None
            or part.apart
            or given["mask"] is None
            or given["reduction"] not in ("mean", "sum_over_batch_size")
        ):
            return result
        valid = tf.reduce_sum(tf.cast(given["mask"], result.dtype))
        return result * tf.cast(own_to_whole(valid, part, "the loss's mask"), result.dtype)

    wrapping.wrap(module, "reduce_values", reduce_values)
    wrapping.wrap(module, "apply_mask", apply_mask)


def bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    """All arguments of a call by name, with defaults.

    Args:
        signature: of the function. args, kwargs: of the call.

    Raises:
        TypeError: they do not fit it.
    """
    found = signature.bind(*args, **kwargs)
    found.apply_defaults()
    return dict(found.arguments)


def own_to_whole(own: tf.Tensor, part: batch_share.StepShare, label: str) -> tf.Tensor:
    """own / (w V): turns a mean over this rank's V_r = own entries into its part of the mean over all V. All ranks come
    here.

    Args:
        own: a scalar, the number or the weights of this rank's entries. part: of the step; w is its weight.
        label: a name for it, for errors.

    Returns:
        float64 scalar.
    """
    own = tf.stop_gradient(tf.cast(own, tf.float64))
    (whole,) = tf_op.sum_over_ranks([own * part.alive], "add up what a mean divides by", [label])
    return tf.math.divide_no_nan(own, whole * part.weight)
