"""The same for Keras 2: what a training has after each step.

Relies on (tf_keras 2.16 to 2.21, Keras 2.13 to 2.15): `CallbackList.on_train_batch_end`, `on_epoch_end`, `on_test_end`,
`Model.fit`, `evaluate`, `predict` and `train_on_batch`, `apply_gradients(grads_and_vars, ...)` of new and legacy
optimizers and of those that scale losses, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.patches.common import keras_lines
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.patches.keras2.optimizers import CLASSES
from matex_tf.patches.recording import recorder

#: While an optimizer applies gradients, which may hand them on to another.
_applying = ActiveFlag()


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.callbacks, .engine.training, or a module of optimizers."""
    name = keras_lines.place(module.__name__)
    if name.endswith("callbacks"):
        recorder.watch_callbacks(module)
    elif name.endswith("training"):
        recorder.watch_model(module, "Model")
    else:
        for owner in CLASSES[name]:
            recorder.around(module, f"{owner}.apply_gradients", _apply_gradients)


def _apply_gradients(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
    """After it the optimizer's variables are recorded, where a loop of the script's own calls it."""

    def arguments(grads_and_vars: Any, *rest: Any, **more: Any) -> tuple[list[Any], tuple[Any, ...], dict[str, Any]]:
        return list(grads_and_vars), rest, more

    if _applying or recorder.in_keras:
        return wrapped(*args, **kwargs)
    pairs, rest, more = arguments(*args, **kwargs)
    with _applying():
        result = wrapped(pairs, *rest, **more)
    known = [variable for _, variable in pairs]
    own = [*known, *keras_lines.optimizer_variables(optimizer)]
    names = recorder.unique([keras_lines.path(variable) for variable in own])

    def add(*values: np.ndarray) -> None:
        recorder.add_step(names, values, len(known))

    tf.numpy_function(add, [tf.convert_to_tensor(variable) for variable in own], [], stateful=True)
    return result
