"""The Keras fit loop.

Relies on (Keras 3.3 to 3.15): `TensorFlowTrainer.make_train_function`, `make_test_function`,
`make_predict_function`, `fit`, `evaluate`, `reset_metrics` (public), and on `_get_metrics_result_or_logs(logs)`, which
`fit` and `evaluate` call where an epoch's logs are read, `TFEpochIterator` and `ArrayDataAdapter._inputs` (private).
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from matex_tf import settings, world
from matex_tf.errors import MatexError, RanksDisagree
from matex_tf.patches import metrics, names, notes, state, steps, weights

_fitting: list[Any] = []  # models whose `fit` is about to make the iterator of its training data


def apply(module: ModuleType) -> None:
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
        names.wrap(module, f"TensorFlowTrainer.{name}", wrapper)
    names.wrap(module, "TFEpochIterator.__init__", _check_data)


def _make_train_function(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if model.train_function is None or _forced(*args, **kwargs):
        state.of(model).begin = True
        model.train_function = steps.StepFunction(model, "train")
    return model.train_function


def _make_test_function(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if model.test_function is None or _forced(*args, **kwargs):
        model.test_function = steps.StepFunction(model, "test")
    return model.test_function


def _make_predict_function(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if model.predict_function is None or _forced(*args, **kwargs):
        model.predict_function = steps.PredictFunction(model)
    return model.predict_function


def _forced(force: bool = False) -> bool:
    return force


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    state.of(model).begin = True
    ranks = world.current()
    ranks.where = f"the start of fit of {model.name}"
    per_rank = settings.current().batch == "per-rank"
    if per_rank:
        notes.say(
            f"each rank takes batches of the script's size: the global batch is {ranks.size} times as large (--batch)"
        )
    _fitting.append(model)
    with _steps_per_execution(model, ranks.size if per_rank else 1):
        try:
            history = wrapped(*args, **kwargs)
        finally:
            if model in _fitting:
                _fitting.remove(model)
    weights.merge_statistics(model)
    ranks.where = f"the end of fit of {model.name}"
    ranks.meet("end a fit")
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
    world.current().where = f"evaluate of {model.name}"
    weights.merge_statistics(model)
    return wrapped(*args, **kwargs)


def _predict(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    world.current().where = f"predict of {model.name}"
    weights.merge_statistics(model)
    return wrapped(*args, **kwargs)


def _logs_of_all(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """An epoch's logs, over all ranks; moving statistics are merged at the same point, before validation."""
    world.current().where = f"the end of an epoch of {model.name}"
    weights.merge_statistics(model)
    averaged = metrics.merge(model)
    logs = wrapped(*args, **kwargs)
    own = args[0] if args else kwargs.get("logs")
    if logs is own and isinstance(logs, dict):
        return metrics.complete(model, logs, averaged)
    return {**logs, **averaged} if isinstance(logs, dict) else logs


def _reset_metrics(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    metrics.forget(model)
    return wrapped(*args, **kwargs)


def _check_data(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    """Compare the arrays that the ranks hold, before the first batch is made of them."""
    result = wrapped(*args, **kwargs)
    training = bool(_fitting)
    if training:
        _fitting.pop()
    adapter = iterator.data_adapter
    if type(adapter).__name__ != "ArrayDataAdapter":
        return result
    import tensorflow as tf

    ranks = world.current()
    leaves = [leaf for leaf in tf.nest.flatten(adapter._inputs) if leaf is not None]
    rows = int(leaves[0].shape[0])
    ranks.meet("compare the columns of the data", [_column(i, leaf) for i, leaf in enumerate(leaves)])
    held = ranks.gather((rows, _checksum(leaves, rows)), "compare the rows of the data")
    if len(set(held)) > 1:
        counts = ", ".join(str(count) for count, _ in held)
        raise RanksDisagree(
            f"the ranks hold different rows (rows by rank: {counts}). Every rank must hold the whole data, in the "
            "same order; matex_tf shares it out. Look for shuffling that no seed governs, or for a script that "
            "splits its data by host or rank."
        )
    if training and rows < ranks.size:
        raise MatexError(f"there are more ranks ({ranks.size}) than rows to train on ({rows}): start fewer ranks.")
    if training:
        notes.say(f"{rows} rows on every rank: each batch is shared out among {ranks.size} ranks")
    return result


def _column(position: int, leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        dtype = "table of " + ", ".join(map(str, leaf.dtypes)) if hasattr(leaf, "dtypes") else type(leaf).__name__
    return f"array {position}: {getattr(dtype, 'name', dtype)}, rows of shape {tuple(leaf.shape[1:])}"


def _checksum(leaves: list[Any], rows: int) -> int:
    """A checksum over up to 64 rows, spread evenly."""
    chosen = np.unique(np.linspace(0, rows - 1, num=min(rows, 64)).astype(int)) if rows else np.array([], int)
    total = 0
    for leaf in leaves:
        if hasattr(leaf, "iloc"):
            sample = leaf.iloc[chosen].to_numpy()
        elif hasattr(leaf, "numpy"):
            import tensorflow as tf

            sample = tf.gather(leaf, chosen).numpy()
        elif hasattr(leaf, "tocsr") or type(leaf).__name__ == "SparseTensor":
            continue
        else:
            sample = np.asarray(leaf[chosen])
        content = repr(sample.tolist()).encode() if sample.dtype.hasobject else np.ascontiguousarray(sample).tobytes()
        total = zlib.crc32(content, total)
    return total
