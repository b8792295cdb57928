"""What draws random numbers while a step is under way, and has no rows: initial weights, functions of a pipeline.

Relies on: `Layer.add_weight` (Keras 3.3 to 3.15), public; and (TensorFlow 2.16 to 2.21, private)
`tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper.__init__`, which traces what `map` and its kin
are given.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from matex_tf.patches.common import under_way, wrapping


def install(module: ModuleType) -> None:
    """Patch tensorflow, or keras.src.layers.layer."""
    if module.__name__ == "tensorflow":
        functions = importlib.import_module("tensorflow.python.data.ops.structured_function")
        # not `method`, in which AutoGraph is off: the function is converted, or not, as around this call
        wrapping.wrap(functions, "StructuredFunctionWrapper.__init__", _hidden)
    else:
        wrapping.method(module, "Layer.add_weight", _hidden)


def _hidden(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with under_way.having(draws_apart=True):
        return wrapped(*args, **kwargs)
