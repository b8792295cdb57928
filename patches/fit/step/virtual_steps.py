"""A step as virtual ranks do it: once for each part of the batch, each with the state that it would have by itself.

See `matex_tf.exchange.virtual_ranks` for how the parts take turns. Weights are shared, and updated once. All other
state that a step may change begins with the same values for every part, and is merged after the step, in the order of
parts: the state of metrics is what it was before, and the sum of what the parts have added; of moving statistics the
parts' mean is taken; generators have drawn the same in every part. So all ranks have the same state after each step,
and a rank that dies takes nothing along.

Relies on (Keras 3.3 to 3.15): `keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER`, private; (TensorFlow 2.16
to 2.21, private) `FuncGraph.capture`, which gives the tensor that stands for a variable in a graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.row_partition import span
from matex_tf.errors import MatexError
from matex_tf.exchange import tf_op, virtual_ranks
from matex_tf.exchange.ordered_sum import OrderedSum
from matex_tf.patches.across_rows import own_metrics
from matex_tf.patches.common import keras_lines, seeds, under_way
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.random import op_states
from matex_tf.state import notes

_GENERATOR = "global_seed_generator"
_WHAT = "merge what a step has changed"
#: Ops that change a variable themselves.
_WRITES = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply", "ResourceStridedSliceAssign")


def shares(share: RowRange) -> np.ndarray:
    """The shares of a rank's virtual ranks in a batch; int32 (virtual ranks of this rank, 5), see `RowRange`."""
    virtual, ranks = settings.current().reproducible, world.current()
    own = range(*span(virtual, ranks.rank, ranks.size))
    return np.array([share.of_virtual(number, virtual) for number in own], np.int32)


def run(
    model: Any, numbers: tf.Tensor, work: Callable[[int], Any], results: list[tuple[Any, Any]]
) -> tuple[Any, list[Any]]:
    """Do a step for each part of the batch. In the graph of the step, or eagerly.

    Args:
        numbers: see `shares`; as many rows as there are parts.
        work: from the place of a part to its logs.
        results: what `metrics.watching` notes.

    Returns:
        The logs of the whole batch; and the metrics and variables with which the step was done, see `known`.
    """
    state = _State(model, numbers.shape[0])
    inside, take_over = _like_this_thread()
    with under_way.having():  # of this thread, which shall not take that of a part for its own
        logs = virtual_ranks.Parts(numbers.shape[0], state, inside).run(work)
    take_over()
    return state.merge(logs, numbers, {id(value): metric for value, metric in results}), state.known


def known(model: Any) -> list[Any]:
    """What a step keeps apart for each part of the batch, and what of it adds up."""
    for metric in metrics.leaves(model):
        if notes.found(metric, own_metrics.Kind) is own_metrics.Kind.AVERAGED:
            raise MatexError(
                f"--reproducible: metric {metric.name!r} ({type(metric).__name__}) does more with its state than add "
                "to it, so it cannot be merged over the parts of a batch: leave it out, or leave out --reproducible."
            )
    adding = {id(variable) for variable in metrics.adding(model)}
    return [(id(variable), id(variable) in adding) for variable in _changing(model)]


def generators(model: Any) -> list[tuple[Any, np.ndarray]]:
    """The states of generators that a step of a model may draw from, and their values."""
    found = [variable for variable in model.variables if seeds.is_generator_state(variable)]
    return [(variable, np.array(variable.numpy())) for variable in (*found, *seeds.states())]


def _changing(model: Any) -> list[Any]:
    """The variables, beside weights and those of optimizers, that a step may change."""
    of_metrics = [variable for metric in metrics.leaves(model) for variable in metric._variables]
    generators = [variable for variable in model.variables if seeds.is_generator_state(variable)]
    found = [*of_metrics, *weights.trained_by_steps(model)[1], *generators, *seeds.states()]
    return list({id(variable): variable for variable in found}.values())


def _like_this_thread() -> tuple[Callable[[], contextlib.AbstractContextManager[Any]], Callable[[], None]]:
    """What Keras keeps by thread (policies, scopes, generators), as this thread has it now.

    Returns:
        What makes another thread like this one; and what gives this one the generator that those have made.
    """
    from keras.src.backend.common import global_state

    tracker, here = global_state.GLOBAL_STATE_TRACKER, dict(vars(under_way.now()))
    before = {name: list(value) if isinstance(value, list) else value for name, value in vars(tracker).items()}

    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        for name, value in before.items():
            setattr(tracker, name, list(value) if isinstance(value, list) else value)
        try:
            with under_way.having(**here):
                yield
        finally:
            if (made := getattr(tracker, _GENERATOR, None)) is not None:
                before.setdefault(_GENERATOR, made)

    return inside, lambda: vars(tracker).update({_GENERATOR: before[_GENERATOR]} if _GENERATOR in before else {})


