"""How far a `fit` is, for those who watch the job: its epochs, and their steps.

Relies on (Keras 3.3 to 3.15, tf_keras 2.16 to 2.21, Keras 2.13 to 2.15): `CallbackList.on_train_begin`,
`on_epoch_begin(epoch)`, `on_epoch_end(epoch)` and `on_train_end`, `CallbackList.params` with `epochs` and `steps`,
`CallbackList.callbacks` and `ProgbarLogger.verbose`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf import strategies
from matex_tf.patches.common import model_state, wrapping
from matex_tf.patches.steps.step_part import StepPart, StepRun
from matex_tf.state import run_state
from matex_tf.watching.meter import Meter


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list or tf_keras.src.callbacks."""
    wrapping.wrap(module, "CallbackList.on_train_begin", _begin)
    wrapping.wrap(module, "CallbackList.on_epoch_begin", _begin_epoch)
    wrapping.wrap(module, "CallbackList.on_epoch_end", _end_epoch)
    wrapping.wrap(module, "CallbackList.on_train_end", _end)


def _begin(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    params = getattr(callbacks, "params", None) or {}
    bar = any(type(one).__name__ == "ProgbarLogger" and getattr(one, "verbose", 0) == 1 for one in callbacks.callbacks)
    # How many parts of batches a group will be dealt nobody knows before its first epoch is over.
    batches = 0 if strategies.current().deals_parts else params.get("steps") or 0
    in_step = model_state.of(callbacks.model).batches_in_step if callbacks.model is not None else 1
    run_state.current().part(Meter).begin_training(params.get("epochs") or 0, -(-batches // in_step), bar)
    return wrapped(*args, **kwargs)


def _begin_epoch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    meter = run_state.current().part(Meter)
    meter.make_room()
    meter.begin_epoch(args[0] if args else kwargs["epoch"])
    return wrapped(*args, **kwargs)


def _end_epoch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    meter = run_state.current().part(Meter)
    meter.make_room()
    meter.end_epoch()
    return wrapped(*args, **kwargs)


def _end(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    meter = run_state.current().part(Meter)
    meter.end_training()
    meter.make_room()
    return wrapped(*args, **kwargs)


class Metered(StepPart):
    """Steps and their rows are counted, and the time that is lost on tracing."""

    def after(self, run: StepRun) -> bool:
        meter = run_state.current().part(Meter)
        if self.kind == "train":
            meter.count(run.share.total)
        if run.tracing:
            meter.has_traced(run.tracing, steps=int(self.kind == "train"))
        return False
