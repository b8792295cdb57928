"""`fit` with --apoptosis or --grow: the model is looked at between steps, and changes.

Relies on (Keras 3.3 to 3.15): `Trainer.fit`, and that it calls `make_train_function` when the model is built;
public.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.dynamics.changes import Changes, Wanted
from matex_tf.patches.common import keras_lines, log_once, model_state, wrapping
from matex_tf.patches.dynamics import rows_seen


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    wrapping.wrap(module, f"{keras_lines.trainer(module)}.fit", _fit)
    wrapping.wrap(module, f"{keras_lines.trainer(module)}.make_train_function", _begin)


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    chosen = settings.current()
    if not chosen.changes_networks:
        return wrapped(*args, **kwargs)
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    wanted = Wanted(
        chosen.apoptosis,
        chosen.apoptosis_tolerance,
        chosen.grow,
        chosen.grow_from,
        chosen.grow_to,
        chosen.grow_depth,
    )
    if wanted.apoptosis:
        log_once.log(
            "--apoptosis: neurons that are redundant are taken out while fit trains: the answer is that of a smaller "
            "network"
        )
    watched = rows_seen.watched(given.get("validation_data"))
    everywhere = world.current().allgather(len(watched), "agree on the rows to watch")
    if not all(everywhere):
        watched = []
    state = model_state.of(model)
    steps = given.get("steps_per_epoch") or _steps(given)
    epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
    state.changes = Changes(model, wanted, watched, steps, log_once.log, epochs, state.growth)
    try:
        return wrapped(*args, **kwargs)
    finally:
        state.changes.end()
        state.growth, state.changes = state.changes.growth, None


def _begin(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Just before the first step: the model is built, and the step is not compiled yet."""
    state = model_state.of(model)
    if state.changes is not None:
        state.changes.begin()
    return wrapped(*args, **kwargs)


def _steps(given: Any) -> int | None:
    """Batches of an epoch of arrays; None for other data."""
    x = given.get("x")
    shape = getattr(x, "shape", None)
    if shape is None or not len(shape):
        return None
    return -(-int(shape[0]) // (given.get("batch_size") or 32))
