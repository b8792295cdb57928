"""Metrics that a script has written: those that look across the rows of a batch are given the rows of all ranks.

A function that gives one value for each row is averaged as it is. Any other (F1 of a batch) is computed by every rank
from the rows of all. A class whose `update_state` adds up over rows keeps each rank's part. That is tried once, with
made-up rows: what seven rows add must be what two and five of them add. Any other class is updated by every rank with
the rows of all: its state is then the same everywhere.

Relies on (Keras 3.3 to 3.15): `Metric.update_state`, `Metric.variables`, public; `MeanMetricWrapper._fn` and
`_fn_kwargs`, `Metric._metrics`, private.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.patches.across_rows import gathered_batch, keras_losses, trial_rows
from matex_tf.patches.common import batch_share, keras_lines, log_once, wrapping
from matex_tf.state import notes


class Kind(enum.Enum):
    """How the state of a metric is that of all ranks: the sum of theirs, on every rank already, or not at all.

    A note on the metric, once that is known.
    """

    SUM = "sum"
    WHOLE = "whole"
    AVERAGED = "averaged"


class _Function(NamedTuple):
    """Of a metric: whether its function gives one value, or more, for each row."""

    by_row: bool


def keras_own(metric: Any) -> bool:
    """Whether the update of a metric is Keras' own code."""
    return keras_lines.of_keras(type(metric).update_state)


def is_whole(metric: Any) -> bool:
    """Whether every rank has the state of all ranks already."""
    return notes.found(metric, Kind) is Kind.WHOLE


def update_wrapper(wrapped: Any, metric: Any, args: Any, kwargs: Any) -> Any:
    """Wraps `MeanMetricWrapper.update_state` (see `wrapping.wrap`): a function that gives no value for each row gets
    the rows of all ranks."""
    part, function = batch_share.current(), metric._fn
    if part is None:
        return wrapped(*args, **kwargs)
    y_true, y_pred, *_ = wrapping.taken(args, kwargs, y_true=None, y_pred=None)
    by_row = keras_losses.of_keras(function) and not _over_rows(metric, y_pred)
    if by_row or _gives_rows(metric, (y_true, y_pred), part):
        return wrapped(*args, **kwargs)
    whole = [
        _gather(one, part, f"{name} of metric {metric.name}") for name, one in (("y_true", y_true), ("y_pred", y_pred))
    ]
    with batch_share.hidden():
        value = tf.convert_to_tensor(function(*whole, **metric._fn_kwargs))
    keras_losses.mark(value)
    metric.__dict__["_fn"] = lambda *args, **kwargs: value  # past Keras' tracking
    try:
        return wrapped(*args, **kwargs)
    finally:
        metric.__dict__["_fn"] = function


def _over_rows(metric: Any, y_pred: Any) -> bool:
    """Whether a metric of Keras has an `axis` that runs over rows, such as `CosineSimilarity(axis=0)`."""
    axis = metric._fn_kwargs.get("axis", -1)
    return keras_losses.across_rows(axis, tf.TensorShape(getattr(y_pred, "shape", None)).rank)


def _gives_rows(metric: Any, given: tuple[Any, Any], part: batch_share.StepShare) -> bool:
    """Whether a function gives one value, or more, for each row; found by tracing it for any number of rows."""
    tried = notes.found(metric, _Function)
    if tried is None:
        if not all(map(_dense, tf.nest.flatten(given))):
            return True
        specs = trial_rows.specs(given, part)
        function, options = metric._fn, metric._fn_kwargs
        try:
            with tf.init_scope(), batch_share.hidden():
                traced = tf.function(lambda *both: function(*both, **options)).get_concrete_function(*specs)
            shape = tf.nest.flatten(traced.structured_outputs)[0].shape
            tried = _Function(bool(shape.rank) and shape[0] is None)
        except Exception:  # of the script's own code, which may want eager tensors
            with batch_share.hidden():
                value = tf.convert_to_tensor(function(*given, **options))
            tried = _Function(part.has_rows(value))
        notes.put(metric, tried)
    return tried.by_row


def update(metric: Any, wrapped: Callable[..., Any], args: Any, kwargs: Any, part: batch_share.StepShare) -> Any:
    """Update a metric that is not Keras' own, by its kind.

    Args:
        metric: of Keras. wrapped: its `update_state`, bound. args, kwargs: of the call, with this rank's rows.
        part: of the step, to which these rows belong.
    """
    detect_additive(metric, wrapped, args, kwargs, part)
    if not is_whole(metric):
        return wrapped(*args, **kwargs)

    def of_all(leaf: Any) -> Any:
        if not trial_rows.is_array(leaf):
            return leaf
        if part.has_rows(leaf):
            return _gather(leaf, part, f"an argument of metric {metric.name}")
        value = tf.convert_to_tensor(leaf)
        if not value.dtype.is_floating or not value.shape.is_fully_defined():
            return leaf
        return tf.cast(gathered_batch.average(value, part, f"an argument of metric {metric.name}"), value.dtype)

    args, kwargs = tf.nest.map_structure(of_all, (args, kwargs))
    with batch_share.hidden():
        return wrapped(*args, **kwargs)


