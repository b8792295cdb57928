"""Steps that are run again where a rank has died in them; see `matex_tf.faults`.

A step ends in a sum of the metrics' states over all ranks. So every rank knows what a rank that dies later had
gathered, and nothing of it is lost. Before a step the values of all variables are kept: not as copies, since TensorFlow
copies a value that someone still holds when it is about to change it.

Relies on (TensorFlow 2.16 to 2.21): `ReadVariableOp` gives a variable's own memory, and updates of variables leave
memory alone that is held elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from matex_tf import world
from matex_tf.exchange import party
from matex_tf.patches import metrics, seeds, state, weights
from matex_tf.patches.feed import Batch
from matex_tf.patches.split import Share

_Result = TypeVar("_Result")


def whole(work: Callable[[], _Result], what: str) -> _Result:
    """Do something that has collectives in it, on all ranks that are left or on none.

    Args:
        work: run again where a rank dies in it.
        what: the purpose of the meeting that ends it.
    """
    ranks = world.current()
    if ranks.guard is None:
        return work()
    return ranks.guard.transaction(work, lambda: ranks.meet(what))[0]


def step(model: Any, batch: Batch, trace: Callable[[Any], Any], run: Callable[[Any, Share], _Result]) -> _Result:
    """Run a step of a model, again where a rank dies in it.

    Args:
        batch: gives this rank's rows of the batch, and their share, among the ranks that there are.
        trace: makes what the step needs, the variables of optimizers among it, from rows.
        run: runs the step on them.
    """
    ranks, remembered = world.current(), state.of(model)
    kept: dict[str, Any] = {}

    def prepare() -> _Result:
        data, share = batch()
        trace(data)  # what it makes has to be there before values are kept
        if remembered.before_merge is not None:
            metrics.unmerge(model)
        if remembered.generation != ranks.generation:
            _take_over(model)
        kept["values"] = values(model)
        kept["state"] = copy.copy(vars(remembered))
        return run(data, share)

    def undo() -> None:
        if not kept:
            return
        for variable, value in kept["values"]:
            variable.assign(value)
        known = {id(variable) for variable, _ in kept["values"]}
        for variable in weights.variables_of(model):
            if id(variable) not in known and not seeds.is_generator_state(variable):
                variable.assign(tf.zeros_like(variable.value))  # what an optimizer has made in a first, eager step
        for metric in metrics.leaves(model):
            if not known.issuperset(map(id, metric._variables)):  # made by this step
                metric.reset_state()
        vars(remembered).update(kept["state"])

    result, remembered.committed = ranks.guard.transaction(prepare, lambda: sum_of_metrics(model), undo)
    return result


def values(model: Any) -> list[tuple[Any, tf.Tensor]]:
    """Every variable that a step may change, with its value."""
    found = {id(v): v for v in weights.variables_of(model)}
    found.update((id(v), v) for metric in metrics.leaves(model) for v in metric._variables)
    return [(v, tf.raw_ops.ReadVariableOp(resource=v.value.handle, dtype=v.value.dtype)) for v in found.values()]


def own_metrics(model: Any) -> list[tuple[Any, np.ndarray]]:
    """The state of the metrics that can be added up."""
    adding = [
        variable for metric in metrics.leaves(model) if metrics.is_additive(metric) for variable in metric._variables
    ]
    return [(variable, np.asarray(variable.numpy())) for variable in adding]


def sum_of_metrics(model: Any) -> np.ndarray:
    """The state of the metrics, summed over all ranks: what every rank then knows. float64, flat."""
    flat = metrics.flatten(own_metrics(model))
    return np.array(party.sum_arrays(world.current(), [flat], "count a step", ["the state of the metrics"])[0])


def _take_over(model: Any) -> None:
    """Ranks have died: what they had put into the metrics is rank 0's from now on.

    What all ranks together had after the last step is known, and so is what those have that are left.
    """
    ranks, remembered = world.current(), state.of(model)
    if remembered.committed is not None:
        own = own_metrics(model)
        lost = remembered.committed - sum_of_metrics(model)
        if ranks.rank == 0:
            metrics.assign(own, metrics.flatten(own) + lost)
    remembered.generation = ranks.generation
