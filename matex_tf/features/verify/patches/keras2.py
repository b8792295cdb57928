"""What a training of Keras 2 has after each step.

Relies on (tf_keras 2.16 to 2.21, Keras 2.13 to 2.15): `CallbackList.on_train_batch_begin`,
`on_train_batch_end`, `on_epoch_end`, `on_test_end`,
`Model.fit`, `evaluate`, `predict` and `train_on_batch`, `apply_gradients(grads_and_vars, ...)` of new and legacy
optimizers and of those that scale losses, public.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.features.verify.patches import own_loops, recorder
from matex_tf.patches.common import keras_lines, wrapping
from matex_tf.patches.common.active_flag import ActiveFlag

#: While an optimizer applies gradients, which may hand them on to another.
_applying = ActiveFlag("applying gradients")


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.callbacks, .engine.training, or a module of optimizers."""
    name = keras_lines.place(module.__name__)
    if name.endswith("callbacks"):
        recorder.watch_callbacks(module)
    elif name.endswith("training"):
        recorder.watch_model(module, "Model")
    else:
        for path in keras_lines.OPTIMIZERS_2[name]:
            owner = wrapping.require(module, path)
            owner.apply_gradients = _recording(owner.apply_gradients)


def _recording(original: Any) -> Any:
    """`apply_gradients`, after which variables are recorded where a loop of the script's own calls it."""

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if _applying or recorder.in_keras:
            return original(self, grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        with _applying():
            result = original(self, pairs, *args, **kwargs)
        known = [variable for _, variable in pairs]
        own_loops.add(known, keras_lines.optimizer_variables(self), self.iterations)
        return result

    return tf.autograph.experimental.do_not_convert(apply_gradients)
