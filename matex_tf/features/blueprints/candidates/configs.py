"""Keras makes a model from a config in which there are ranges: they get the values of the candidate first.

Relies on (Keras 3.3 to 3.15): `keras.src.saving.serialization_lib.deserialize_keras_object` and
`Sequential.from_config`, both public under other names.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import wrapt

from matex_tf.features.blueprints import source
from matex_tf.features.blueprints.candidates import candidate
from matex_tf.patches.common import wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.saving.serialization_lib or keras.src.models.sequential."""
    name = "Sequential.from_config" if module.__name__.endswith("sequential") else "deserialize_keras_object"
    wrapping.require(module, name)
    wrapt.wrap_function_wrapper(module, name, _without_ranges)


def _without_ranges(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    now = candidate.current()
    if now is None or not args or not isinstance(args[0], dict):
        return wrapped(*args, **kwargs)
    ranges: dict[str, Any] = {}
    source.resolve(args[0], {}, ranges)
    if not ranges:
        return wrapped(*args, **kwargs)
    candidate.ask(*ranges)
    values = {name: now.value(name, one) for name, one in ranges.items()}
    return wrapped(source.resolve(args[0], values), *args[1:], **kwargs)


def model(config: dict[str, Any]) -> Any:
    """A model of a config without ranges."""
    import keras

    return keras.saving.deserialize_keras_object(config)
