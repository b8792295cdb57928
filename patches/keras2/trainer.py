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

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import model_state, sharing_report, under_way, wrapping
from matex_tf.patches.fit import asked
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.keras2 import steps
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.sources import batch_ownership as guesses
from matex_tf.patches.sources import source_sharding


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.engine.training."""
    for kind, cls in (("train", steps.StepFunction), ("test", steps.StepFunction), ("predict", steps.PredictFunction)):
        wrapping.wrap(module, f"Model.make_{kind}_function", _making(kind, cls))
    for name, wrapper in {
        "fit": _fit,
        "evaluate": _evaluate,
        "predict": _predict,
        "train_on_batch": _on_batch,
        "test_on_batch": _on_batch,
        "predict_on_batch": _on_batch,
        "_validate_and_get_metrics_result": _logs_of_all,
        "reset_metrics": _reset_metrics,
        "_maybe_load_initial_counters_from_ckpt": _initial_counters,
    }.items():
        wrapping.wrap(module, f"Model.{name}", wrapper)


def _making(kind: str, cls: Any) -> Any:
    def make(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        held = getattr(model, f"{kind}_function")
        if held is None or _forced(*args, **kwargs):
            if kind == "train":
                model_state.of(model).begin = True
            held = cls(model, kind)
            setattr(model, f"{kind}_function", held)
        return held

    return make


def _forced(force: bool = False) -> bool:
    return force


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


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _refuse()
    sharing_report.shared()
    return resume_fit.fit(model, lambda: _fit_together(wrapped, model, args, kwargs))


def _fit_together(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    ranks = world.current()
    model_state.of(model).begin = True
    ranks.at(f"the start of fit of {model.name}")
    asked.compare(wrapped, args, kwargs)
    times = ranks.size if settings.current().batch == "per-rank" else 1
    if isinstance(model.train_function, steps.StepFunction):
        model.train_function.feed.begin_fit()
    with (
        _steps_per_execution(model, times),
        under_way.having(in_keras=True),
        under_way.making_epochs("fit", model),
    ):
        history = wrapped(*args, **kwargs)
    weights.merge_statistics(model)
    strategies.current().end(model)
    ranks.at(f"the end of fit of {model.name}")
    ranks.barrier("end a fit")
    return history


@contextlib.contextmanager
def _steps_per_execution(model: Any, times: int) -> Iterator[None]:
    """Count batches of the script's size, of which a step takes one for each rank."""
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


def _initial_counters(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Where `fit` begins: not where BackupAndRestore would, if there is a checkpoint of the job."""
    epoch, step = wrapped(*args, **kwargs)
    asked = args[1] if len(args) > 1 else kwargs["initial_epoch"]
    return (asked, 0) if resume_fit.replaying(model) else (epoch, step)


def _evaluate(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if resume_fit.replaying(model):
        return {}  # validation after an epoch that is over
    world.current().at(f"evaluate of {model.name}")
    weights.merge_statistics(model)
    with under_way.having(in_keras=True):
        return wrapped(*args, **kwargs)


def _predict(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    world.current().at(f"predict of {model.name}")
    if source_sharding.found(args[0] if args else kwargs.get("x")) == "source":
        raise MatexError(
            "predict gives predictions in the order of the rows, and --data source has dealt those out: give it "
            "arrays, or take --data exact."
        )
    weights.merge_statistics(model)
    notes = model_state.of(model)
    notes.predicts, notes.finding = guesses.UNKNOWN, None
    try:
        with under_way.having(in_keras=True), under_way.making_epochs("predict", model):
            return wrapped(*args, **kwargs)
    finally:
        notes.predicts = notes.finding = None


def _on_batch(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _refuse()
    with under_way.having(in_keras=True), steps.on_batch():
        return wrapped(*args, **kwargs)


def _logs_of_all(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """An epoch's logs, over all ranks; moving statistics are merged at the same point, before validation."""
    if resume_fit.replaying(model):
        return {}
    world.current().at(f"the end of an epoch of {model.name}")
    if isinstance(model.train_function, steps.StepFunction):
        model.train_function.feed.end_epoch(model)
    weights.merge_statistics(model)
    averaged = metrics.merge(model)
    own = args[0] if args else kwargs["logs"]
    logs = wrapped(own)
    if logs is own and isinstance(logs, dict):
        return metrics.complete(model, logs, averaged)
    return {**logs, **averaged} if isinstance(logs, dict) else logs


def _reset_metrics(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    metrics.forget(model)
    for name in ("train", "test"):
        function = getattr(model, f"{name}_function")
        if function is not None and not isinstance(function, steps.StepFunction):
            raise MatexError(
                f"{model.name} ({type(model).__name__}) makes a {name}_function of its own, which cannot be split "
                f"among ranks: give it a {name}_step, in place of make_{name}_function."
            )
    if isinstance(model.train_function, steps.StepFunction):
        model.train_function.feed.begin_epoch()
    return wrapped(*args, **kwargs)
