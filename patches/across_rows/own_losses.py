"""Losses that a script has written: those that look across the rows of a batch are computed from the rows of all ranks.

What a loss is, is tried once with made-up rows. A value for each row that does not depend on the rows beside it, and a
mean over rows, are left to each rank. Anything else (a sum over the batch, a contrastive loss, Dice) every rank
computes from the rows of all; gradients go back to the rank that has the row. So are losses of Keras 2 whose `axis`
runs over rows.

Relies on (Keras 3.3 to 3.15, tf_keras 2.16 to 2.21): `Loss.__call__`, which calls `Loss.call`, both public;
`LossFunctionWrapper.fn` and, of tf_keras, `_fn_kwargs`, private.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.patches.across_rows import gathered_batch, keras_losses, trial_rows
from matex_tf.patches.common import batch_share, keras_lines, log_once, wrapping
from matex_tf.state import notes


class _Tried(NamedTuple):
    """Of a loss: whether it looks across rows."""

    across: bool


def install(module: ModuleType) -> None:
    """Patch keras.src.losses.loss or tf_keras.src.losses."""
    wrapping.method(module, "Loss.__call__", _call)


def _call(wrapped: Any, loss: Any, args: Any, kwargs: Any) -> Any:
    part = batch_share.current()
    if part is None or part.apart or (_of_keras(loss) and not _over_rows(loss, *args, **kwargs)):
        return wrapped(*args, **kwargs)
    own = keras_lines.converted(loss.call) if keras_lines.is_keras_2(loss) else loss.call

    @tf.autograph.experimental.do_not_convert
    def call(y_true: Any, y_pred: Any) -> Any:
        if not notes.of(loss, _Tried, lambda: _Tried(_looks_across(loss, own, (y_true, y_pred), part))).across:
            return own(y_true, y_pred)
        name, place = getattr(loss, "name", "a loss"), None

        def rows(leaf: Any) -> Any:
            nonlocal place
            if leaf is None or not part.has_rows(leaf):
                return leaf
            whole, place = gathered_batch.gather(leaf, part, f"an argument of loss {name}")
            return whole

        whole = tf.nest.map_structure(rows, (y_true, y_pred))
        with batch_share.hidden():
            value = tf.convert_to_tensor(own(*whole))
        if value.shape.rank and value.shape[0] is None and place is not None:
            return gathered_batch.take_own(value, place)
        keras_losses.mark(value)
        return value

    loss.__dict__["call"] = call
    try:
        return wrapped(*args, **kwargs)
    finally:
        loss.__dict__.pop("call", None)


def _of_keras(loss: Any) -> bool:
    if not keras_losses.of_keras(type(loss).call):
        return False
    return not hasattr(loss, "fn") or keras_losses.of_keras(loss.fn)


def _over_rows(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> bool:
    """Whether a loss of Keras 2 has an `axis` that runs over rows; those of Keras 3 are in `keras_losses`."""
    given = getattr(loss, "_fn_kwargs", {})
    if not keras_lines.is_keras_2(loss) or "axis" not in given:
        return False
    return keras_losses.across_rows(given["axis"], tf.TensorShape(y_pred.shape).rank)


def _looks_across(loss: Any, own: Any, given: Any, part: batch_share.StepShare) -> bool:
    """Whether a loss is more than a value for each row, or a mean of such; False, with a line, if nobody can tell."""
    name = getattr(loss, "name", None) or type(loss).__name__
    values = trial_rows.tried(own, given, part)
    if values is None or not all(np.isfinite(value).all() for value in values):
        log_once.log(
            f"loss {name} cannot be tried outside of a step, and counts as a mean over rows. If it compares rows of "
            "the batch, give it matex_tf.all_rows (docs/patched-steps.md)"
        )
        return False
    whole, some, others = values
    if whole.ndim:
        alike = len(whole) == trial_rows.ROWS and np.allclose(whole, np.concatenate([some, others]), 1e-3, 1e-5)
    else:
        mean = (trial_rows.SOME * some + (trial_rows.ROWS - trial_rows.SOME) * others) / trial_rows.ROWS
        alike = np.allclose(whole, mean, 1e-3, 1e-5)
    if not alike:
        log_once.log(f"loss {name} looks across the rows of a batch: every rank computes it from the rows of all ranks")
    return not alike
