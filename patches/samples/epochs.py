"""The epochs of a `fit` whose rows are pruned: which rows each has, how many batches, and what `History` says of it.

Relies on (Keras 3.3 to 3.15): `CallbackList.on_epoch_begin(epoch)` and `on_epoch_end(epoch, logs)`, its `callbacks`,
`Callback.set_params` and `params`, public; `TFEpochIterator._num_batches`, private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.errors import MatexError
from matex_tf.patches.common import model_state, wrapping
from matex_tf.patches.samples.pruning import LOG, Pruning
from matex_tf.patches.samples.schedules import Ahead


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list."""
    wrapping.wrap(module, "CallbackList.on_epoch_begin", _begin_epoch)
    wrapping.wrap(module, "CallbackList.on_epoch_end", _end_epoch)


#: Of an epoch: whether it was trained in a job before this one, and the scores of the checkpoint if it was begun there.
Resumed = Callable[[int], tuple[bool, Any]]


def begin(model: Any, epochs: int, optimizers: Sequence[Any], resumed: Resumed) -> None:
    """A `fit` of a model begins. All ranks come here.

    Args:
        epochs: at which it ends.
    """
    notes = model_state.of(model)
    notes.samples = None
    if not settings.current().scores_samples:
        return
    if notes.sample_factors is None:
        notes.sample_factors = tf.Variable([1.0, 1.0], trainable=False)
    notes.samples = Pruning(epochs, notes.sample_factors, Ahead(optimizers))
    notes.samples.resumed = resumed


def end(model: Any) -> None:
    """A `fit` has ended. All ranks come here."""
    notes = model_state.of(model)
    pruning, notes.samples, notes.sample_epochs = notes.samples, None, None
    if pruning is not None:
        pruning.end()


def walks(model: Any, iterator: Any) -> None:
    """The iterator of epochs of a `fit` has been made.

    Raises:
        MatexError: nobody can say which rows an epoch has.
    """
    notes = model_state.of(model)
    if notes.samples is None:
        return
    if iterator.steps_per_epoch:
        raise MatexError(
            "--prune-samples: with steps_per_epoch an epoch is no walk over all rows, so none can be left out of it: "
            "leave out steps_per_epoch (and repeat()), or --prune-samples and --sample-scores (docs/samples.md)."
        )
    if notes.samples.scores is None:
        kind = type(iterator.data_adapter).__name__.removesuffix("Adapter")
        raise MatexError(
            f"--prune-samples: nobody can say which row is which in these data ({kind}): give fit arrays, or leave out "
            "--prune-samples and --sample-scores (docs/samples.md)."
        )
    notes.sample_epochs = notes.samples.walk = iterator


def _begin_epoch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    notes = model_state.of(callbacks.model)
    pruning: Pruning | None = notes.samples
    if pruning is not None and notes.sample_epochs is not None:
        epoch = args[0] if args else kwargs["epoch"]
        replaying, kept = pruning.resumed(epoch)
        if kept is not None:
            pruning.restore(kept)
        else:
            pruning.begin_epoch(epoch, whole=replaying)
        notes.sample_epochs._num_batches = pruning.batches
        _tell(callbacks, pruning.batches)
    return wrapped(*args, **kwargs)


def _end_epoch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    notes = model_state.of(callbacks.model)
    pruning: Pruning | None = notes.samples
    epoch = args[0] if args else kwargs["epoch"]
    if pruning is not None and notes.sample_epochs is not None and not pruning.resumed(epoch)[0]:
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
