"""What a callback sees of a batch is the whole batch's: logs of all ranks' rows, as on one rank.

Only where somebody reads them: a progress bar, or a callback that has `on_train_batch_end` or `on_test_batch_end`.
A partitioned step gives them so. For other steps one small sum after the step adds up the states of the metrics, if
ranks that may die have not done so (see `step_retry`); see `metrics.of_all`.

Relies on (Keras 3.3 to 3.15): `CallbackList.on_train_begin`, `on_test_begin`, `on_train_batch_end` and
`on_test_batch_end`, public.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from matex_tf import strategies
from matex_tf.core import starting, world
from matex_tf.patches.common import keras_lines, under_way, wrapping
from matex_tf.patches.fit import stopping
from matex_tf.patches.keras import metrics
from matex_tf.state import notes

_HOOKS = {"train": ("on_train_batch_end", "on_batch_end"), "test": ("on_test_batch_end",)}

#: Keras' own callbacks that read the logs of a batch, and when.
_READING: dict[str, Callable[[Any], bool]] = {
    # Where each group goes as fast as it can, a bar would let all wait for the slowest: it shows the group's own.
    "ProgbarLogger": lambda bar: bar.verbose == 1 and not strategies.current().deals_parts,
    "TerminateOnNaN": lambda callback: True,
    "LambdaCallback": lambda callback: True,
    "TensorBoard": lambda board: board.update_freq != "epoch",
    "ModelCheckpoint": lambda checkpoint: checkpoint.save_freq != "epoch",
}


class _Read(dict[str, bool]):
    """Of a list of callbacks that is at work: for which kinds of steps somebody reads logs, on any rank."""


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list."""
    for kind in _HOOKS:
        wrapping.wrap(module, f"CallbackList.on_{kind}_begin", _begin(kind))
        wrapping.wrap(module, f"CallbackList.on_{kind}_batch_end", _end_batch(kind))


def _begin(kind: str) -> Any:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if under_way.now().in_keras and strategies.current().averages_gradients:
            read = starting.recorded() or any(_reads(callback, kind) for callback in callbacks.callbacks)
            ranks = world.current()
            everyone = ranks.allreduce(np.array([read], np.int64), "agree whether the logs of batches are read")
            notes.of(callbacks, _Read)[kind] = bool(everyone[0])
        return result

    return wrapper


def _reads(callback: Any, kind: str) -> bool:
    """Whether a callback reads the logs of a batch; ranks may have different ones."""
    of_keras = type(callback).__module__.startswith(keras_lines.PREFIXES)
    if of_keras and type(callback).__name__ not in _READING:
        return False
    if not stopping.overrides(callback, _HOOKS[kind]):
        return False
    return not of_keras or _READING[type(callback).__name__](callback)


def _end_batch(kind: str) -> Any:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        batch, logs, *_ = wrapping.taken(args, kwargs, batch=None, logs=None)
        if logs and notes.of(callbacks, _Read).get(kind) and under_way.now().in_keras:
            logs = metrics.of_all(callbacks.model, logs)
        return wrapped(batch, logs)

    return wrapper
