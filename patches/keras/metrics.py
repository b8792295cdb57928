"""Metrics: merged over ranks from their state, once, before they are read.

Most metrics add to their state with every batch (sums, counts, confusion matrices), so the state of all ranks is the
sum of theirs. One that does something else with it (a running maximum) is given the rows of all ranks, see
`own_metrics`; where that cannot be, its results are averaged, with a warning.

Relies on (Keras 3.3 to 3.15): `Mean.update_state(values, sample_weight)`, `Metric.variables`, both public, and
`Metric._metrics`, `Metric._variables`, private; `CompileMetrics.build` and `built`, of what `Model.metrics` lists.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.across_rows import own_metrics
from matex_tf.patches.across_rows.keras_losses import is_of_whole_batch
from matex_tf.patches.across_rows.own_metrics import Kind
from matex_tf.patches.common import batch_share, keras_lines, model_state, under_way, wrapping
from matex_tf.patches.keras import sum_loss
from matex_tf.patches.steps.step_part import StepPart, StepRun
from matex_tf.state import notes


def install(module: ModuleType) -> None:
    """Patch keras.src.metrics.reduction_metrics or tf_keras.src.metrics.base_metric."""
    for name in ("Reduce",) if keras_lines.is_of_keras_2(module.__name__) else ("Mean", "Sum"):
        wrapping.method(module, f"{name}.update_state", _update_mean, in_steps=True)
    wrapping.method(module, "MeanMetricWrapper.update_state", own_metrics.update_wrapper)


def _update_mean(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A mean over the batch counts as much as the rows that this rank had in it; values of rows count one each.

    So a sum of such means over the batches is that of one rank, too.
    """
    part, counts_as = batch_share.current(), under_way.now().counts_as
    values, sample_weight, *_ = wrapping.taken(args, kwargs, values=None, sample_weight=None)
    if part is None and sample_weight is None:
        sample_weight = counts_as
    of_rows = part is None or (part.has_rows(values) and not is_of_whole_batch(values))
    if part is not None and sample_weight is None and not of_rows:
        sample_weight = part.weight_in_mean if counts_as is None else part.weight_in_mean * counts_as
        values = sum_loss.whole(values, part) if sum_loss.is_sum(values) else values
    return wrapped(values, sample_weight=sample_weight)


def leaves(model: Any) -> list[Any]:
    """The metrics of a model that hold state themselves, each once."""
    found: dict[int, Any] = {}

    def visit(metric: Any) -> None:
        if keras_lines.states(metric):
            found.setdefault(id(metric), metric)
        for inner in [*getattr(metric, "_metrics", ()), *_inner(metric)]:
            visit(inner)

    for metric in model.metrics:
        visit(metric)
    return list(found.values())


def _inner(metric: Any) -> list[Any]:
    return list(metric.metrics) if hasattr(type(metric), "metrics") else []


@contextlib.contextmanager
def watching(
    model: Any,
    made: Callable[[], None] | None = None,
    give: Callable[[Any, Callable[[], Any]], Any] = lambda metric, result: result(),
) -> Iterator[list[tuple[Any, Any]]]:
    """Inside this block, note which tensor is the result of which metric.

    Args:
        made: called where metrics have come up, before they see their first batch.
        give: from a metric and its `result` to what the script gets of it.

    Yields:
        A list that gets a pair (tensor, metric) for every call of `result` of one of the model's metrics.
    """
    results: list[tuple[Any, Any]] = []
    watched: dict[int, tuple[Any, Any]] = {}  # and the method that the metric had of its own, as those of Keras 2

    def watch_all() -> None:
        for metric in leaves(model):
            if id(metric) not in watched:
                watched[id(metric)] = metric, metric.__dict__.get("result")
                metric.__dict__["result"] = noting(metric.result, metric)

    def noting(result: Callable[[], Any], metric: Any) -> Callable[[], Any]:
        def noted() -> Any:
            value = give(metric, result)
            results.append((value, metric))
            return value

        return noted

    def watch_when_built(group: Any) -> None:
        build = group.build

        def built(*args: Any, **kwargs: Any) -> Any:
            result = build(*args, **kwargs)
            watch_all()
            if made is not None:
                made()
            return result

        group.__dict__["build"] = built

    watch_all()
    groups = keras_lines.metric_groups(model)
    unbuilt = [group for group in groups if not getattr(group, "built", True) and hasattr(group, "build")]
    for group in unbuilt:  # of `compile`: its metrics are made when they see their first batch
        watch_when_built(group)
    try:
        yield results
    finally:
        for metric, own in watched.values():
            metric.__dict__.pop("result", None)
            if own is not None:
                metric.__dict__["result"] = own
        for group in unbuilt:
            group.__dict__.pop("build", None)


def is_additive(metric: Any) -> bool:
    """Whether the metric's state over all ranks is the sum of theirs."""
    return notes.found(metric, Kind) in (None, Kind.SUM)


def adding(model: Any) -> list[Any]:
    """The variables of the model's metrics whose state over all ranks is the sum of theirs."""
    return [variable for metric in leaves(model) if is_additive(metric) for variable in keras_lines.states(metric)]


def put_back(model: Any, before: list[tuple[Any, Any]]) -> None:
    """Undo what a ghost's row has changed; metrics that were given the rows of all ranks are right on a ghost too.

    Args:
        model: of Keras. before: variables, each with its value before the step.
    """
    whole = {id(one) for metric in leaves(model) if own_metrics.is_whole(metric) for one in keras_lines.states(metric)}
    known = {id(variable) for variable, _ in before}
    for variable, value in before:
        if id(variable) not in whole:
            variable.assign(value)
    for metric in leaves(model):
        if not known.union(whole).issuperset(map(id, keras_lines.states(metric))):  # made by this step
            metric.reset_state()


