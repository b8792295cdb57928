"""Loss scaling decides on the gradients of all ranks whether a step is finite, or ranks would part ways.

Relies on (Keras 3.3 to 3.15): `LossScaleOptimizer.apply(grads, trainable_variables)`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.patches import names, optimizer


def apply(module: ModuleType) -> None:
    """Patch keras.src.optimizers.loss_scale_optimizer."""
    names.method(module, "LossScaleOptimizer.apply", _apply)


def _apply(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    grads, variables = _arguments(*args, **kwargs)
    known = instance._trainable_variables if variables is None else variables
    grads = list(grads)
    marked = all(grad is None or optimizer.is_marked(grad) for grad in grads)
    averaged = grads if marked else optimizer.average(grads, list(known))
    with optimizer.exchanged():
        return wrapped(averaged, variables)


def _arguments(grads: Any, trainable_variables: Any = None) -> tuple[Any, Any]:
    return grads, trainable_variables