class _State(virtual_ranks.Switch):
    """The state of a model, for each part of a batch.

    Attributes:
        known: see `known`.
    """

    def __init__(self, model: Any, parts: int):
        self._model = model
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self.known = known(model)
        self._variables = [_Variable(variable, self._graph) for variable in _changing(model)]
        self._adds = [adds for _, adds in self.known]
        self._base = [variable.read() for variable in self._variables]
        begin = [tf.zeros_like(one) if adds else one for one, adds in zip(self._base, self._adds, strict=True)]
        self._now = list(self._base)  # what the variables have
        self._wanted = [list(begin) for _ in range(parts)]  # what they shall have for each part
        self._seen = 0
        self._draws = None if self._graph is None else op_states.Turns(self._graph, parts)

    def enter(self, place: int) -> None:
        if self._draws is not None:
            self._draws.enter(place)
        for number, value in enumerate(self._wanted[place]):
            self._set(number, value)
        if self._graph is not None:
            self._seen = len(self._graph.get_operations())

    def leave(self, place: int) -> None:
        if self._draws is not None:
            self._draws.leave(place)
        if self._graph is None:
            self._add_new()
        for number in self._written():
            value = self._variables[number].read()
            self._now[number] = self._wanted[place][number] = value

    def _add_new(self) -> None:
        """Variables of metrics that an eager step has made in its first part begin with zero."""
        if known(self._model) == self.known:
            return
        self.known, before = known(self._model), {id(one.variable) for one in self._variables}
        adding = dict(self.known)
        for variable in _changing(self._model):
            if id(variable) not in before:
                made = _Variable(variable, None)
                self._variables.append(made)
                self._adds.append(adding[id(variable)])
                for values in (self._base, self._now, *self._wanted):
                    values.append(tf.zeros_like(made.read()))

    def _set(self, number: int, value: Any) -> None:
        if self._now[number] is not value:
            self._variables[number].write(value)
            self._now[number] = value

    def _written(self) -> list[int]:
        """The variables that may have changed since a part went on."""
        if self._graph is None:
            return list(range(len(self._variables)))
        held = {variable.inside.name: number for number, variable in enumerate(self._variables)}
        found: dict[int, None] = {}
        for op in self._graph.get_operations()[self._seen :]:
            if op.type == "ReadVariableOp":
                continue
            for tensor in op.inputs:
                if tensor.dtype == tf.resource and tensor.name in held:
                    found[held[tensor.name]] = None
                elif tensor.dtype == tf.resource and op.type.startswith(_WRITES) and not self._is_new(tensor):
                    raise MatexError(
                        f"--reproducible: a step of {self._model.name} assigns to {self._name(tensor)}, which is "
                        "neither the state of a metric or a layer nor updated by an optimizer: every part of the batch "
                        "would do so. Leave out --reproducible for this script."
                    )
        return list(found)

    def _is_new(self, inside: Any) -> bool:
        """Whether this is a variable of a metric that the step has made: then it is traced again."""
        outside = self._outside(inside)
        return any(_held(variable).handle is outside for variable in _changing(self._model))

    def _outside(self, inside: Any) -> Any:
        return {inner.name: outer for outer, inner in self._graph.captures}.get(inside.name)  # type: ignore[union-attr]

    def _name(self, inside: Any) -> str:
        outside = self._outside(inside)
        for variable in weights.variables_of(self._model):
            if variable.value.handle is outside:
                return str(variable.path)
        return "a variable of the script's own"

    def merge(self, logs: list[Any], numbers: tf.Tensor, results: dict[int, Any]) -> Any:
        """Let the variables have the state of the whole batch.

        Args:
            logs: of each part. numbers: int32 (parts, 5), their shares.
            results: metrics by the id of the tensors that they gave.

        Returns:
            The logs of the whole batch.
        """
        merged = [number for number, variable in enumerate(self._variables) if variable.merged]
        flat = keras_lines.flat(logs[0]) if isinstance(logs[0], dict) else {"loss": logs[0]}
        every = [keras_lines.flat(one) if isinstance(one, dict) else {"loss": one} for one in logs]
        means = [key for key, value in flat.items() if id(value) not in results and _is_number(value)]
        shapes = [tf.convert_to_tensor(flat[key]).shape for key in means]
        kinds = np.concatenate(
            [
                np.zeros(0, np.int8),
                *(np.full(self._variables[number].size, self._adds[number], np.int8) for number in merged),
                *(np.full(shape.num_elements(), 2, np.int8) for shape in shapes),
            ]
        )
        rows = [
            _joined([self._wanted[place][number] for number in merged] + [every[place][key] for key in means])
            for place in range(len(logs))
        ]
        base = _joined([self._base[number] for number in merged] + [tf.zeros(shape) for shape in shapes])
        whole = _merged(tf.stack(rows), base, numbers, kinds)
        sizes = [*(self._variables[number].size for number in merged), *(shape.num_elements() for shape in shapes)]
        values = tf.split(whole, sizes) if sizes else []
        for number, variable in enumerate(self._variables):
            if not variable.merged:
                self._set(number, self._wanted[0][number])
        for number, value in zip(merged, values, strict=False):
            one = self._base[number]
            self._set(number, tf.cast(tf.reshape(value, one.shape), one.dtype))
        of_means = dict(zip(means, zip(values[len(merged) :], shapes, strict=True), strict=True))
        complete: dict[str, Any] = {}
        for key, value in flat.items():
            if (metric := results.get(id(value))) is not None:
                complete[key] = metric.result()
            elif key in of_means:
                mean, shape = of_means[key]
                complete[key] = tf.cast(tf.reshape(mean, shape), tf.convert_to_tensor(value).dtype)
            else:
                complete[key] = value
        return complete if isinstance(logs[0], dict) else complete["loss"]


