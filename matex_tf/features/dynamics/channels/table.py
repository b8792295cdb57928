"""Which function knows which layer.

To teach it a layer: write a function `(analysis, layer, call) -> flows` in the module of its family, and name the layer
in that module's `LAYERS` or `OPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, Any, Any], list[Any]]


def handler_of(operation: Any) -> Handler | None:
    """The function that knows a layer or an op; None where there is none, or where a class changes what Keras does."""
    from keras.src.layers.layer import Layer

    names = _layers() if isinstance(operation, Layer) else _ops()
    kind = type(operation)
    for base in kind.__mro__:
        if base.__module__.startswith("keras.") and base.__name__ in names:
            changed = any(getattr(kind, name, None) is not getattr(base, name, None) for name in ("call", "build"))
            return None if changed else names[base.__name__]
    return None


def is_of_keras(operation: Any) -> bool:
    """Whether an operation is of one of Keras' own classes."""
    return type(operation).__module__.startswith("keras.")


def _layers() -> dict[str, Handler]:
    from matex_tf.features.dynamics.channels import (
        attention,
        convolutions,
        dense,
        normalization,
        passing,
        recurrent,
        shapes,
    )

    families = (attention, convolutions, dense, normalization, passing, recurrent, shapes)
    return {name: handler for family in families for name, handler in family.LAYERS.items()}


def _ops() -> dict[str, Handler]:
    from matex_tf.features.dynamics.channels import dense, passing, shapes

    return {name: handler for family in (dense, passing, shapes) for name, handler in family.OPS.items()}
