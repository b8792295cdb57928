"""Loss scaling decides on the gradients of all ranks whether a step is finite, or ranks would diverge.

Relies on (Keras 3.3 to 3.15): `LossScaleOptimizer.apply(grads, trainable_variables)`, public; its `dynamic_scale` and
`initial_scale`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.patches.common import under_way, wrapping
from matex_tf.patches.keras import optimizer


def install(module: ModuleType) -> None:
    """Patch keras.src.optimizers.loss_scale_optimizer."""
    wrapping.method(module, "LossScaleOptimizer.apply", _apply)


def _apply(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if settings.current().reproducible and not under_way.now().exchanged:
        return optimizer.apply_once(wrapped, instance, args, kwargs)
    grads, variables, *_ = wrapping.taken(args, kwargs, grads=(), trainable_variables=None)
    known = list(instance._trainable_variables if variables is None else variables)
    grads = list(grads)
    if optimizer.strategy().delays_updates and not under_way.now().exchanged:
        # The scale may be another one when these gradients are applied: they travel without it.
        unscaled = _times(optimizer.dense(grads), 1 / _scale(instance))
        optimizer.delay(instance, unscaled, known, lambda sums: wrapped(_times(sums, _scale(instance)), known))
        return None
    marked = all(grad is None or optimizer.is_marked(grad) for grad in grads)
    averaged = grads if marked or under_way.now().exchanged else optimizer.average(grads, known)
    with under_way.having(exchanged=True):
        return wrapped(averaged, variables)


def _scale(instance: Any) -> tf.Tensor:
    return tf.convert_to_tensor(instance.dynamic_scale if instance.built else instance.initial_scale)


def _times(grads: list[Any], scale: tf.Tensor) -> list[Any]:
    return [None if grad is None else grad * tf.cast(scale, grad.dtype) for grad in grads]
