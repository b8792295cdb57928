"""The rows of the whole batch, over all ranks, inside of a step: for what looks across rows.

Each rank gives its rows and gets all, in the order of ranks. Where gradients go back through it, a rank gets those of
its own rows. A step's gradient is the sum over ranks of w_r g_r, w = rows / total. So where G_r comes back on rank r
for all rows, rank s gets (1 / w_s) sum_r w_r G_r for its own: then the sum is the gradient of sum_r w_r L_r.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.exchange import process_group, tf_op, virtual_ranks
from matex_tf.patches.common import batch_share

WHAT = "gather the rows of a batch"
_BACK = "gradients by the rows of a batch"


def gather(value: Any, part: batch_share.StepShare, label: str) -> tuple[Any, Any]:
    """The rows of all ranks.

    Args:
        value: a dense tensor whose first axis runs over the rows that the step sees, or over what comes of them.
        part: of the step. label: its name, for errors.

    Returns:
        The tensor with the rows of all ranks, and int32 (2,): where this rank's rows begin in it, and how many the
        step sees (a ghost's row is not among those of the batch).
    """
    value = tf.convert_to_tensor(value)
    key = id(value), id(tf.compat.v1.get_default_graph()) if not tf.executing_eagerly() else 0
    if key in part.gathered:
        _, whole, place = part.gathered[key]
        return whole, place
    whole, place = _gather(value, part, label)
    if not tf.executing_eagerly():
        part.gathered[key] = value, whole, place
    return whole, place


def take_own(value: Any, place: Any) -> Any:
    """This rank's rows of a tensor that has those of all ranks.

    Args:
        value: `[rows of all ranks, …]`. place: as `gather` gives it, int32 (2,).
    """
    first = tf.minimum(place[0], tf.maximum(tf.shape(value)[0] - place[1], 0))
    return value[first : first + place[1]]


def add_up(own: Any, part: batch_share.StepShare, label: str) -> tf.Tensor:
    """The sum over ranks of what each has found of its rows; a ghost's does not count. All ranks come here.

    Args:
        own: a scalar of any number dtype, this rank's. part: of the step. label: its name, for errors.

    Returns:
        float64 scalar.
    """
    if virtual_ranks.current() is not None:
        counted = tf.math.multiply_no_nan(tf.cast(own, tf.float64), part.alive)
        return tf_op.sum_over_ranks([counted], "add up over a batch", [label])[0]

    def total(value: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        ranks, (rows, _, shared) = world.current(), numbers
        if ranks.is_single or not shared:
            return [value]
        return process_group.sum_arrays(
            ranks, [value if rows else np.zeros_like(value)], "add up over a batch", [label]
        )

    (whole,) = tf_op.call(total, [tf.cast(own, tf.float64), _numbers(part)], [tf.float64], lambda arrays: [arrays[0]])
    whole.set_shape([])
    return whole


def average(own: tf.Tensor, part: batch_share.StepShare, label: str) -> tf.Tensor:
    """The mean over ranks of what each has found as a mean over its rows, weighted by these rows. All ranks come here.

    Args:
        own: a float tensor, of the same shape on every rank. part: of the step. label: its name, for errors.

    Returns:
        float64, of the shape of `own`.
    """
    if virtual_ranks.current() is not None:
        weighted = tf.math.multiply_no_nan(tf.cast(own, tf.float64), part.weight)
        return tf_op.sum_over_ranks([weighted], "average over a batch", [label])[0]

    def mean(value: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        ranks, (rows, total, shared) = world.current(), numbers
        if ranks.is_single or not shared:
            return [value]
        weighted = value * (rows / total) if rows else np.zeros_like(value)
        return process_group.sum_arrays(ranks, [weighted], "average over a batch", [label])

    (whole,) = tf_op.call(mean, [tf.cast(own, tf.float64), _numbers(part)], [tf.float64], lambda arrays: [arrays[0]])
    whole.set_shape(own.shape)
    return whole


def _numbers(part: batch_share.StepShare) -> tf.Tensor:
    """int32 (3,): rows, total, and whether the batch is shared out at all (a batch that every rank has is whole)."""
    return tf.stack([tf.cast(one, tf.int32) for one in (part.rows, part.total, part.shared_out)])


def _gather_parts(value: tf.Tensor, part: batch_share.StepShare, label: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Gather the rows of a batch whose parts take turns on a rank: each gives its rows, and all are joined once."""
    current = virtual_ranks.current()
    assert current is not None
    at = current.place

    def forward(*arrays: np.ndarray) -> list[np.ndarray]:
        ranks, given, numbers = world.current(), arrays[0::2], arrays[1::2]
        own = np.concatenate([one if rows else one[:0] for one, (rows, *_) in zip(given, numbers, strict=True)])
        counts = ranks.allgather(len(own), f"{WHAT}: {label}")
        bits = own.view(np.uint16) if own.dtype.name == "bfloat16" else own
        whole = ranks.allgather_rows(bits, f"{WHAT}: {label}").view(own.dtype)
        places, first = [], sum(counts[: ranks.rank])
        for one, (rows, *_) in zip(given, numbers, strict=True):
            places.append((first, len(one)))
            first += len(one) if rows else 0
        return [whole, np.array(places, np.int32)]

    def together(given: list[list[tf.Tensor]]) -> list[tf.Tensor]:
        flat = [tensor for own in given for tensor in own]
        whole, places = tf_op.call(
            forward,
            flat,
            [value.dtype, tf.int32],
            lambda arrays: [arrays[0], np.array([(0, len(one)) for one in arrays[0::2]], np.int32)],
        )
        whole.set_shape([None, *value.shape[1:]])
        places.set_shape([len(given), 2])
        return [whole, places]

    @tf.custom_gradient
    def through(value: tf.Tensor) -> Any:
        whole, places = virtual_ranks.meet((WHAT, label), [value, _numbers(part)], together)
        whole, place = tf.identity(whole), places[at]

        def back(upstream: tf.Tensor, _: Any) -> tf.Tensor:
            weight = tf.cast(part.weight, upstream.dtype)
            weighted = tf.math.multiply_no_nan(upstream, weight)
            (sums,) = tf_op.sum_over_ranks([weighted], _BACK, [label])
            own = tf.math.divide_no_nan(sums[place[0] : place[0] + place[1]], weight)
            lacking = tf.shape(value)[0] - tf.shape(own)[0]  # behind the last row stands a ghost
            own = tf.concat([own, tf.zeros(tf.concat([[lacking], tf.shape(own)[1:]], 0), own.dtype)], 0)
            own.set_shape(value.shape)
            return own

        return (whole, place), back

    return through(value)


def _gather(value: tf.Tensor, part: batch_share.StepShare, label: str) -> tuple[tf.Tensor, tf.Tensor]:
    if virtual_ranks.current() is not None:
        return _gather_parts(value, part, label)
    numbers = _numbers(part)

    def forward(array: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        ranks, (rows, _, shared) = world.current(), numbers
        if ranks.is_single or not shared:
            return [array, np.array([0, len(array)], np.int32)]
        own = array if rows else array[:0]
        counts = ranks.allgather(len(own), f"{WHAT}: {label}")
        bits = own.view(np.uint16) if own.dtype.name == "bfloat16" else own
        whole = ranks.allgather_rows(bits, f"{WHAT}: {label}")
        return [whole.view(own.dtype), np.array([sum(counts[: ranks.rank]), len(array)], np.int32)]

    def backward(upstream: np.ndarray, numbers: np.ndarray, place: np.ndarray) -> list[np.ndarray]:
        ranks, (rows, total, shared) = world.current(), numbers
        if ranks.is_single or not shared:
            return [upstream]
        weight, (first, count) = rows / total, place
        (sums,) = process_group.sum_arrays(ranks, [(upstream * weight).astype(upstream.dtype)], _BACK, [label])
        if not rows:
            return [np.zeros((count, *upstream.shape[1:]), upstream.dtype)]
        return [(sums[first : first + count] / weight).astype(upstream.dtype)]

    @tf.custom_gradient
    def through(value: tf.Tensor) -> Any:
        whole, place = tf_op.call(
            forward,
            [value, numbers],
            [value.dtype, tf.int32],
            lambda arrays: [arrays[0], np.array([0, len(arrays[0])], np.int32)],
        )
        whole.set_shape([None, *value.shape[1:]])
        place.set_shape([2])

        def back(upstream: tf.Tensor, _: Any) -> tf.Tensor:
            (own,) = tf_op.call(
                backward,
                [upstream, numbers, place],
                [upstream.dtype],
                lambda arrays: [np.resize(arrays[0], (arrays[2][1], *arrays[0].shape[1:]))],
            )
            own.set_shape(value.shape)
            return own

        return (whole, place), back

    return through(value)
