"""Metrics that a script updates and reads itself: `result()` is that of all rows, on every rank.

A metric keeps the rank's own state; when its result is asked for, the states are added up for as long as it is
computed. A batch that every rank has whole is counted by rank 0 alone, and a ghost's row by nobody. A metric that was
never updated in a loop over batches, nor in a compiled step, is left alone: every rank has all of it. Metrics that a
script has written are updated by their kind here, in steps of Keras too; see `own_metrics`.

Relies on (Keras 3.3 to 3.15): `Metric.update_state`, `Metric.result`, `Metric.variables`, public.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import own_metrics
from matex_tf.patches.common import batch_share, keras_lines, under_way, wrapping
from matex_tf.patches.keras import metrics, whole_results
from matex_tf.patches.loops import position
from matex_tf.state import notes


class _Shared:
    """Of a metric: that its state differs between ranks."""


def install(module: ModuleType) -> None:
    """Patch keras.src.metrics.metric or tf_keras.src.metrics.base_metric: all classes of metrics, as they are made."""
    metric_class = wrapping.require(module, "Metric")

    def made(cls: type, /, **options: Any) -> None:
        super(metric_class, cls).__init_subclass__(**options)
        _wrap(cls)

    metric_class.__init_subclass__ = classmethod(made)
    pending = list(metric_class.__subclasses__())
    while pending:
        cls = pending.pop()
        _wrap(cls)
        pending += cls.__subclasses__()


def _wrap(cls: type) -> None:
    for name, wrapper in (("update_state", _update), ("result", _result)):
        if callable(vars(cls).get(name)):
            setattr(cls, name, wrapping.around(_as_called(cls, vars(cls)[name]), wrapper))


def _as_called(cls: type, method: Any) -> Any:
    """A method; of a metric of Keras 2 as Keras 2 calls it, with AutoGraph."""
    of_keras_2 = any(keras_lines.is_of_keras_2(one.__module__) for one in cls.__mro__)
    return keras_lines.converted(method) if of_keras_2 else method


def _working(metric: Any) -> contextlib.AbstractContextManager[None]:
    return under_way.having(metrics=(*under_way.now().metrics, metric))


def _left_alone(metric: Any) -> bool:
    return any(one is metric for one in under_way.now().metrics) or not position.active()


def _update(wrapped: Any, metric: Any, args: Any, kwargs: Any) -> Any:
    if _left_alone(metric):
        in_step = batch_share.of_step()
        if in_step is None or own_metrics.keras_own(metric):
            return wrapped(*args, **kwargs)
        return own_metrics.update(metric, wrapped, args, kwargs, in_step)
    part = position.part()
    assert part is not None
    eager = tf.executing_eagerly()
    whole = settings.current().shares_loops and int(position.read()[0]) == position.OUTSIDE
    if eager and whole and not notes.has(metric, _Shared):
        return wrapped(*args, **kwargs)
    if not own_metrics.keras_own(metric):
        own_metrics.detect_additive(metric, wrapped, args, kwargs, part)
        if own_metrics.is_whole(metric) and settings.current().shares_loops:
            position.touch()
            return own_metrics.update(metric, wrapped, args, kwargs, part)
    with _working(metric):
        _share(metric)
        position.touch()
        if eager and bool(part.counts):
            return wrapped(*args, **kwargs)
        before = [(variable, tf.identity(keras_lines.tensor(variable))) for variable in metric.variables]
        known = {id(variable) for variable, _ in before}
        result = wrapped(*args, **kwargs)
        before += [(v, tf.zeros(v.shape, v.dtype)) for v in metric.variables if id(v) not in known]
        for variable, value in before:
            variable.assign(value if eager else tf.where(part.counts, tf.convert_to_tensor(variable), value))
        return result


def any_shared(variables: Sequence[Any]) -> bool:
    """Whether any of these variables of TensorFlow has another state on each rank, for a metric."""
    states = {id(getattr(state, "_value", state)) for metric in notes.having(_Shared) for state in metric.variables}
    return any(id(variable) in states for variable in variables)


def _share(metric: Any) -> None:
    """From now on ranks add up their states; what is there already, every rank has, and rank 0 alone keeps it."""
    if not notes.has(metric, _Shared):
        notes.put(metric, _Shared())
        if world.current().rank and settings.current().shares_loops:
            with tf.init_scope():
                for variable in metric.variables:
                    variable.assign(tf.zeros(variable.shape, variable.dtype))


def _result(wrapped: Any, metric: Any, args: Any, kwargs: Any) -> Any:
    if _left_alone(metric) or not notes.has(metric, _Shared):
        return wrapped(*args, **kwargs)
    with _working(metric):
        if not metrics.is_additive(metric):
            return _averaged(wrapped(*args, **kwargs), metric)
        return whole_results.of_sums(metric, metric.variables, lambda: wrapped(*args, **kwargs))


def _averaged(result: Any, metric: Any) -> Any:
    metrics.warn_averaged(metric)
    size = world.current().size
    values = list(map(tf.convert_to_tensor, tf.nest.flatten(result)))
    flat = [tf.cast(value, tf.float64) / size for value in values]
    labels = [f"a result of {metric.name}" for _ in flat]
    sums = tf_op.sum_over_ranks(flat, "average a metric", labels)
    dtypes = [value.dtype if value.dtype.is_floating else tf.float32 for value in values]
    return tf.nest.pack_sequence_as(result, list(map(tf.cast, sums, dtypes)))
