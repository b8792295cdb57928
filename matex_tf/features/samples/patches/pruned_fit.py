"""A `fit` whose rows are pruned: which rows its epochs have, how many batches, and what `History` says of them.

Relies on (Keras 3.3 to 3.15): `Trainer.fit`, `CallbackList.on_epoch_begin(epoch)` and `on_epoch_end(epoch, logs)`, its
`callbacks`, `Callback.set_params` and `params`, public; `TFEpochIterator._num_batches`, private.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.features.samples.options import SampleOptions
from matex_tf.features.samples.patches.pruning import LOG, Pruning
from matex_tf.features.samples.patches.schedules import Ahead
from matex_tf.patches.common import keras_lines, model_state, wrapping
from matex_tf.patches.recovery import resume_fit
from matex_tf.state import notes


@dataclasses.dataclass
class Factors:
    """Of a model: float32 (2,), for the graphs of its steps; see `Pruning`."""

    variable: tf.Variable = dataclasses.field(default_factory=lambda: tf.Variable([1.0, 1.0], trainable=False))


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer or keras.src.callbacks.callback_list."""
    if module.__name__.endswith("trainer"):
        wrapping.wrap(module, f"{keras_lines.trainer(module)}.fit", _fit)
        return
    wrapping.wrap(module, "CallbackList.on_epoch_begin", _begin_epoch)
    wrapping.wrap(module, "CallbackList.on_epoch_end", _end_epoch)


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    chosen = settings.current().of(SampleOptions)
    if not chosen.scores_samples:
        return wrapped(*args, **kwargs)
    known = model_state.of(model)
    given = inspect.signature(wrapped).bind(*args, **kwargs)
    given.apply_defaults()
    pruning = Pruning(
        chosen,
        int(given.arguments["epochs"]),
        notes.of(model, Factors).variable,
        Ahead(keras_lines.optimizers_of(model)),
        functools.partial(resume_fit.choice_in, model),
    )
    known.row_choice = pruning
    try:
        history = wrapped(*args, **kwargs)
    finally:
        known.row_choice = None
    pruning.end()
    return history


def _under_way(model: Any) -> Pruning | None:
    """The pruning of the `fit` of a model, once its epochs are known."""
    chosen = model_state.of(model).row_choice
    return chosen if isinstance(chosen, Pruning) and chosen.walk is not None else None


def _begin_epoch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    pruning = _under_way(callbacks.model)
    if pruning is not None:
        epoch = args[0] if args else kwargs["epoch"]
        replaying, kept = pruning.resumed(epoch)
        if kept is not None:
            pruning.restore(kept)
        else:
            pruning.begin_epoch(epoch, whole=replaying)
        pruning.walk._num_batches = pruning.batches
        _tell(callbacks, pruning.batches)
    return wrapped(*args, **kwargs)


def _end_epoch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    pruning = _under_way(callbacks.model)
    epoch = args[0] if args else kwargs["epoch"]
    if pruning is not None and not pruning.resumed(epoch)[0]:
        used = pruning.end_epoch()
        logs = args[1] if len(args) > 1 else kwargs.get("logs")
        if pruning.rate and isinstance(logs, dict):
            logs[LOG] = used
    return wrapped(*args, **kwargs)


def _tell(callbacks: Any, batches: int | None) -> None:
    """Callbacks, the progress bar among them, hear how many steps the epoch has."""
    for callback in callbacks.callbacks:
        given = getattr(callback, "params", None) or callbacks.params
        if given:
            callback.set_params({**callbacks.params, **given, "steps": batches})