def _is_averaged(metric: Any) -> bool:
    return notes.found(metric, Kind) is Kind.AVERAGED


def merge(model: Any) -> dict[str, float]:
    """Let the model's metrics hold the state of all ranks; a second call before the next step changes nothing.

    Returns:
        Results of metrics that cannot be merged by adding, averaged over ranks, by the metric's name.
    """
    known = model_state.of(model)
    if known.whole or known.before_merge is not None or settings.current().reproducible:  # see `virtual_steps`
        return {}
    ranks = world.current()
    metrics = leaves(model)
    own = [(variable, np.asarray(variable.numpy())) for variable in adding(model)]
    labels = [f"metric state {keras_lines.path(variable)} {value.shape}" for variable, value in own]
    ranks.barrier("merge metrics", labels)
    if own and known.committed is not None:
        assign(own, known.committed)  # of ranks that have died since, too
    elif own:
        total = flatten(own)
        ranks.allreduce_in_place(total)
        assign(own, total)
    known.before_merge = own
    return {metric.name: _averaged(metric, known.rows) for metric in metrics if _is_averaged(metric)}


def flatten(state: list[tuple[Any, np.ndarray]]) -> np.ndarray:
    """The state of metrics, one after the other, float64."""
    return np.concatenate([np.zeros(0), *(value.reshape(-1).astype(np.float64) for _, value in state)])


def assign(state: list[tuple[Any, np.ndarray]], flat: np.ndarray) -> None:
    """Set variables of metrics to the parts of a flat array.

    Args:
        state: the variables, each with an array of its shape and dtype. flat: all values, one variable's after
            another's.
    """
    start = 0
    for variable, value in state:
        variable.assign(flat[start : start + value.size].reshape(value.shape).astype(value.dtype))
        start += value.size


def warn_averaged(metric: Any) -> None:
    """Warn that the results of a metric are averaged over the ranks."""
    warnings.warn(
        f"metric {metric.name!r} ({type(metric).__name__}) does more with its state than add to it, so it cannot be "
        "merged over ranks; its results on the ranks are averaged.",
        stacklevel=3,
    )


def _averaged(metric: Any, rows: int) -> Any:
    warn_averaged(metric)
    result = np.asarray(metric.result(), np.float64)
    total = world.current().allreduce(np.array([rows, *(result * rows).reshape(-1)]), "average a metric")
    mean = (total[1:] / max(total[0], 1)).reshape(result.shape)
    return float(mean) if mean.ndim == 0 else mean


def fixed(value: Any) -> Any:
    """A result that does not change with the state that it was made from."""
    return tf.identity(value) if tf.is_tensor(value) or hasattr(value, "assign") else value


class OwnStates(StepPart):
    """Metrics hold this rank's own state while steps add to it."""

    def before(self, run: StepRun) -> None:
        restore_local(self.model)


def restore_local(model: Any) -> None:
    """Give the metrics this rank's own state back, so that more batches can be added to it."""
    known = model_state.of(model)
    for variable, value in known.before_merge or ():
        variable.assign(value)
    known.before_merge = None


def take_as_merged(model: Any) -> None:
    """Every rank has put the same batch into metrics that were reset: they hold the state of all, rank 0 added it."""
    first = world.current().rank == 0
    states = [(variable, np.asarray(variable.numpy())) for variable in adding(model)]
    model_state.of(model).before_merge = [(one, value if first else np.zeros_like(value)) for one, value in states]


def forget(model: Any) -> None:
    """The metrics are about to be reset: nothing is merged any more. One that keeps its state keeps the rank's own."""
    restore_local(model)
    known = model_state.of(model)
    known.before_merge = None
    known.committed = None
    known.rows = 0


def of_all(model: Any, logs: dict[str, Any]) -> dict[str, Any]:
    """The logs of the last step, over all ranks; metrics keep this rank's state. All ranks come here.

    Args:
        model: whose step it was. logs: of this rank; see `complete`.
    """
    known = model_state.of(model)
    if known.whole or known.before_merge is not None or settings.current().reproducible:  # they are whole already
        return keras_lines.flat(logs)
    whole = complete(model, logs, merge(model))
    restore_local(model)
    return whole


def complete(model: Any, logs: Any, averaged: dict[str, float]) -> Any:
    """The logs of the last step, over all ranks.

    Args:
        model: whose step it was.
        logs: the last step's logs, of this rank. Entries that are results of metrics are read again from their merged
            state; others are taken as means over the batch and averaged, weighted by rows.
        averaged: what `merge` returned.
    """
    known = model_state.of(model)
    logs = keras_lines.flat(logs)
    if known.whole:
        return logs
    own: dict[str, np.ndarray] = {}
    whole: dict[str, Any] = {}
    for key, value in logs.items():
        metric = known.sources.get(key)
        if settings.current().reproducible and metric is None:  # of the whole batch already
            continue
        if key in averaged:
            whole[key] = averaged[key]
        elif metric is not None and not _is_averaged(metric):
            whole[key] = tf.nest.map_structure(fixed, metric.result())
        elif isinstance(value, (int, float, np.ndarray, np.generic)) or tf.is_tensor(value):
            own[key] = np.asarray(value, np.float64)
    if own:
        weighted = np.concatenate([np.ones(1), *(value.reshape(-1) for value in own.values())]) * known.rows_of_step
        total = world.current().allreduce(weighted, "average logs")
        total, start = total[1:] / max(total[0], 1.0), 0
        for key, value in own.items():
            mean = total[start : start + value.size].reshape(value.shape)
            whole[key] = float(mean) if mean.ndim == 0 else mean
            start += value.size
    return {key: whole.get(key, value) for key, value in logs.items()}
