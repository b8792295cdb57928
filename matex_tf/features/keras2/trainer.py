"""The fit loop of Keras 2.

Relies on (tf_keras 2.16 to 2.21): `Model.make_train_function`, `make_test_function`, `make_predict_function`, `fit`,
`evaluate`, `predict`, `train_on_batch`, `test_on_batch`, `predict_on_batch`, `reset_metrics`, public;
`Model._validate_and_get_metrics_result(logs)`, which `fit` and `evaluate` call where an epoch's logs are read,
`Model._maybe_load_initial_counters_from_ckpt(steps_per_epoch, initial_epoch)` and `Model._steps_per_execution`,
private.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.errors import MatexError
from matex_tf.features.keras2 import steps
from matex_tf.patches.common import under_way, wrapping
from matex_tf.patches.fit.model_calls import ModelCalls
from matex_tf.patches.recovery import resume_fit


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.engine.training."""
    for name, wrapper in {
        **Calls().wrappers("_validate_and_get_metrics_result"),
        "train_on_batch": _on_batch,
        "test_on_batch": _on_batch,
        "predict_on_batch": _on_batch,
        "_maybe_load_initial_counters_from_ckpt": _initial_counters,
    }.items():
        wrapping.wrap(module, f"Model.{name}", wrapper)


class Calls(ModelCalls):
    """Methods of a model of Keras 2."""

    step_function, predict_function = steps.StepFunction, steps.PredictFunction

    def within(self) -> contextlib.AbstractContextManager[Any]:
        """See the base."""
        return under_way.having(in_keras=True)

    @contextlib.contextmanager
    def executing(self, model: Any, times: int) -> Iterator[None]:
        """By the variable of `steps_per_execution`, if there is one; see `ModelCalls.executing`."""
        held = model._steps_per_execution
        if held is None or times == 1:
            yield
            return
        before = held.numpy()
        held.assign(before * times)
        try:
            yield
        finally:
            held.assign(before)

    def before_fit(self, model: Any, x: Any) -> None:
        """Refuses settings that are for Keras 3 alone; see `ModelCalls.before_fit`."""
        _refuse()


def _refuse() -> None:
    """Raises: MatexError: a setting that is for Keras 3 alone."""
    if settings.current().reproducible:
        raise MatexError(
            "--reproducible is for models of Keras 3, and this one is of tf_keras (Keras 2): leave it out "
            "(docs/keras2.md)."
        )
    if settings.current().shard != "none":
        raise MatexError(
            "--shard is for models of Keras 3, and this one is of tf_keras (Keras 2): leave it out (docs/sharding.md)."
        )
    settings.current().call_each("refuse_keras_2")


def _initial_counters(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Where `fit` begins: not where BackupAndRestore would, if there is a checkpoint of the job."""
    epoch, step = wrapped(*args, **kwargs)
    asked = args[1] if len(args) > 1 else kwargs["initial_epoch"]
    return (asked, 0) if resume_fit.replaying(model) else (epoch, step)


def _on_batch(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _refuse()
    with under_way.having(in_keras=True), steps.on_batch():
        return wrapped(*args, **kwargs)
