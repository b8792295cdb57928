"""Losses of a script's own that are a sum over the batch: with `--loss sum`, and those that a tape has by row.

Ranks add up w_r L_r, w_r = rows / total, which is right for means over rows. So a sum S_r over a rank's rows is taken
as L_r = S_r / w_r: in what goes back from it, in logs, and in a `Mean` that is given it. What `tape.gradient` of the
script's own differentiates by variables is such a loss, and what a `compute_loss` of its own returns to Keras. A tape
adds up the elements of what it differentiates: a loss for each row is such a sum, asked or not.

Relies on: `Model.compute_loss`, public.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.patches.across_rows.keras_losses import of_keras
from matex_tf.patches.common import batch_share
from matex_tf.state import notes


class _Sum(notes.Inside):
    """Of a tensor: that it is a loss that has been differentiated as a sum over the batch."""


def asked() -> bool:
    """Whether losses of the script's own are sums."""
    return settings.current().loss == "sum"


def whole(value: Any, part: batch_share.StepShare | None = None) -> Any:
    """A sum over a rank's rows as that of which the ranks' weighted sum is the sum over the batch: S_r / w_r.

    Args:
        value: a float tensor, S_r; outside of steps, and without `--loss sum`, it stays.
        part: of the step; None: of that which runs now.
    """
    part = batch_share.current() if part is None else part
    return value if part is None or not asked() else _over_ranks(value, part)


def _over_ranks(value: Any, part: batch_share.StepShare) -> Any:
    rows, total = tf.cast(part.rows, value.dtype), tf.cast(part.total, value.dtype)
    # By a function: an operator of an eager loss that has been averaged already would give that.
    return tf.multiply(value, tf.where(part.shared_out, tf.math.divide_no_nan(total, rows), tf.ones_like(rows)))


def gradient(
    wrapped: Callable[..., Any], target: Any, sources: Any, output_gradients: Any = None, **options: Any
) -> Any:
    """`tape.gradient` of what may be such a loss.

    Args:
        wrapped: the method, bound. target, sources, output_gradients, options: of the call.
    """
    flat = tf.nest.flatten(target)
    given = [None] * len(flat) if output_gradients is None else tf.nest.flatten(output_gradients)
    if not all(isinstance(one, tf.Tensor) and one.dtype.is_floating for one in flat):
        return wrapped(target, sources, output_gradients=output_gradients, **options)
    part = batch_share.current()
    assert part is not None
    by_row = [by is None and part.has_rows(one) for one, by in zip(flat, given, strict=True)]
    if not asked() and not any(by_row):
        return wrapped(target, sources, output_gradients=output_gradients, **options)
    upstream = [tf.ones_like(one) if by is None else by for one, by in zip(flat, given, strict=True)]
    upstream = [_over_ranks(by, part) if asked() or is_ else by for by, is_ in zip(upstream, by_row, strict=True)]
    for one in flat if asked() else ():
        notes.put(one, _Sum())
    return wrapped(target, sources, output_gradients=tf.nest.pack_sequence_as(target, upstream), **options)


def is_sum(value: Any) -> bool:
    """Whether a tensor is a loss that has been differentiated as a sum over the batch."""
    return notes.has(value, _Sum)


def now_whole(value: Any) -> None:
    """A tensor holds the sum over the batch from now on, and no longer that over the rank's rows."""
    notes.drop(value, _Sum)


def in_logs(logs: Any) -> Any:
    """The logs of a step, for what averages them."""
    if not asked():
        return logs
    return tf.nest.map_structure(lambda one: whole(one) if is_sum(one) else one, logs)


@contextlib.contextmanager
def computed_by(model: Any, training: bool) -> Iterator[None]:
    """What a `compute_loss` of the script's own gives to a step of Keras, inside of this block.

    Args:
        model: of Keras. training: whether the step trains; one with a `train_step` of the script's own stays as it is.
    """
    own = not of_keras(type(model).compute_loss) or "compute_loss" in vars(model)
    if not asked() or not own or (training and not of_keras(type(model).train_step)):
        yield
        return
    compute, known = model.compute_loss, "compute_loss" in vars(model)
    model.__dict__["compute_loss"] = lambda *args, **kwargs: whole(compute(*args, **kwargs))  # past Keras' tracking
    try:
        yield
    finally:
        model.__dict__.pop("compute_loss")
        if known:
            model.__dict__["compute_loss"] = compute
