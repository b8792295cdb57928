"""Lookups in which each index occurs once, in code that is run eagerly.

A sparse batch times a matrix looks each column up once, so that its gradient has each index once, on one rank. In a
graph the exchange sees that by itself.

Relies on (TensorFlow 2.16 to 2.21, private): `array_ops.unique`, which `embedding_lookup_sparse` calls.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.exchange import tf_op
from matex_tf.patches.common import wrapping


def install(module: ModuleType) -> None:
    """Patch tensorflow.python.ops.array_ops."""
    wrapping.wrap(importlib.import_module(f"{module.__name__}.python.ops.array_ops"), "unique", _unique)


def _unique(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if tf.executing_eagerly():
        tf_op.note_distinct(result.y)
    return result
