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


def average(own: tf.Tensor, part: batch_share.StepShare, label: str) -> tf.Tensor:
    """The mean over ranks of what each has found as a mean over its rows, weighted by these rows. All ranks come here.

    Args:
        own: a float tensor, of the same shape on every rank. part: of the step. label: its name, for errors.

    Returns:
        float64, of the shape of `own`.
    """
    weighted = tf.math.multiply_no_nan(tf.cast(own, tf.float64), part.weight)
    if virtual_ranks.current() is not None:
        return tf_op.sum_over_ranks([weighted], "average over a batch", [label])[0]

    def mean(value: np.ndarray, weighted: np.ndarray, shared: np.ndarray) -> list[np.ndarray]:
        ranks = world.current()
        if ranks.is_single or not shared:
            return [value]
        return process_group.sum_arrays(ranks, [weighted], "average over a batch", [label])

    given = [tf.cast(own, tf.float64), weighted, part.shared_out]
    (whole,) = tf_op.call(mean, given, [tf.float64], lambda arrays: [arrays[0]])
    whole.set_shape(own.shape)
    return whole


def _numbers(part: batch_share.StepShare) -> tf.Tensor:
    """int32 (3,): rows, total, and whether the batch is shared out at all (a batch that every rank has is whole)."""
    return tf.stack([tf.cast(one, tf.int32) for one in (part.rows, part.total, part.shared_out)])


def _gather(value: tf.Tensor, part: batch_share.StepShare, label: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Gather the rows of a batch; if its parts take turns on a rank each gives its rows, and all are joined once."""
    current, numbers = virtual_ranks.current(), _numbers(part)

    def forward(*arrays: np.ndarray) -> list[np.ndarray]:
        ranks, given, numbers = world.current(), arrays[0::2], arrays[1::2]
        if not numbers[0][2]:
            return [given[0], np.array([[0, len(given[0])]], np.int32)]
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

    def backward(upstream: np.ndarray, numbers: np.ndarray, place: np.ndarray) -> list[np.ndarray]:
        ranks, (rows, total, shared) = world.current(), numbers
        if ranks.is_single or not shared:
            return [upstream]
        weight, (first, count) = rows / total, place
        (sums,) = process_group.sum_arrays(ranks, [(upstream * weight).astype(upstream.dtype)], _BACK, [label])
        if not rows:
            return [np.zeros((count, *upstream.shape[1:]), upstream.dtype)]
        return [(sums[first : first + count] / weight).astype(upstream.dtype)]

    def back_to_part(upstream: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        weight = tf.cast(part.weight, upstream.dtype)
        (sums,) = tf_op.sum_over_ranks([tf.math.multiply_no_nan(upstream, weight)], _BACK, [label])
        own = tf.math.divide_no_nan(sums[place[0] : place[0] + place[1]], weight)
        lacking = tf.shape(value)[0] - tf.shape(own)[0]  # behind the last row stands a ghost
        return tf.concat([own, tf.zeros(tf.concat([[lacking], tf.shape(own)[1:]], 0), own.dtype)], 0)

    @tf.custom_gradient
    def through(value: tf.Tensor) -> Any:
        given = [value, numbers]
        whole, places = together([given]) if current is None else virtual_ranks.meet((WHAT, label), given, together)
        whole, place = tf.identity(whole), places[0 if current is None else current.place]

        def back(upstream: tf.Tensor, _: Any) -> tf.Tensor:
            if current is not None:
                own = back_to_part(upstream, place)
            else:
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
