"""The weights of a model on all ranks: alike before the first step, and checked to stay so.

Relies on (Keras 3.3 to 3.15): `Model.variables`, `Optimizer.variables`, public, and
`BaseOptimizer._accumulated_gradients`, `Model._flatten_layers()` and `Layer._trainable_variables`, private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.core.mismatch import checksum, name_ranks
from matex_tf.errors import RanksDisagree
from matex_tf.patches.common import keras_lines, model_state, seeds, under_way
from matex_tf.patches.keras import distribution
from matex_tf.patches.keras import optimizer as optimizer_hook
from matex_tf.patches.shards import pending
from matex_tf.patches.shards import variable as in_parts
from matex_tf.patches.shards.slots import Slots, build, split_whole, weights_to_split
from matex_tf.patches.steps.step_part import StepPart, StepRun


def variables_of(model: Any) -> list[Any]:
    """The variables of a model and of the optimizers that it holds, each once; metrics apart."""
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    found = {id(variable): variable for variable in keras_lines.variables(model)}
    for optimizer in keras_lines.optimizers_of(model):
        found.update((id(variable), variable) for variable in keras_lines.optimizer_variables(optimizer))
    return [variable for key, variable in found.items() if key not in metrics]


def lying_in_parts(model: Any) -> list[Any]:
    """The variables of a model that lie in parts, beside slots: all, or those that a layout of the script's divides."""
    if settings.current().shard != "weights":
        return distribution.divided(model)
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [one for one in keras_lines.variables(model) if id(one) not in metrics]


def has_parts(model: Any) -> bool:
    """Whether variables of a model or its optimizers shall lie in parts."""
    return settings.current().shard != "none" or bool(lying_in_parts(model))


def in_parts_of(model: Any) -> Slots | None:
    """The variables of a model and its optimizers that lie in parts; None for nothing."""
    if not has_parts(model):
        return None
    return Slots(keras_lines.optimizers_of(model), model.trainable_variables, lying_in_parts(model))


def into_parts(model: Any, builds: bool) -> None:
    """Have weights and slots in parts before a step is traced, each as soon as it is there: they are never all whole.

    All ranks come here, and take rank 0's weights.

    Args:
        builds: whether a step begins with building the model's optimizer for all trainable weights.
    """
    for weight in weights_to_split(lying_in_parts(model)):
        take_from_rank_0([weight], [keras_lines.path(weight)], "share the weights of the model")
        split_whole(weight)
    optimizer = getattr(model, "optimizer", None)
    built = all(layer.built for layer in model._flatten_layers())  # `Model.build` alone builds no layers of a subclass
    if builds and optimizer is not None and not optimizer.built and built:
        build(optimizer, model.trainable_variables)


def trained_by_steps(model: Any) -> tuple[list[Any], list[Any]]:
    """The variables of a model that steps change: trainable ones, and state such as moving statistics.

    Weights that were frozen are neither.
    """
    left_out = {id(variable) for metric in model.metrics for variable in metric.variables}
    for layer in model._flatten_layers():
        left_out.update(id(variable) for variable in keras_lines.trainable(layer))
    others = keras_lines.variables(model, "non_trainable_variables")
    kept = [variable for variable in others if not seeds.is_generator_state(variable)]
    return keras_lines.variables(model, "trainable_variables"), [
        variable for variable in kept if id(variable) not in left_out
    ]


def progress_of(model: Any) -> list[Any]:
    """The variables of optimizers that say how far training is: how many updates there were, and the learning rate."""
    held = [one for optimizer in keras_lines.optimizers_of(model) for one in keras_lines.optimizer_variables(optimizer)]
    names = ("iteration", "learning_rate")
    return [one for one in held if keras_lines.path(one).rpartition("/")[2].partition(":")[0] in names]


def broadcast(model: Any) -> None:
    """Give every rank the weights, the state of generators and optimizer state that rank 0 has.

    Raises:
        RanksDisagree: the ranks' models differ, naming the first weight that does.
    """
    variables = variables_of(model)
    take_from_rank_0(variables, list(map(keras_lines.path, variables)), "share the weights of the model")
    model_state.of(model).accumulators_whole = True


def take_from_rank_0(variables: Sequence[Any], names: Sequence[str], what: str) -> None:
    """Give every rank the values that rank 0 has.

    Args:
        variables: of Keras or TensorFlow.
        names: of each.
        what: the purpose, see `World.barrier`.

    Raises:
        RanksDisagree: the ranks have other variables.
    """
    ranks = world.current()
    ranks.barrier(what, [_described(*one) for one in zip(variables, names, strict=True)])
    for variable in variables:
        if in_parts.is_split(variable) or pending.of(variable) is not None:
            continue  # each rank has its own part, of what a step has left alike, or will make it
        value = np.asarray(variable.numpy())
        shared = ranks.broadcast_array(value)
        if not np.array_equal(value, shared):
            variable.assign(shared)


def own_accumulators(model: Any) -> list[Any]:
    """Gradient accumulators in which each rank gathers its own part, to be exchanged with the next update."""
    accumulating = [
        one for one in keras_lines.optimizers_of(model) if getattr(one, "gradient_accumulation_steps", None)
    ]
    if (
        not accumulating
        or not strategies.current().averages_gradients
        or not strategies.current().replicas_identical
        or not optimizer_hook.accumulates_own_part()
        or world.current().guard is not None
        or settings.current().reproducible
    ):
        return []
    from keras import optimizers

    return [
        accumulator
        for optimizer in accumulating
        if not isinstance(optimizer, optimizers.LossScaleOptimizer)
        for accumulator in getattr(optimizer, "_accumulated_gradients", ())
        if accumulator is not None
    ]