class _Variable:
    """A variable of Keras or TensorFlow, as a step reads and writes it."""

    def __init__(self, variable: Any, graph: Any):
        held = _held(variable)
        self.variable = variable
        self._handle, self._dtype = held.handle, held.dtype
        self._shape = held.shape
        self.size = int(np.prod(held.shape.as_list() or [1]))
        self.inside = held.handle if graph is None else graph.capture(held.handle)
        self.merged = (held.dtype.is_floating or held.dtype.is_integer) and not _generates(variable)

    def read(self) -> tf.Tensor:
        value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
        value.set_shape(self._shape)
        return value

    def write(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)


def _held(variable: Any) -> Any:
    """The variable of TensorFlow that one of Keras holds, or this one."""
    return variable.value if hasattr(variable, "path") else variable


def _generates(variable: Any) -> bool:
    return seeds.is_generator_state(variable) or any(variable is state for state in seeds.states())


def _is_number(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return isinstance(value, (int, float)) or (dtype is not None and tf.as_dtype(dtype).is_floating)


def _joined(values: list[Any]) -> tf.Tensor:
    flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
    return tf.concat([tf.zeros([0], tf.float64), *flat], 0)


def _merged(rows: tf.Tensor, base: tf.Tensor, numbers: tf.Tensor, kinds: np.ndarray) -> tf.Tensor:
    """What all virtual ranks have made of a state.

    Args:
        rows: float64 (virtual ranks of this rank, n), what each has made of it.
        base: float64 (n,), what it was.
        kinds: int8 (n,); 0: a state, of which the mean is taken, 1: what adds up, 2: means over the rows of a part.
    """
    virtual = settings.current().reproducible
    gather = OrderedSum(virtual, _WHAT, ["metrics and statistics"])

    def merge(own: np.ndarray, base: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        own = own.copy()
        for row, (_, _, rows_of_part, total, _) in zip(own, numbers, strict=True):
            if rows_of_part:
                row[kinds == 2] *= rows_of_part / total
            else:  # a ghost
                row[...] = np.where(kinds == 0, base, 0.0)
        every, whole = gather.of_every(world.current(), own)
        whole = np.where(kinds == 0, whole / virtual, whole)
        whole = np.where(kinds == 1, base + whole, whole)
        return [np.where((kinds == 0) & (every == every[0]).all(0), every[0], whole)]

    (whole,) = tf_op.call(merge, [rows, base, numbers], [tf.float64], lambda arrays: [arrays[1]])
    whole.set_shape(base.shape)
    return whole
