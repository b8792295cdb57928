"""What XLA compiles as a whole inside of a step that is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def as_one(function: Callable[..., Any]) -> Any:
    """A function of tensors that XLA compiles as a whole. TensorFlow's own way to make one: a script's would be
    compiled around exchanges, of which there is none in it."""
    return inspect.unwrap(tf.function)(function, jit_compile=True, autograph=False)
