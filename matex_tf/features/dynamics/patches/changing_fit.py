"""`fit` with --apoptosis or --grow: the model is looked at between steps, and changes.

Relies on (Keras 3.3 to 3.15): `Trainer.fit`, and that it calls `make_train_function` when the model is built;
public.
"""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.features.dynamics.changes import Changes
from matex_tf.features.dynamics.growth import Growth
from matex_tf.features.dynamics.options import DynamicsOptions
from matex_tf.features.dynamics.patches import rows_seen
from matex_tf.patches.common import keras_lines, log_once, model_state, wrapping
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.state import notes


@dataclasses.dataclass
class Grown:
    """What is remembered about a model.

    Attributes:
        growth: of an earlier `fit`, which goes on in the next one; None if it never began small.
    """

    growth: Growth | None = None


class Changing:
    """The changes of one `fit`, beside its steps; see `FitPart`."""

    partitioned = False  # neurons are judged by this rank's rows, and the step is compiled anew

    def __init__(self, changes: Changes) -> None:
        self.changes = changes

    @property
    def wants_rows(self) -> bool:
        return self.changes.wants_rows

    def before_step(self, data: Any, share: RowRange) -> None:
        self.changes.see(*rows_seen.of(data, share))

    def after_step(self) -> None:
        self.changes.after_step()

    def after_epoch(self) -> None:
        self.changes.after_epoch()


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    wrapping.wrap(module, f"{keras_lines.trainer(module)}.fit", _fit)
    wrapping.wrap(module, f"{keras_lines.trainer(module)}.make_train_function", _begin)


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    wanted = settings.current().of(DynamicsOptions)
    if not wanted.changes_networks:
        return wrapped(*args, **kwargs)
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    keras_lines.build_before_fit(model, given.get("x"))
    watched = rows_seen.watched(given.get("validation_data"))
    everywhere = world.current().allgather(len(watched), "agree on the rows to watch")
    if not all(everywhere):
        watched = []
    state = model_state.of(model)
    steps = given.get("steps_per_epoch") or _steps(given)
    epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
    grown = notes.of(model, Grown)
    part = Changing(Changes(model, wanted, watched, steps, log_once.log, epochs, grown.growth))
    state.fit_parts.append(part)
    try:
        return wrapped(*args, **kwargs)
    finally:
        part.changes.end()
        grown.growth = part.changes.growth
        state.fit_parts.remove(part)


def _begin(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Just before the first step: the model is built, and the step is not compiled yet."""
    for part in model_state.of(model).fit_parts:
        if isinstance(part, Changing):
            part.changes.begin()
    return wrapped(*args, **kwargs)


def _steps(given: Any) -> int | None:
    """Batches of an epoch of arrays; None for other data."""
    x = given.get("x")
    shape = getattr(x, "shape", None)
    if shape is None or not len(shape):
        return None
    return -(-int(shape[0]) // (given.get("batch_size") or 32))
