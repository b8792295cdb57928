"""What a callback sees of a batch is the whole batch's: logs of all ranks' rows, as on one rank.

Only where somebody reads them: a progress bar, or a callback that has `on_train_batch_end` or `on_test_batch_end`.
A partitioned step gives them so. For other steps one small sum after the step adds up the states of the metrics, if
ranks that may die have not done so (see `step_retry`).

Relies on (Keras 3.3 to 3.15): `CallbackList.on_train_begin`, `on_test_begin`, `on_train_batch_end` and
`on_test_batch_end`, public.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import patches, settings, strategies
from matex_tf.core import world
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket_plan import BucketPlan
from matex_tf.patches.common import keras_lines, model_state, under_way, wrapping
from matex_tf.patches.fit import stopping
from matex_tf.patches.keras import metrics
from matex_tf.state import notes

_HOOKS = {"train": ("on_train_batch_end", "on_batch_end"), "test": ("on_test_batch_end",)}
_WHAT, _LABELS = "add up the logs of a batch", ["the state of the metrics"]

#: Keras' own callbacks that read the logs of a batch, and when.
_READING: dict[str, Callable[[Any], bool]] = {
    # Where each group goes as fast as it can, a bar would let all wait for the slowest: it shows the group's own.
    "ProgbarLogger": lambda bar: bar.verbose == 1 and not strategies.current().deals_parts,
    "TerminateOnNaN": lambda callback: True,
    "LambdaCallback": lambda callback: True,
    "TensorBoard": lambda board: board.update_freq != "epoch",
    "ModelCheckpoint": lambda checkpoint: checkpoint.save_freq != "epoch",
}


class _Read(dict[str, bool]):
    """Of a list of callbacks that is at work: for which kinds of steps somebody reads logs, on any rank."""


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list."""
    for kind in _HOOKS:
        wrapping.wrap(module, f"CallbackList.on_{kind}_begin", _begin(kind))
        wrapping.wrap(module, f"CallbackList.on_{kind}_batch_end", _end_batch(kind))


def _begin(kind: str) -> Any:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if under_way.now().in_keras and strategies.current().averages_gradients:
            read = patches.recorded() or any(_reads(callback, kind) for callback in callbacks.callbacks)
            ranks = world.current()
            everyone = ranks.allreduce(np.array([read], np.int64), "agree whether the logs of batches are read")
            notes.of(callbacks, _Read)[kind] = bool(everyone[0])
        return result

    return wrapper


def _reads(callback: Any, kind: str) -> bool:
    """Whether a callback reads the logs of a batch; ranks may have different ones."""
    of_keras = type(callback).__module__.startswith(keras_lines.PREFIXES)
    if of_keras and type(callback).__name__ not in _READING:
        return False
    if not stopping.overrides(callback, _HOOKS[kind]):
        return False
    return not of_keras or _READING[type(callback).__name__](callback)


def _end_batch(kind: str) -> Any:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        batch, logs, *_ = wrapping.taken(args, kwargs, batch=None, logs=None)
        if logs and notes.of(callbacks, _Read).get(kind) and under_way.now().in_keras:
            model = callbacks.model
            logs = notes.of(model, Adder, lambda: Adder(model)).whole(logs)
        return wrapped(batch, logs)

    return wrapper


class Adder:
    """Makes the logs of the whole batch from those of a rank."""

    def __init__(self, model: Any):
        self._model = weakref.ref(model)
        self._plan: BucketPlan | None = None
        self._graph: Any = None
        self._made_for: tuple[Any, ...] = ()

    def whole(self, logs: dict[str, Any]) -> dict[str, Any]:
        """The logs of the last step, over all ranks. Every rank must call.

        Args:
            logs: of this rank. Entries that are results of metrics are made from their summed state; other numbers
                are means over the batch, weighted by rows.

        Returns:
            The same entries, spread out as callbacks see them.
        """
        model = self._model()
        known, logs = model_state.of(model), keras_lines.flat(logs)
        adding = metrics.adding(model)
        if (
            known.whole or known.before_merge is not None or settings.current().reproducible
        ):  # they hold the state of all ranks already
            return logs
        results = {key: one for key in logs if (one := known.sources.get(key)) is not None and metrics.is_additive(one)}
        means = {key: np.asarray(value, np.float64) for key, value in logs.items() if _is_mean(key, value, known)}
        own = [np.asarray(keras_lines.tensor(variable)).reshape(-1).astype(np.float64) for variable in adding]
        states = sum(part.size for part in own)
        rows = [np.full(1, known.rows_of_step, np.float64)] if means else []
        parts = [*own, *rows, *(mean.reshape(-1) * known.rows_of_step for mean in means.values())]
        total = self._sum(np.concatenate([np.zeros(0), *parts]), None if means else known.committed)
        if results:
            logs.update(self._results(adding, results, total[:states]))
        of_rows = total[states + 1 :] / max(total[states], 1.0) if means else total[:0]
        for key, mean in means.items():
            logs[key], of_rows = of_rows[: mean.size].reshape(mean.shape), of_rows[mean.size :]
        return logs

    def _sum(self, own: np.ndarray, known: np.ndarray | None) -> np.ndarray:
        if known is not None and known.size == own.size:
            return known
        if self._plan is None or self._plan.shapes != [own.shape]:
            self._plan = BucketPlan.of(_WHAT, _LABELS, [own], at_once=True)
        ranks, plan = world.current(), self._plan
        if ranks.is_single or not own.size:
            return own
        return ranks.run_atomically(lambda: process_group.sum_planned(ranks, plan, [own])[0])

    def _results(self, adding: list[Any], results: dict[str, Any], total: np.ndarray) -> dict[str, Any]:
        """What metrics say of a state that is not their own; they keep theirs."""
        made_for = (*map(id, adding), *results, *map(id, results.values()))
        if self._graph is None or self._made_for != made_for:
            self._made_for = made_for

            @tf.autograph.experimental.do_not_convert
            def of_state(total: tf.Tensor) -> dict[str, Any]:
                before = [tf.identity(keras_lines.tensor(variable)) for variable in adding]
                sizes = [int(np.prod(variable.shape)) for variable in adding]
                for variable, part in zip(adding, tf.split(total, sizes), strict=True):
                    variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))
                found = {key: tf.nest.map_structure(metrics.fixed, metric.result()) for key, metric in results.items()}
                for variable, value in zip(adding, before, strict=True):
                    variable.assign(value)
                return found

            self._graph = of_state if self._model().run_eagerly else tf.function(of_state)  # type: ignore[union-attr]
        found: dict[str, Any] = self._graph(tf.constant(total, tf.float64))
        return found


def _is_mean(key: str, value: Any, known: model_state.ModelState) -> bool:
    """Whether an entry of the logs is not a metric's result, but a number that a step has computed of its rows."""
    if known.sources.get(key) is not None:
        return False
    return isinstance(value, (int, float, np.ndarray, np.generic)) or tf.is_tensor(value)