class Sums:
    """The gradient accumulators of a model, for steps that are rebuilt for rows: each rank may hold a part of them."""

    def __init__(self, model: Any):
        self._model = model
        self.handles = [accumulator.value.handle for accumulator in own_accumulators(model)]

    def split(self) -> None:
        """Have each rank hold a part of them, before a step that adds to these."""
        notes = model_state.of(self._model)
        notes.unmerged = True
        if notes.accumulators_whole:
            split_accumulators(self._model)

    def join(self) -> None:
        """Have each rank hold all of them. All ranks come here."""
        join_accumulators(self._model)


class Replicas(StepPart):
    """Ranks have the same weights, and accumulate gradients each for itself."""

    def before(self, run: StepRun) -> None:
        if self.kind == "train" and not run.whole and model_state.of(self.model).accumulators_whole:
            split_accumulators(self.model)

    def after(self, run: StepRun) -> bool:
        if run.first and strategies.current().replicas_identical:
            check_alike(self.model)
        return False


def split_accumulators(model: Any) -> None:
    """Before a step: what was accumulated over all ranks counts once, on rank 0."""
    model_state.of(model).accumulators_whole = False
    if world.current().rank:
        for accumulator in own_accumulators(model):
            accumulator.assign(np.zeros(accumulator.shape, np.float32))


def join_accumulators(model: Any) -> None:
    """Between steps: every rank holds what all have accumulated, as one rank would."""
    notes = model_state.of(model)
    accumulators = own_accumulators(model)
    if notes.accumulators_whole or not accumulators:
        return
    ranks = world.current()
    ranks.barrier("add up accumulated gradients", [_described(one, one.path) for one in accumulators])
    for accumulator in accumulators:
        total = np.array(accumulator.numpy(), np.float64).reshape(-1)
        ranks.allreduce_in_place(total)
        accumulator.assign(total.reshape(accumulator.shape))
    notes.accumulators_whole = True


def _described(variable: Any, name: str) -> str:
    part = in_parts.of(variable)
    assigned = f", in parts, what was assigned to it: {part.assigned:x}" if part is not None and part.assigned else ""
    return f"{name} {variable.dtype} {tuple(variable.shape)}{assigned}"


def check_alike(model: Any) -> None:
    """Compare the trainable weights of all ranks, to the accuracy of sums in float32.

    Raises:
        RanksDisagree: a weight differs; an update went past the optimizer hook.
    """
    ranks = world.current()
    metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    variables = [one for one in model.trainable_variables if id(one) not in metrics and not in_parts.is_split(one)]
    mine = np.array([sums(variable) for variable in variables], np.float64).reshape(len(variables), 2)
    everyone = np.array(ranks.allgather(mine, "compare weights after the first step"))
    for position, variable in enumerate(variables):
        alike = [np.allclose(one[position], everyone[0][position], rtol=1e-4, equal_nan=True) for one in everyone]
        if not all(alike):
            others = name_ranks([rank for rank, same in enumerate(alike) if not same])
            raise RanksDisagree(
                f"after the first step {keras_lines.path(variable)} on {others} differs from rank 0: it is "
                "updated without its gradient passing through a Keras optimizer. Update weights by "
                "optimizer.apply(gradients, variables) or optimizer.apply_gradients, which average the gradients over "
                "the ranks."
            )


def sums(variable: Any) -> tuple[float, float]:
    """The sum of a variable, and that of its sizes: what tells whether ranks have the same."""
    value = np.asarray(variable.numpy())
    return float(value.sum(dtype=np.float64)), float(np.abs(value).sum(dtype=np.float64))


def merge_statistics(model: Any) -> None:
    """Flush the strategy, and average the state that layers keep outside of training (moving means and
    variances) over the ranks.

    Gradients that are accumulated for a later update are added up.

    Only state that differs between ranks is touched, so frozen weights stay as they are, to the bit. Whole numbers
    are taken from rank 0; random number generators are alike on all ranks.
    """
    notes = model_state.of(model)
    if not notes.unmerged:
        return
    notes.unmerged = False
    # What the strategy applies has been exchanged; no loop of the script's own is at work.
    with under_way.having(in_keras=True):
        strategies.current().flush(model)
    join_state(model)


def join_state(model: Any) -> None:
    """Give all ranks what they have accumulated together, and the average of other state that differs between them."""
    join_accumulators(model)
    average_statistics(trained_by_steps(model)[1])


def average_statistics(kept: list[Any]) -> None:
    """Average those of these variables that differ between ranks, see `merge_statistics`. All ranks have the same."""
    if not kept:
        return
    ranks = world.current()
    marks = np.array([checksum(np.asarray(variable.numpy())) for variable in kept], np.int64)
    everyone = np.array(ranks.allgather(marks, "merge moving statistics"))
    for variable, differs in zip(kept, (everyone != everyone[0]).any(axis=0), strict=True):
        if not differs:
            continue
        value = np.asarray(variable.numpy())
        if np.issubdtype(value.dtype, np.integer) or value.dtype == bool:
            variable.assign(ranks.broadcast_array(value))
        else:
            total = np.append(value.astype(np.float64).reshape(-1), 1.0)  # the last counts the ranks that took part
            ranks.allreduce_in_place(total)
            variable.assign((total[:-1] / total[-1]).reshape(value.shape).astype(value.dtype))
