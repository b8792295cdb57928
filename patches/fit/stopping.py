"""Callbacks that stop a loop stop it on all ranks, after the same batch or epoch.

Whether one may is agreed at the end of each epoch, and after each batch where a callback could have wanted it.

Relies on (Keras 3.3 to 3.15): `CallbackList.on_epoch_end`, `on_train_batch_end`, `on_test_batch_end`,
`on_predict_batch_end`, `CallbackList.callbacks`, and the mark `_is_default` on methods that a callback does not
override (private).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.patches.common import keras_lines, wrapping

#: Keras' own callbacks that can stop training in the middle of an epoch.
_STOPPING = ("TerminateOnNaN", "LambdaCallback")
_TRAIN = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_epoch_begin",
    "on_train_begin",
)


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list."""
    wrapping.wrap(module, "CallbackList.on_epoch_end", _agree_always)
    for method, attribute, hooks in (
        ("on_train_batch_end", "stop_training", _TRAIN),
        ("on_test_batch_end", "stop_evaluating", ("on_test_batch_begin", "on_test_batch_end", "on_test_begin")),
        (
            "on_predict_batch_end",
            "stop_predicting",
            ("on_predict_batch_begin", "on_predict_batch_end", "on_predict_begin"),
        ),
    ):
        wrapping.wrap(module, f"CallbackList.{method}", _agree_where_needed(attribute, hooks))


def _agree_always(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    _agree(callbacks.model, "stop_training")
    return result


def _agree_where_needed(attribute: str, hooks: tuple[str, ...]) -> Any:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if any(_may_stop(callback, hooks) for callback in callbacks.callbacks):
            _agree(callbacks.model, attribute)
        return result

    return wrapper


def _may_stop(callback: Any, hooks: tuple[str, ...]) -> bool:
    kind = type(callback)
    if kind.__module__.startswith(keras_lines.PREFIXES) and kind.__name__ not in _STOPPING:
        return False
    return overrides(callback, hooks)


def overrides(callback: Any, hooks: tuple[str, ...]) -> bool:
    """Whether a `callback` has a method of its own of any of the names `hooks`."""
    return any(not getattr(getattr(callback, hook), "_is_default", False) for hook in hooks)


def _agree(model: Any, attribute: str) -> None:
    ranks = world.current()
    wanted = bool(getattr(model, attribute, False)) and ranks.rank not in ranks.guests
    if ranks.allreduce(np.array([wanted], np.int64), "agree whether to go on")[0]:
        setattr(model, attribute, True)
