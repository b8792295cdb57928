"""The mean of an output's loss over batches, such as `dense_1_loss`, in models with several outputs.

Keras weights the loss of a batch by the number of its rows, if the step was traced with that number, and else by 1. One
rank traces a step that gets a batch (`train_on_batch`; from 3.16 on `fit` and `evaluate` too) with the rows of the
first, and once more for any number when another size comes. So batches as large as the first one count as many times as
they have rows, and all others once. A rank traces with any number.

Relies on (Keras 3): `CompileLoss.call(y_true, y_pred, sample_weight)`, which updates a `Mean` for each output.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import batch_share, under_way, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.trainers.compile_utils."""
    wrapping.method(module, "CompileLoss.call", _call, in_steps=True)


def _call(wrapped: Any, compiled: Any, args: Any, kwargs: Any) -> Any:
    first, part = under_way.now().first_rows, batch_share.current()
    if first is None:
        return wrapped(*args, **kwargs)
    y_pred = inspect.signature(wrapped).bind(*args, **kwargs).arguments["y_pred"]
    rows = tf.shape(tf.nest.flatten(y_pred)[0])[0] if part is None else part.total
    counts_as = tf.where(tf.equal(rows, first), tf.constant(first, tf.float64), 1.0)
    with under_way.having(counts_as=counts_as):
        return wrapped(*args, **kwargs)
