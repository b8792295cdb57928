"""Steps that leave the state of one rank on every rank, run again where a rank has died in them.

The values of all variables that a step may change are kept before it; see `step_retry` for why that costs no copy of
the weights. After the last exchange of its graph the step counts: what comes then is the rank's own work. If an
exchange fails, the values are put back and the step is run again, with the rows that the rank has now. If another rank
has counted it, this one takes the values and the logs that the other has come to.

Relies on: see `step_retry`; (TensorFlow 2.13 to 2.21, private) `handle_data_util.get_resource_handle_data`, which
variables alone have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.slots import Guard
from matex_tf.exchange import tf_op
from matex_tf.patches.common import model_state
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.batches import Batch
from matex_tf.patches.shards.serving import Parts
from matex_tf.state import run_state

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


class Values:
    """The values of the variables that a compiled function may change: held, not copied."""

    def __init__(self, function: Any):
        """Args: function: concrete."""
        given = {id(tensor) for op in function.graph.get_operations() if op.type not in _READS for tensor in op.inputs}
        self._held = [
            (outer, tf.as_dtype(data.shape_and_type[0].dtype))
            for outer, inner in function.graph.captures  # in the same order on every rank
            if id(inner) in given and (data := handle_data_util.get_resource_handle_data(inner)).is_set
        ]

        @tf.function(autograph=False)
        def read() -> list[Any]:
            return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle, dtype in self._held]

        self._read = read.get_concrete_function() if self._held else list
        self.handles = {id(handle) for handle, _ in self._held}

    @property
    def held(self) -> list[tuple[Any, Any]]:
        """The handle and the dtype of each."""
        return self._held

    def now(self) -> list[Any]:
        """The values that the variables have now."""
        return list(self._read())

    def put_back(self, values: Sequence[Any]) -> None:
        """Let them have these."""
        for (handle, _), value in zip(self._held, values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def changed_by(functions: Iterable[Values], names: Mapping[int, str], other: str) -> list[tuple[Any, Any, str]]:
    """The variables that some functions may change: handle, dtype and name of each, once, in their order.

    Args:
        functions: of each its values. names: of variables, by the id of their handles. other: what one is called that
            is not among these.
    """
    held = {id(handle): (handle, dtype) for values in functions for handle, dtype in values.held}
    return [(*one, names.get(number, other)) for number, one in held.items()]


class StepRunner(Protocol):
    """What runs a step of a model: `shared_step.SharedStep`."""

    def changes(self, data: Any) -> Values:
        """The variables that a step on such rows may change; traces the step where there is none yet."""

    def __call__(self, data: Any, share: RowRange) -> Any:
        """Run the step on a share of a batch."""

    def finish(self) -> Any:
        """Do what the call that an error has cut short had left to do."""


@dataclasses.dataclass
class _Counted:
    """What a step that counts has come to, the same on every rank; as arrays, if another rank has sent it."""

    values: list[Any]
    logs: Any

    def __getstate__(self) -> dict[str, Any]:
        logs = tf.nest.map_structure(_array, self.logs)
        return {"values": [np.asarray(value) for value in self.values], "logs": logs}


class WholeStep:
    """One step of a model, which may have to be run again."""

    def __init__(self, model: Any, batch: Batch, runs: StepRunner, guard: Guard):
        self._batch, self._runs, self._guard = batch, runs, guard
        self._notes = model_state.of(model)
        self._variables: Values | None = None
        self._before: list[Any] | None = None
        self._parts = run_state.current().part(Parts)
        self._parts_before = self._parts.kept()
        self._may_count, self._counts, self._logs = False, False, None

    def prepare(self) -> Any:
        """The step, on this rank's rows among the ranks that there are."""
        data, share = self._batch()
        self._variables = self._runs.changes(data)
        self._before = self._variables.now()
        # There are meetings after the first step, and after the last of those that were asked for.
        self._may_count = not self._notes.begin and not settings.current().steps and not self._parts.every
        self._logs = self._runs(data, share)
        self._parts.copied(self._variables.handles)
        return self._logs

    def count(self) -> None:
        """The ranks have made the last exchange of the step; called in its graph."""
        if self._may_count:
            self._counts, self._before = True, None
            self._guard.mark_committed()

    def commit(self) -> _Counted:
        """Have the step count, if it does not yet."""
        assert self._variables is not None
        if not self._counts:
            world.current().barrier("count a step")
        return _Counted(self._variables.now(), self._logs)

    def catch_up(self, counted: _Counted) -> Any:
        """The step counts, and this rank has not heard of it."""
        assert self._variables is not None
        self._variables.put_back(counted.values)
        self._runs.finish()
        return tf.nest.map_structure(tf.convert_to_tensor, counted.logs)

    def undo(self) -> None:
        """Let everything be as it was."""
        if self._before is not None and self._variables is not None:
            self._variables.put_back(self._before)
        self._parts_before.put_back()


def step(model: Any, batch: Batch, runs: StepRunner, guard: Guard) -> Any:
    """Run a step of a model, again where a rank dies in it; see `step_retry.step`."""
    this, notes = WholeStep(model, batch, runs, guard), model_state.of(model)
    outer = notes.whole_step
    notes.whole_step = None if guard.inside else this  # one inside of another is a part of that
    try:
        return guard.transaction(this.prepare, this.commit, this.undo, this.catch_up)[0]
    finally:
        notes.whole_step = outer


def counting(model: Any) -> Callable[[], Any] | None:
    """What makes an op that has a step count, for the graph of the step; None if ranks do not outlive others."""
    if world.current().guard is None:
        return None
    notes = model_state.of(model)

    def count() -> list[np.ndarray]:
        if notes.whole_step is not None:  # that runs now, in another thread than this op
            notes.whole_step.count()
        return _done([])

    def _done(_: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.array(0, np.int32)]

    return lambda: tf_op.call(count, [], [tf.int32], _done)[0]


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, tf.Tensor) else value
