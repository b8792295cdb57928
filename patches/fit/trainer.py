"""The Keras fit loop.

Relies on (Keras 3.3 to 3.15): `Trainer.make_train_function`, `make_test_function`,
`make_predict_function`, `fit`, `evaluate`, `reset_metrics` (public), and on `_get_metrics_result_or_logs(logs)`, which
`fit` and `evaluate` call where an epoch's logs are read, and `TFEpochIterator`, its `reset` (private); see also
`array_sharding`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import keras_lines, log_once, model_state, sharing_report, under_way, wrapping
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.patches.data import array_sharding, batches
from matex_tf.patches.division import shared_work
from matex_tf.patches.fit import asked, epoch_iterators, falling_behind, predict_function, small_calls, step_function
from matex_tf.patches.fit.step import one_rank_shapes
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.recovery import growing_fit, resume_fit
from matex_tf.patches.sources import batch_ownership as guesses
from matex_tf.patches.sources import decide, price, source_sharding
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.pipeline_ownership import Made
from matex_tf.patches.turns import from_generator, generators, in_turn, pydatasets

#: While `evaluate` runs, also that of a validation, or of a callback in the middle of an epoch.
evaluating = ActiveFlag()


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    for name, wrapper in {
        "make_train_function": _make_train_function,
        "make_test_function": _make_test_function,
        "make_predict_function": _make_predict_function,
        "fit": _fit,
        "evaluate": _evaluate,
        "predict": _predict,
        "_get_metrics_result_or_logs": _logs_of_all,
        "reset_metrics": _reset_metrics,
    }.items():
        wrapping.wrap(module, f"{keras_lines.trainer(module)}.{name}", wrapper)
    wrapping.wrap(module, "TFEpochIterator.__init__", _epoch_iterator)
    adapters = importlib.import_module("keras.src.trainers.data_adapters.array_data_adapter")
    wrapping.wrap(adapters, "ArrayDataAdapter.get_tf_dataset", _array_pipeline)
    adapters = importlib.import_module("keras.src.trainers.data_adapters.py_dataset_adapter")
    wrapping.wrap(adapters, "PyDatasetAdapter.get_tf_dataset", _batches_in_turn)
    adapters = importlib.import_module("keras.src.trainers.data_adapters.generator_data_adapter")
    wrapping.wrap(adapters, "GeneratorDataAdapter.__init__", _peek)
    wrapping.wrap(adapters, "GeneratorDataAdapter.get_tf_dataset", _of_generator)


def _make_train_function(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if model.train_function is None or _forced(*args, **kwargs):
        model_state.of(model).begin = True
        model.train_function = step_function.StepFunction(model, "train")
    return model.train_function


def _make_test_function(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if model.test_function is None or _forced(*args, **kwargs):
        model.test_function = step_function.StepFunction(model, "test")
    return model.test_function


def _make_predict_function(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if model.predict_function is None or _forced(*args, **kwargs):
        model.predict_function = predict_function.PredictFunction(model)
    return model.predict_function


def _forced(force: bool = False) -> bool:
    return force


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    sharing_report.shared()  # also one that was complete before the job was started again
    if world.current().growth is not None:
        return growing_fit.fit(model, lambda: _fit_together(wrapped, model, args, kwargs))
    return resume_fit.fit(model, lambda: _fit_together(wrapped, model, args, kwargs))


def _fit_together(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    model_state.of(model).begin = True
    model_state.of(model).epoch_losses = []
    ranks = world.current()
    ranks.at(f"the start of fit of {model.name}")
    asked.compare(wrapped, args, kwargs)
    if strategies.current().apart:  # groups meet about weights before their first step
        keras_lines.build_before_fit(model, args[0] if args else kwargs.get("x"))
    per_rank = settings.current().batch == "per-rank"
    if isinstance(model.train_function, step_function.StepFunction):
        model.train_function.feed.begin_fit()
    model_state.of(model).batches_in_step = ranks.size if per_rank else 1
    more = _steps_per_execution(model, ranks.size if per_rank else 1)
    with in_turn.within_call(), more, under_way.making_epochs("fit", model):
        try:
            history = wrapped(*args, **kwargs)
        finally:
            model_state.of(model).batches_in_step = 1
    if isinstance(model.train_function, step_function.StepFunction):
        model.train_function.feed.end_fit()
    if not strategies.current().replicas_identical and any(
        optimizer.use_ema for optimizer in weights.optimizers_of(model)
    ):
        model_state.of(
            model
        ).unmerged = True  # Keras has put each rank's own moving averages in the place of its weights
    weights.merge_statistics(model)
    strategies.current().end(model)
    if not strategies.current().replicas_identical:  # `train_on_batch` has to begin another training to meet anybody
        model_state.of(model).begin = True
    ranks.at(f"the end of fit of {model.name}")
    ranks.barrier("end a fit")
    return history


@contextlib.contextmanager
def _steps_per_execution(model: Any, times: int) -> Iterator[None]:
    before = model.steps_per_execution
    model.steps_per_execution = before * times
    try:
        yield
    finally:
        model.steps_per_execution = before


def _evaluate(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if resume_fit.replaying(model):
        return {}  # validation after an epoch that is over
    world.current().at(f"evaluate of {model.name}")
    weights.merge_statistics(model)
    with in_turn.within_call(), evaluating():
        return wrapped(*args, **kwargs)


def _predict(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    world.current().at(f"predict of {model.name}")
    if source_sharding.found(args[0] if args else kwargs.get("x")) == "source":
        raise MatexError(
            "predict gives predictions in the order of the rows, and --data source has dealt those out: give it "
            "arrays, or take --data exact."
        )
    weights.merge_statistics(model)
    notes_of = model_state.of(model)
    notes_of.predicts, notes_of.finding = guesses.UNKNOWN, None
    notes_of.call = call = small_calls.begin(model, "predict", args[0] if args else kwargs.get("x"))
    try:
        with in_turn.within_call(), under_way.making_epochs("predict", model):
            predictions = wrapped(*args, **kwargs)
    finally:
        notes_of.predicts = notes_of.finding = notes_of.call = None
    if call is not None:
        call.end()
    return predictions


def _logs_of_all(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """An epoch's logs, over all ranks; moving statistics are merged at the same point, before validation."""
    if resume_fit.replaying(model):
        return {}
    world.current().at(f"the end of an epoch of {model.name}")
    if isinstance(model.train_function, step_function.StepFunction):
        model.train_function.end_epoch(evaluating=bool(evaluating))
    weights.merge_statistics(model)
    averaged = metrics.merge(model)
    logs = wrapped(*args, **kwargs)
    own = args[0] if args else kwargs.get("logs")
    if logs is own and isinstance(logs, dict):
        logs = metrics.complete(model, logs, averaged)
    elif isinstance(logs, dict):
        logs = {**logs, **averaged}
    if not evaluating:
        falling_behind.look(model, logs)
    return logs