def detect_additive(
    metric: Any, wrapped: Callable[..., Any], args: Any, kwargs: Any, part: batch_share.StepShare
) -> None:
    """Find out a metric's kind before it is updated for the first time; see `update`."""
    if notes.has(metric, Kind):
        return
    if not all(map(_dense, tf.nest.flatten((args, kwargs)))):
        notes.put(metric, Kind.SUM if _only_adds(metric, wrapped, args, kwargs) else Kind.AVERAGED)
        return
    leaves = [leaf for leaf in tf.nest.flatten((args, kwargs)) if trial_rows.is_array(leaf)]
    if any(map(part.has_rows, leaves)) and _adds_up(metric, wrapped, (args, kwargs), part):
        notes.put(metric, Kind.SUM)
        return
    for one in _with_inner(metric):
        notes.put(one, Kind.WHOLE)
    log_once.log(f"metric {metric.name} is not a sum over rows: every rank computes it from the rows of all ranks")


def _with_inner(metric: Any) -> list[Any]:
    found = [metric]
    for inner in getattr(metric, "_metrics", ()):
        found += _with_inner(inner)
    return found


def _dense(leaf: Any) -> bool:
    return not isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices))


def _gather(value: Any, part: batch_share.StepShare, label: str) -> Any:
    def rows(leaf: Any) -> Any:
        if leaf is None or not part.has_rows(leaf):
            return leaf
        whole, _ = gathered_batch.gather(leaf, part, label)
        mask = keras_lines.mask(leaf)
        if mask is not None:
            keras_lines.set_mask(whole, gathered_batch.gather(mask, part, f"the mask of {label}")[0])
        return whole

    return tf.nest.map_structure(rows, value)


def _adds_up(metric: Any, wrapped: Callable[..., Any], given: Any, part: batch_share.StepShare) -> bool:
    """Whether an update adds to the state, and adds for some rows and the others what it adds for all."""
    before: list[tuple[Any, np.ndarray]] = []

    def put_back() -> None:
        for variable, value in before:
            variable.assign(value)

    try:
        with tf.init_scope(), batch_share.hidden():
            function, rows = trial_rows.traced(lambda arguments: wrapped(*arguments[0], **arguments[1]), given, part)
            variables = list(metric.variables)
            if not variables or not all(map(_Writes(function).add_to, variables)):
                return False
            before = [(variable, np.array(variable.numpy())) for variable in variables]

            def added(first: int, last: int) -> list[np.ndarray]:
                function(*trial_rows.part_of(rows, first, last))
                after = [np.asarray(variable.numpy(), np.float64) for variable in variables]
                put_back()
                return [now - value for now, (_, value) in zip(after, before, strict=True)]

            spans = ((0, trial_rows.ROWS), (0, trial_rows.SOME), (trial_rows.SOME, trial_rows.ROWS))
            whole, some, others = (added(*span) for span in spans)
    except Exception:  # of the script's own code, which may want eager tensors, or other values
        return False
    finally:
        with tf.init_scope():
            put_back()
    alike = all(np.allclose(a, b + c, rtol=1e-3, atol=1e-5) for a, b, c in zip(whole, some, others, strict=True))
    return alike and any(one.any() for one in whole)


def _only_adds(metric: Any, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether an update adds to the state, of rows that cannot be made up (sparse, ragged)."""

    def run() -> None:
        with batch_share.hidden():
            wrapped(*args, **kwargs)

    function = tf.function(tf.autograph.experimental.do_not_convert(run)).get_concrete_function()
    return all(map(_Writes(function).add_to, metric.variables))


class _Writes:
    """What a traced update writes to the variables that it uses."""

    def __init__(self, function: Any):
        self._inside = {id(outer): inner for outer, inner in function.graph.captures}

    def add_to(self, variable: Any) -> bool:
        """Whether it writes to this one by adding to it, and in no other way."""
        handle = self._inside.get(id(keras_lines.handle(variable)))
        if handle is None:
            return False  # not written where it can be seen
        writes = [op for op in handle.consumers() if op.type != "ReadVariableOp"]
        return bool(writes) and all(op.type == "AssignAddVariableOp" or _assigns_sum(op, handle) for op in writes)


def _assigns_sum(op: Any, handle: Any) -> bool:
    if op.type != "AssignVariableOp":
        return False
    value = _origin(op.inputs[1])
    return value.type in ("AddV2", "Add") and any(
        source.type == "ReadVariableOp" and source.inputs[0] is handle for source in map(_origin, value.inputs)
    )


def _origin(tensor: Any) -> Any:
    while tensor.op.type in ("Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return tensor.op
