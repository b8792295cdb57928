"""Draws in steps that XLA compiles: a kernel may choose its generator, and XLA's gives other numbers than TensorFlow's.

One rank compiles its step as a whole, so that XLA draws. So it does here: each draw is compiled by itself, also the
first time that it has a new shape, and for the whole batch, of which the caller cuts its part.

Relies on (TensorFlow 2.16 to 2.21, private): `gen_stateless_random_ops_v2.stateless_random_get_key_counter`, whose
result is for the generator of whoever compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition import compiled
from matex_tf.patches.random import batch_axis

_TENSORS = ("shape", "key", "counter", "minval", "maxval")


def by_xla(wrapped: Callable[..., Any], values: dict[str, Any]) -> Any:
    """What XLA draws.

    Args:
        wrapped: the function that makes the op.
        values: its arguments, by name.
    """
    shape = tf.convert_to_tensor(values["shape"])
    given = {**values, "shape": shape}
    tensors = {name: tf.convert_to_tensor(given.pop(name)) for name in _TENSORS if name in given}
    drawn = compiled.as_one(lambda tensors: wrapped(**tensors, **given))(tensors)
    drawn.set_shape(batch_axis.static_shape(shape))
    return drawn


def key_and_counter(wrapped: Callable[..., Any], seed: Any) -> Any:
    """Key and counter that a `seed`, of shape (2,), has for XLA's generator; `wrapped` is TensorFlow's op that gives
    them."""
    return compiled.as_one(wrapped)(tf.convert_to_tensor(seed))
