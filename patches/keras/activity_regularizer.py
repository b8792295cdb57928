"""Activity regularizers of Keras before 3.14, which add up over the rows of a batch instead of averaging.

A rank returns its sum divided by its weight w = rows / total, so that the weighted sum over ranks is the sum over the
batch; from 3.14 on Keras divides by the rows that it sees, and nothing is left to do.

Relies on (Keras 3.3 to 3.13): `Layer.__call__` (public), which calls `Layer.activity_regularizer` (public).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import batch_share, keras_lines, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.layers.layer."""
    if keras_lines.version() < (3, 14):
        wrapping.wrap(module, "Layer.__call__", _call)


def _call(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    regularizer = layer.activity_regularizer
    part = batch_share.current() if regularizer is not None else None
    if part is None or regularizer is None:
        return wrapped(*args, **kwargs)

    def of_all(output: Any) -> Any:
        loss = regularizer(output)
        return loss * tf.math.divide_no_nan(tf.cast(part.total, loss.dtype), tf.cast(part.rows, loss.dtype))

    layer.activity_regularizer = of_all
    try:
        return wrapped(*args, **kwargs)
    finally:
        layer.activity_regularizer = regularizer
