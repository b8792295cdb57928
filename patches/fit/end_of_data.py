"""What Keras before 3.16 counts once more where data of unknown length end.

On one rank a compiled step fetches its batch by itself. After the last batch one more step begins, and fails in that
fetch. By then it has updated what depends on no batch: the counter of each optimizer (so learning-rate schedules and
Adam see it), the states of random generators, and what the step's graph adds a number to that no batch has a part in,
such as what a `Mean` divides by, of losses of which there is one for a batch, or of batches of a number of rows that
the pipeline promises; and it has emptied gradient accumulators whose turn it was. Here batches are fetched outside of
the step, so that is made up for. From 3.16 on Keras looks for a batch before the step.

Relies on (Keras 3, private): `Optimizer._iterations`, which accumulation does not divide, `_learning_rate`
and `_accumulated_gradients`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.patches.common import keras_lines, seeds
from matex_tf.patches.fit.step import one_rank_shapes
from matex_tf.patches.fit.step.step_graphs import StepGraphs
from matex_tf.patches.partition.labels import CannotPartition
from matex_tf.patches.shards import variable as in_parts

_SIZES = ("Shape", "ShapeN", "Size", "Rank")
_UNCHANGED = ("Cast", "Identity")


class Counters:
    """The counters of a model, from one end of its data to the next.

    Args:
        model: of Keras.
        graphs: its steps, of training or of tests.
    """

    def __init__(self, model: Any, graphs: StepGraphs):
        self._model, self._graphs = model, graphs
        self._steps = self._since = 0
        self._noted: dict[int, tuple[Any, np.ndarray]] = {}
        self._known: dict[Any, tuple[list[Any], Any]] = {}  # by trace and promise; the trace is kept, as its id is

    def before_step(self) -> None:
        """Call before each step on a batch of a pipeline."""
        if self._steps < 2:  # the second is after the weights of rank 0, or of a checkpoint, have been taken
            self._noted = {id(counter): (counter, np.array(counter)) for counter in self._found()}
            self._since = self._steps
        self._steps += 1

    def at_end(self) -> None:
        """Call where a step has found no batch: each counter goes on by what a step has added to it."""
        steps = self._steps - self._since if self._steps else 0
        self._steps = 0
        one_op = self._model.run_eagerly or self._model.jit_compile  # what waits for the batch as a whole
        one_ahead = keras_lines.version() < (3, 16) and not one_op
        if not steps or not one_ahead or self._model.steps_per_execution > 1:
            return
        for optimizer in _optimizers(self._model) if self._graphs.kind == "train" else []:
            every = getattr(optimizer, "gradient_accumulation_steps", None)
            if every and (int(np.array(optimizer._iterations)) + 1) % every == 0:
                for sums in optimizer._accumulated_gradients:  # to empty them needs no gradients either
                    if sums is not None:
                        sums.assign(np.zeros(sums.shape, sums.dtype))
        for counter in self._found():
            _, before = self._noted.get(id(counter), (None, np.zeros_like(np.array(counter))))
            added = np.array(counter).astype(np.int64) - before.astype(np.int64)
            if (added % steps == 0).all() and (added > 0).any():
                counter.assign((np.array(counter) + added // steps).astype(before.dtype))

    def _found(self) -> list[Any]:
        """The counters of a model's optimizers, the states of generators that a step of it may advance, and what else
        goes on without a batch."""
        counting = [one for one in _optimizers(self._model) if _counts_first(one)]
        counters = [one._iterations if hasattr(one, "_iterations") else one.iterations for one in counting]
        states = [variable for variable in keras_lines.variables(self._model) if seeds.is_generator_state(variable)]
        everywhere = seeds.keras_generator(make=False)
        found = [*counters, *states, *([] if everywhere is None else [everywhere.state])]
        known = {id(getattr(one, "value", one)) for one in found}
        optimizers = {id(variable.value) for one in _optimizers(self._model) for variable in one.variables}
        more = {}
        for step in self._graphs.partitioned.values():
            if step.traced is not None:
                more.update({id(one): one for one in self._counting(step.traced, self._graphs.promise)})
        return [*found, *(one for key, one in more.items() if key not in known | optimizers)]

    def _counting(self, traced: Any, promise: one_rank_shapes.Promise | None) -> list[Any]:
        """See `_without_batch`."""
        key = id(traced), promise and str(promise.spec)
        if key not in self._known:
            self._known[key] = _without_batch(traced, promise), traced
        return self._known[key][0]


def _without_batch(traced: Any, promise: one_rank_shapes.Promise | None) -> list[Any]:
    """The variables to which a traced step adds numbers that no batch has a part in, and does nothing else.

    Args:
        traced: a concrete function of a batch. promise: of the pipeline of its batches.
    """
    count = len(traced.inputs) - len(traced.captured_inputs)
    try:
        inputs = one_rank_shapes.inputs_on_one_rank(traced, promise)
    except CannotPartition:
        return []
    of_batch = {one.op for one in inputs[:count]}
    inside = dict(zip(map(id, traced.captured_inputs), inputs[count:], strict=False))
    found = []
    for variable in traced.variables:
        if in_parts.is_split(variable):  # its handle would make it whole, in an order that ranks may differ in
            continue
        handle = inside.get(id(variable.handle))
        changing = [] if handle is None else [op for op in handle.consumers() if op.type != "ReadVariableOp"]
        if changing and all(_adds(op, handle) and not _needs(op, of_batch) for op in changing):
            found.append(variable)
    return found


def _adds(op: Any, handle: Any) -> bool:
    """Whether an op adds to the variable of a handle."""
    if op.type != "AssignVariableOp":
        return op.type in ("AssignAddVariableOp", "AssignSubVariableOp")
    value = op.inputs[1].op
    while value.type in _UNCHANGED:
        value = value.inputs[0].op
    terms = [term.op for term in value.inputs] if value.type in ("Add", "AddV2") else []
    return any(term.type == "ReadVariableOp" and term.inputs[0] is handle for term in terms)


def _needs(op: Any, others: set[Any]) -> bool:
    """Whether an op waits for any of some others, or for what is computed from them.

    Of a tensor whose shape is known TensorFlow takes the sizes as numbers; of any other it asks when a step runs.
    """
    ahead, seen = [op], {op}
    while ahead:
        one = ahead.pop()
        if one in others:
            return True
        known = one.type in _SIZES and all(tensor.shape.is_fully_defined() for tensor in one.inputs)
        inputs = [] if known else [tensor.op for tensor in one.inputs]
        new = {*inputs, *one.control_inputs} - seen
        seen |= new
        ahead.extend(new)
    return False


def _optimizers(model: Any) -> list[Any]:
    """The optimizers of a model; not those that scale the loss, which look at gradients before all else."""
    from keras.src.optimizers import loss_scale_optimizer

    held = keras_lines.optimizers_of(model)
    return [one for one in held if not isinstance(one, loss_scale_optimizer.LossScaleOptimizer)]


def _counts_first(optimizer: Any) -> bool:
    """Whether an optimizer adds to its counter in a step that has no gradients yet."""
    from keras.src.optimizers.schedules import learning_rate_schedule

    if not getattr(optimizer, "gradient_accumulation_steps", None):
        return True
    # Its update is one op, which waits for gradients; where that op reads the counter, counting waits for it.
    read = "iterations" in type(optimizer).update_step.__code__.co_names
    return not read and not isinstance(optimizer._learning_rate, learning_rate_schedule.LearningRateSchedule)
