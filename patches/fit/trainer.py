"""The fit loop of Keras 3.

Relies on (Keras 3.3 to 3.15): `Trainer.make_train_function`, `make_test_function`, `make_predict_function`, `fit`,
`evaluate`, `predict`, `reset_metrics` (public), and on `_get_metrics_result_or_logs(logs)`, which `fit` and `evaluate`
call where an epoch's logs are read (private).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from matex_tf import strategies
from matex_tf.core import world
from matex_tf.patches.common import keras_lines, model_state, wrapping
from matex_tf.patches.fit import predict_function, small_calls, step_function
from matex_tf.patches.fit.model_calls import ModelCalls
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.turns import read_ahead


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    for name, wrapper in Calls().wrappers("_get_metrics_result_or_logs").items():
        wrapping.wrap(module, f"{keras_lines.trainer(module)}.{name}", wrapper)


class Calls(ModelCalls):
    """Methods of a model of Keras 3."""

    step_function, predict_function = step_function.StepFunction, predict_function.PredictFunction

    def within(self) -> contextlib.AbstractContextManager[Any]:
        """See the base."""
        return read_ahead.within_call()

    @contextlib.contextmanager
    def executing(self, model: Any, times: int) -> Iterator[None]:
        """By `steps_per_execution`; see `ModelCalls.executing`."""
        before = model.steps_per_execution
        model.steps_per_execution = before * times
        try:
            yield
        finally:
            model.steps_per_execution = before

    def recovering(self, model: Any, fit: Callable[[], Any]) -> Any:
        """Ranks may also come; see `ModelCalls.recovering`."""
        growth = world.current().growth
        return resume_fit.fit(model, fit) if growth is None else growth.fit(model, fit)

    def before_fit(self, model: Any, x: Any) -> None:
        """Groups have weights made, about which they meet before their first step; see `ModelCalls.before_fit`."""
        if strategies.current().apart:  # groups meet about weights before their first step
            keras_lines.build_before_fit(model, x)

    @contextlib.contextmanager
    def predicting(self, model: Any, x: Any) -> Iterator[None]:
        """Small calls are not shared out; see `ModelCalls.predicting`."""
        notes = model_state.of(model)
        notes.call = call = small_calls.begin(model, "predict", x)
        try:
            yield
        finally:
            notes.call = None
        if call is not None:
            call.end()