def _reset_metrics(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    metrics.forget(model)
    for name in ("train", "test"):
        function = getattr(model, f"{name}_function")
        if function is not None and not isinstance(function, step_function.StepFunction):
            raise MatexError(
                f"{model.name} ({type(model).__name__}) makes a {name}_function of its own, which cannot be split "
                f"among ranks: give it a {name}_step, in place of make_{name}_function."
            )
    if isinstance(model.train_function, step_function.StepFunction):
        model.train_function.begin_epoch()
    return wrapped(*args, **kwargs)


def _epoch_iterator(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    """What walks over the data of one `fit`, `evaluate` or `predict`; its pipeline is made here, once."""
    fitted, predicting = under_way.pending("fit"), under_way.pending("predict")
    training = fitted is not None
    if predicting is not None and (call := model_state.of(predicting).call) is not None and call.whole:
        return wrapped(*args, **kwargs)
    source_sharding.check_batched(kwargs.get("x"))
    what = "fit" if training else "evaluate" if predicting is None else "predict"
    chosen = model_state.of(fitted).row_choice if training else None
    epochs_asked = under_way.EpochsAsked(training, kwargs, what, chosen)
    with under_way.having(epochs_asked=epochs_asked), source_sharding.paused():
        result = wrapped(*args, **kwargs)
    if training and (this := resume_fit.under_way(fitted)) is not None:
        this.is_of(*_draws_of(iterator))
    adapter = iterator.data_adapter
    if type(adapter).__name__ == "ArrayDataAdapter":
        if chosen is not None:
            chosen.has_epochs(iterator, own=False)
        iterator._num_batches = adapter.num_batches
        epoch_iterators.leave_out(iterator)
        one_rank_shapes.note(iterator)
        return result
    of_tf_data = type(adapter).__name__ == "TFDatasetAdapter"
    found = decide.whose(iterator._distributed_dataset, kwargs["x"] if of_tf_data else None, iterator._num_batches)
    if chosen is not None:
        chosen.has_epochs(iterator, found.own or found.uneven)
        return result
    if found.own:
        iterator._distributed_dataset = array_sharding.as_own(iterator._distributed_dataset, found, what)
        _as_long(iterator, found.batches)
    else:
        batches.made_of[iterator._distributed_dataset] = found.made
        if adapter in price.of:
            price.of[iterator._distributed_dataset] = price.of[adapter]
        if predicting is not None:
            model_state.of(predicting).predicts = found.made
        if of_tf_data:
            _divide(iterator, found.made, what)
    if of_tf_data:
        epoch_iterators.leave_out(iterator)
    if training and found.mark == "source":
        log_once.log("--data source: each rank does its part of the pipeline's work; batches may hold other rows")
    return result


def _draws_of(iterator: Any) -> tuple[bool, bool]:
    """Of the data of an epoch iterator: see `resume_fit.Fit.is_of`."""
    adapter = iterator.data_adapter
    arrays = type(adapter).__name__ == "ArrayDataAdapter"
    counted = arrays or (type(adapter).__name__ == "TFDatasetAdapter" and adapter.num_batches is not None)
    shuffles_batches = arrays and adapter._shuffle == "batch"
    return counted, counted and not iterator.steps_per_epoch and not shuffles_batches


def _divide(iterator: Any, made: Made, what: str) -> None:
    """Let an epoch iterator of Keras make this rank's rows of each batch alone, where that can be done."""
    with source_sharding.paused():
        if not decide.asked(Source.DIVIDED, what == "fit"):
            from_generator.look(iterator._distributed_dataset, what)
        divided = shared_work.divide(iterator._distributed_dataset, made, what)
    if divided.dataset is not None:
        one_rank_shapes.note_rows(divided.dataset, divided.rows)
        iterator._distributed_dataset = divided.dataset
    if divided.kept:
        batches.done_by_all[iterator._distributed_dataset] = shared_work.done_by_all(divided)
    if what == "fit":
        shared_work.tell(divided)


def _as_long(iterator: Any, batches: int | None) -> None:
    """Let an epoch have so many batches on every rank; Keras asks the rank's data again after it has built a model."""
    original = iterator.reset

    def reset() -> None:
        original()
        iterator._num_batches = batches

    iterator.reset = reset
    iterator._num_batches = batches


def _array_pipeline(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    asked = under_way.now().epochs_asked
    if asked is None:
        return wrapped(*args, **kwargs)
    return array_sharding.pipeline(
        adapter, lambda: wrapped(*args, **kwargs), asked.training, asked.arguments, chosen=asked.choice
    )


def _batches_in_turn(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    asked = under_way.now().epochs_asked
    if asked is None:
        return wrapped(*args, **kwargs)
    if asked.choice is not None:
        return asked.choice.of_pydataset(adapter)
    steps = int(asked.arguments.get("steps_per_epoch") or 0)
    return pydatasets.pipeline(adapter, lambda: wrapped(*args, **kwargs), asked.purpose, steps)


def _peek(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    if under_way.now().epochs_asked is None or world.current().is_single:
        return wrapped(*args, **kwargs)
    return generators.peek(lambda: wrapped(*args, **kwargs), adapter, args[0] if args else kwargs["generator"])


def _of_generator(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    asked = under_way.now().epochs_asked
    if asked is None or world.current().is_single:
        return wrapped(*args, **kwargs)
    by_all = asked.choice is not None
    return generators.pipeline(adapter, lambda: wrapped(*args, **kwargs), "" if by_all else asked.purpose)
