"""The gradient hook of the optimizers of Keras 2, new and legacy, and of its loss scaling.

Gradients are averaged as they come in, before they are clipped, transformed or looked at for being finite: so what
follows is what one rank does. An optimizer that wraps another (loss scaling) hands on averaged ones.

Relies on (tf_keras 2.16 to 2.21): `apply_gradients(grads_and_vars, ...)` of `optimizers.Optimizer`, of
`optimizers.legacy.Optimizer` and of both `LossScaleOptimizer`s, `Optimizer.build`, public; `_create_all_weights` of
legacy ones, and `optimizer_v1.TFOptimizer.apply_gradients(grads_and_vars)`, private.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import batch_share, keras_lines, sharing_report, under_way, wrapping
from matex_tf.patches.keras import optimizer as hook
from matex_tf.patches.loops import gradient_updates, position
from matex_tf.strategies.base import Update


def install(module: ModuleType) -> None:
    """Patch a module of `keras_lines.OPTIMIZERS_2`."""
    for name in keras_lines.OPTIMIZERS_2[keras_lines.place(module.__name__)]:
        wrapping.method(module, f"{name}.apply_gradients", _apply_gradients)


def _apply_gradients(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
    if under_way.now().exchanged:
        return wrapped(*args, **kwargs)
    pairs, rest, options = wrapping.taken(args, kwargs, grads_and_vars=())
    pairs = list(pairs)
    given = [gradient for gradient, _ in pairs if gradient is not None]
    if given and not all(map(hook.is_marked, given)):
        if batch_share.of_step() is None:
            pairs = _of_loop(optimizer, pairs)
        elif hook.strategy().delays_updates:
            return _delay(wrapped, optimizer, pairs, rest, options)
        else:
            variables = [variable for _, variable in pairs]
            averaged = hook.average([gradient for gradient, _ in pairs], variables)
            pairs = list(zip(averaged, variables, strict=True))
    with under_way.having(exchanged=True):  # it may hand them on to another method of this kind
        return wrapped(pairs, *rest, **options)


def _of_loop(optimizer: Any, pairs: list[Any]) -> list[Any]:
    """Gradients in a loop of the script's own that no tape has averaged, and their variables."""
    if not position.active():  # Keras 2 in the scope of a strategy of tf.distribute, say
        sharing_report.trained("tf_keras")
        return pairs
    gradients, variables = map(list, zip(*pairs, strict=True))
    return list(zip(gradient_updates.averaged(optimizer, gradients, variables), variables, strict=True))


def _delay(wrapped: Any, optimizer: Any, pairs: list[Any], rest: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Hand gradients to a strategy that delays them; the counter of updates then counts those."""
    variables = [variable for _, variable in pairs]
    with tf.init_scope():  # an update that may be skipped cannot make variables
        keras_lines.give_variables(optimizer, variables)

    def apply(averaged: list[Any]) -> None:
        with under_way.having(exchanged=True):
            wrapped(list(zip(averaged, variables, strict=True)), *rest, **options)

    gradients = hook.weighted(hook.dense([gradient for gradient, _ in pairs]))
    changed = [*variables, *keras_lines.optimizer_variables(optimizer)]
    update = Update(optimizer, hook.paths(variables), apply, changed, hook.part_of_batch())
    hook.strategy().delay(update, hook.shaped(gradients, variables))
    return optimizer.iterations
