"""Losses that are no plain mean over rows, made such that weighting by rows still gives the loss of the whole batch.

With w = rows / total of a rank, gradients and logged losses of ranks are added up as w L_r.
- reduction="sum": a rank returns its sum divided by w, so that the sum over ranks is the sum over the batch.
- a mask, or reduction="mean_with_sample_weight": the mean divides by the valid entries, or the weights, V of the whole
  batch, times w; V is summed over ranks in the forward pass. Where a rank trains apart the mean stays that of its own
  rows.

Relies on (Keras 3.3 to 3.15, private): `losses.loss.reduce_values` and `losses.loss.apply_mask`, which
`reduce_weighted_values` calls; (tf_keras 2.16 to 2.21) `losses_utils.compute_weighted_loss(losses, ...)`, its
`reduce_weighted_loss(weighted_losses, reduction)` and `apply_valid_mask(losses, sw, mask, reduction)`, private.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import keras_losses
from matex_tf.patches.common import batch_share, keras_lines, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.losses.loss or tf_keras.src.utils.losses_utils."""
    of_keras_2 = keras_lines.is_of_keras_2(module.__name__)
    reduce, mask = ("reduce_weighted_loss", "apply_valid_mask") if of_keras_2 else ("reduce_values", "apply_mask")
    wrapping.wrap(module, reduce, _reduce(inspect.signature(wrapping.require(module, reduce))))
    wrapping.wrap(module, mask, _mask(inspect.signature(wrapping.require(module, mask))))
    if of_keras_2:
        wrapping.wrap(module, "compute_weighted_loss", _weighted)


def _reduce(signature: inspect.Signature) -> Any:
    """Args: signature: of a function of losses, weights perhaps, and the reduction."""
    values = next(iter(signature.parameters))

    def reduce(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        given = _bound(signature, args, kwargs)
        result = wrapped(*args, **kwargs)
        if part is None or not _of_rows(given[values]):
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

    return reduce


def _mask(signature: inspect.Signature) -> Any:
    """Args: signature: of a function of the mask and the reduction, and in Keras 2 of the losses."""

    def mask(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        given = _bound(signature, args, kwargs)
        result = wrapped(*args, **kwargs)
        scaled = given["mask"] is not None and given["reduction"] in ("auto", "mean", "sum_over_batch_size")
        if part is None or part.apart or not scaled or not _of_rows(given.get("losses", given["mask"])):
            return result
        valid = tf.reduce_sum(tf.cast(given["mask"], result.dtype))
        whole = tf.cast(own_to_whole(valid, part, "the loss's mask"), result.dtype)
        return tf.math.multiply_no_nan(result, whole)  # a rank without a valid entry has divided by 0 in Keras 2

    return mask


def _weighted(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if not keras_losses.is_of_whole_batch(args[0] if args else kwargs["losses"]):
        return wrapped(*args, **kwargs)
    with batch_share.hidden():  # it is whole already, be it one number or one for each column
        return wrapped(*args, **kwargs)


def _of_rows(values: Any) -> bool:
    return bool(tf.TensorShape(values.shape).rank) and not keras_losses.is_of_whole_batch(values)


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    """All arguments of a call by name, with defaults."""
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
