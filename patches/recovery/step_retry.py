"""Steps that are run again where a rank has died in them; see `matex_tf.faults.transactions`.

A step ends in a sum of the metrics' states over all ranks. So every rank knows what a rank that dies later had
gathered, and nothing of it is lost.

Before a step the values of all variables are kept: not as copies, since TensorFlow copies a value that someone still
holds when it is about to change it. Once a step counts they are let go. A rank that has not heard that it counts takes
the weights of one that has.

Relies on (TensorFlow 2.16 to 2.21): `ReadVariableOp` gives a variable's own memory, and updates of variables leave
memory alone that is held elsewhere.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.slots import Guard
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.patches.common import keras_lines, model_state, seeds
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.batches import Batch
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.shards.serving import Parts
from matex_tf.state import run_state

_Result = TypeVar("_Result")

_read = tf.raw_ops.ReadVariableOp
_WHAT, _LABELS = "count a step", ["the state of the metrics"]


def whole(work: Callable[[], _Result], what: str) -> _Result:
    """Do something that has collectives in it, on all ranks that are left or on none.

    Args:
        work: run again where a rank dies in it.
        what: the purpose of the meeting that ends it.
    """
    ranks = world.current()
    if ranks.guard is None:
        return work()
    parts = run_state.current().part(Parts).kept()
    return ranks.guard.transaction(work, lambda: ranks.barrier(what), parts.put_back)[0]


class StepRunner(Protocol):
    """What runs a step of a model: `shared_step.SharedStep`."""

    changing: list[Any] | None

    def trace(self, data: Any) -> None:
        """Make what the step needs, the variables of optimizers among it, from rows."""

    def __call__(self, data: Any, share: RowRange) -> Any:
        """Run the step on a share of a batch."""

    def finish(self) -> Any:
        """Do what the call that an error has cut short had left to do, and give its result."""


@dataclasses.dataclass
class _Counted:
    """What a step that counts has come to, the same on every rank.

    Attributes:
        metrics: see `ModelState.committed`.
        trained: the values of `trained_by_gradients`; as arrays, where another rank has sent them.
    """

    metrics: np.ndarray
    trained: list[Any]

    def __getstate__(self) -> dict[str, Any]:
        return {"metrics": self.metrics, "trained": [np.asarray(value) for value in self.trained]}


class RecoverableStep:
    """One step of a model, which may have to be run again."""

    def __init__(self, model: Any, batch: Batch, runs: StepRunner):
        self._model = model
        self._batch = batch
        self._runs = runs
        self._notes = model_state.of(model)
        self._values: list[tuple[Any, tf.Tensor]] | None = None
        self._before: dict[str, Any] = {}

    def prepare(self) -> Any:
        """The step, on this rank's rows among the ranks that there are."""
        ranks, notes = world.current(), self._notes
        data, share = self._batch()
        self._runs.trace(data)  # what it makes has to be there before values are kept
        if notes.before_merge is not None:
            metrics.restore_local(self._model)
        if notes.generation != ranks.generation:
            _take_over(self._model)
        if self._runs.changing is None or notes.begin:  # a first step may make more
            self._runs.changing = [(v, *_memory(v)) for v in changing(self._model)]
            self._runs.changing += [(v, v.handle, v.dtype) for v in seeds.states()]
        self._values = [(v, _read(resource=handle, dtype=dtype)) for v, handle, dtype in self._runs.changing]
        self._before = copy.copy(vars(notes))
        begin = notes.begin
        result = self._runs(data, share)
        if begin:
            self._runs.changing = None
        return result

    def commit(self) -> _Counted:
        """Have the step count."""
        if settings.current().reproducible:  # every rank has the sum
            world.current().barrier(_WHAT)
            total = metrics.flatten(own_metrics(self._model))
        else:
            total = sum_of_metrics(self._model)
        return _Counted(total, [held(variable) for variable in trained_by_gradients(self._model)])

    def catch_up(self, counted: _Counted) -> Any:
        """The step counts, and this rank has not heard of it: all is done but for the sums of the gradients."""
        for variable, value in zip(trained_by_gradients(self._model), counted.trained, strict=True):
            variable.assign(value)
        return self._runs.finish()

    def undo(self) -> None:
        """Let everything be as it was."""
        if self._values is None:
            return
        for variable, value in self._values:
            variable.assign(value)
        known = {id(variable) for variable, _ in self._values}
        for variable in weights.variables_of(self._model):
            if id(variable) not in known and not seeds.is_generator_state(variable):
                # What an optimizer has made in a first, eager step.
                variable.assign(tf.zeros_like(keras_lines.tensor(variable)))
        for metric in metrics.leaves(self._model):
            if not known.issuperset(map(id, keras_lines.states(metric))):  # made by this step
                metric.reset_state()
        vars(self._notes).update(self._before)


def step(model: Any, batch: Batch, runs: StepRunner, guard: Guard) -> Any:
    """Run a step of a model, again where a rank dies in it.

    Args:
        batch: gives this rank's rows of the batch, and their share, among the ranks that there are.
        runs: runs the step on them.
        guard: of the world that it runs in.
    """
    this = RecoverableStep(model, batch, runs)
    result, counted = guard.transaction(this.prepare, this.commit, this.undo, this.catch_up)
    model_state.of(model).committed = counted.metrics
    return result


def changing(model: Any) -> list[Any]:
    """Every variable that a step may change."""
    found = {id(v): v for v in weights.variables_of(model)}
    found.update((id(v), v) for metric in metrics.leaves(model) for v in keras_lines.states(metric))
    return list(found.values())


def held(variable: Any) -> tf.Tensor:
    """The value of a variable, not copied."""
    handle, dtype = _memory(variable)
    return _read(resource=handle, dtype=dtype)


def _memory(variable: Any) -> tuple[tf.Tensor, tf.DType]:
    """Where TensorFlow has a variable of Keras, and its dtype there."""
    own = variable if isinstance(variable, tf.Variable) else variable.value
    return own.handle, own.dtype


def trained_by_gradients(model: Any) -> list[Any]:
    """The variables of a model that gradients change, which are the same on every rank."""
    found = {id(variable): variable for variable in model.trainable_variables}
    for optimizer in keras_lines.optimizers_of(model):
        found.update((id(variable), variable) for variable in keras_lines.optimizer_variables(optimizer))
    return list(found.values())


def own_metrics(model: Any) -> list[tuple[Any, np.ndarray]]:
    """The state of the metrics that can be added up."""
    return [(variable, np.asarray(variable.numpy())) for variable in metrics.adding(model)]


def sum_of_metrics(model: Any) -> np.ndarray:
    """The state of the metrics, summed over all ranks: what every rank then knows. float64, flat."""
    own = metrics.flatten(own_metrics(model))
    return _sum(own, BucketPlan.of(_WHAT, _LABELS, [own]))


def _sum(own: np.ndarray, plan: BucketPlan) -> np.ndarray:
    ranks = world.current()
    return np.array(
        own if ranks.is_single else ranks.run_atomically(lambda: process_group.sum_planned(ranks, plan, [own])[0])
    )


def _take_over(model: Any) -> None:
    """Ranks have died: what they had put into the metrics is rank 0's from now on.

    What all ranks together had after the last step is known, and so is what those have that are left.
    """
    ranks, remembered = world.current(), model_state.of(model)
    if remembered.committed is not None and not settings.current().reproducible:
        own = own_metrics(model)
        lost = remembered.committed - sum_of_metrics(model)
        if ranks.rank == 0:
            metrics.assign(own, metrics.flatten(own) + lost)
    remembered.generation = ranks.generation
