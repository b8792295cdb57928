"""A function that TensorFlow has traced, as one for a rank's rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from matex_tf.core.graph_ops import ops_of
from matex_tf.patches.partition import schedule, shards
from matex_tf.patches.partition.analysis import Plan
from matex_tf.patches.partition.build import Builder, Exchange
from matex_tf.patches.partition.labels import F, Label, P, R, S
from matex_tf.patches.partition.philox import Shared, States
from matex_tf.patches.partition.rules import draws
from matex_tf.patches.partition.shapes import inference
from matex_tf.patches.partition.shapes.shaped import Shaped


class Partitioned:
    """A traced function, rebuilt.

    Attributes:
        plan: labels and exchanges.
        sums: whether the variables that may keep sums over the ranks do so.
        drops_row: whether a batch of one row loses its axis in the step, as by `tf.squeeze(x)`: labels are those for
            more rows, so whoever has such a batch runs what was traced.
    """

    def __init__(
        self,
        traced: Any,
        rows: Sequence[bool],
        exchange: Exchange,
        columns: Sequence[Any] | None = None,
        after_last: Callable[[], Any] | None = None,
        weights: Sequence[Any] = (),
        taken: Sequence[Sequence[Any]] = (),
        fixed: int = 0,
        slots: shards.Slots | None = None,
        sums: Sequence[Any] = (),
        xla: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
        states: Shared | None = None,
        any_length: bool = False,
        held: Sequence[bool] = (),
    ):
        """Args:
        traced: a concrete function of tensors.
        rows: for each tensor of a batch, whether its first axis runs over the rows of the batch. Without any, every
            rank computes all of it.
        columns: the shapes of the function's tensors, None as the first dimension of those with rows and nowhere else;
            None: those that it was traced for.
        after_last: see `build.Builder`.
        weights: handles of variables whose gradients may be encoded on their way.
        taken: batches that the function takes from iterators by itself, in its order: the same of their tensors, which
            are the last ones of the batch.
        fixed: the number of rows that it was traced for; 0: any number.
        slots: which of its variables lie in parts on the ranks; None for none.
        sums: handles of variables of which each rank may hold a number of its own, such that they add up to the value:
            accumulated gradients. They do if the function only reads and assigns all of them.
        xla: makes a context in which XLA compiles the ops that are made; None: it compiles none.
        states: counters of its draws that other plans share with it, see `States`; None: it has its own.
        any_length: see `build.Builder`.
        held: for each tensor that the function captures, whether its first axis runs over the rows of the batch too:
            every rank has all of it. Without any, none does.
        """
        self._states, self._any_length = States({} if states is None else states), any_length
        self._traced, self._rows, self._exchange, self._after_last = traced, rows, exchange, after_last
        self._count = len(rows) - sum(map(len, taken))
        columns = columns or [tensor.shape for tensor in traced.inputs[: self._count]]
        self._given = [*columns, *(shape for batch in taken for shape in batch)]
        self._has_rows = list(held) or [False] * (len(traced.inputs) - self._count)
        captured = [
            tf.TensorShape([None, *one.shape[1:]]) if has else one.shape
            for one, has in zip(traced.inputs[self._count :], self._has_rows, strict=True)
        ]
        has_rows = any(rows) or any(held)
        self._shaped, self._xla = inference.of(traced.graph, [*columns, *captured], taken, fixed, has_rows), xla
        self._shaped.set_by_xla(xla is not None)
        self.drops_row = _drops_row(self._shaped)
        self._captured = len(traced.inputs) - self._count
        own = [S(0) if has else R for has in rows]
        self._held = list(traced.captured_inputs)
        of_held = self._into_parts(slots) if slots is not None else self._keeping(sums)
        self.sums = P in of_held
        of_held = [S(0) if has else label for label, has in zip(of_held, self._has_rows, strict=True)]
        labels = [*own[: self._count], *of_held, *own[self._count :]]
        self.plan = Plan(self._shaped, labels).finish([R] * len(self._shaped.outputs))
        if weights:
            wanted = set(map(id, weights))
            pairs = zip(traced.captured_inputs, self._shaped.inputs[self._count :], strict=False)
            inside = [handle for outside, handle in pairs if id(outside) in wanted]
            self.plan.gradients = schedule.gradients(self.plan, inside)
        self._made: dict[bool, Any] = {}

    @classmethod
    def whole(cls, traced: Any, count: int, exchange: Exchange, states: Shared) -> Partitioned | None:
        """A function that every rank computes whole, with the counters that its draws have where it is split by rows;
        None if it draws nothing that takes one, or cannot be made, so that what was traced is run.

        Args:
            count: the tensors of a batch. states: see `__init__`.
        """
        try:
            if not any(node.op in draws.STATEFUL for node in ops_of(traced.graph)):
                return None
            made = cls(traced, [False] * count, exchange, states=states)
            made.graph()
        except Exception:  # whatever it is, what was traced is right but for draws of batches of other shapes
            return None
        return made

    def _into_parts(self, slots: shards.Slots) -> list[Label]:
        """The labels of what the function captures; of variables in parts those of the rank take the place."""
        labels = []
        for place, outside in enumerate(self._held):
            inside, own = self._shaped.inputs[self._count + place], None
            if inside.dtype == tf.resource:
                fits, in_loop = shards.fits(self._shaped, inside), shards.in_loop(self._shaped, inside)
                own = slots.part_of(outside, fits, in_loop)
            labels.append(R if own is None else F)
            self._held[place] = outside if own is None else own
        return labels

    def _keeping(self, sums: Sequence[Any]) -> list[Label]:
        """The labels of what the function captures."""
        if not sums:
            return [R] * self._captured
        wanted = set(map(id, sums))
        inside = self._shaped.inputs[self._count : self._count + self._captured]
        found = [id(outside) in wanted for outside in self._held]
        fit = all(shards.fits(self._shaped, handle) for handle, is_sum in zip(inside, found, strict=True) if is_sum)
        return [P if is_sum and fit else R for is_sum in found]

    def graph(self, empty: bool = False) -> Any:
        """The function of the tensors of a batch and of four numbers. It gives the outputs of the traced function, flat
        and whole. The numbers are int32: where the rank's rows begin in these tensors and in the batch, how many
        they are, and how many the batch has.

        Args:
            empty: for a rank that has no rows.
        """
        if empty not in self._made:
            self._made[empty] = self._make(empty)
        return self._made[empty]

    def forget(self) -> None:
        """Forget the graphs that were made: they are made again if they are asked for."""
        self._made.clear()

    def _make(self, empty: bool) -> Any:
        def step(*arguments: Any) -> list[Any]:
            *batch, numbers = arguments
            graph = tf_ops.get_default_graph()
            for function in self._shaped.graph._functions.values():
                graph._add_function_recursive(function)
            low, first, rows, total = tf.unstack(numbers)
            mine = [leaf[low : low + rows] if has else leaf for leaf, has in zip(batch, self._rows, strict=True)]
            own = empty, self._after_last, self._states, self._any_length
            builder = Builder(self.plan, self._exchange, first, rows, total, *own)
            pairs = zip(self._held, self._has_rows, strict=True)
            captured = [one[first : first + rows] if has else one for one, has in pairs]
            inputs = [*mine[: self._count], *captured, *mine[self._count :]]
            with self._xla() if self._xla is not None else contextlib.nullcontext():
                return builder.run(inputs, [R] * len(self._shaped.outputs))

        of_batch = [*self._shaped.inputs[: self._count], *self._shaped.inputs[self._count + self._captured :]]
        specs = [tf.TensorSpec(shape, one.dtype) for shape, one in zip(self._given, of_batch, strict=True)]
        function = tf.function(step, input_signature=[*specs, tf.TensorSpec([4], tf.int32)], autograph=False)
        return function.get_concrete_function()

    def __call__(self, batch: Sequence[Any], first: int, rows: int, total: int, low: int = 0) -> Any:
        """Run it on this rank's rows; returns what the traced function does.

        Args:
            batch: its tensors; those with rows hold this rank's rows from row `low` on.
            first: where these begin in the batch; rows: how many they are; total: rows of the batch.
        """
        return self.pack(self.flat(batch, first, rows, total, low))

    def flat(self, batch: Sequence[Any], first: int, rows: int, total: int, low: int = 0) -> Any:
        """Run it as a call does, with the arguments of one; see `__call__`. Returns the outputs flat."""
        graph = self.graph(empty=not rows)
        with tf.init_scope():
            numbers = tf.constant([low, first, rows, total], tf.int32)
        if hasattr(graph, "_call_flat"):  # what looks for the graph's inputs takes longer than a small step
            return graph._call_flat([*batch, numbers], graph.captured_inputs)
        return graph(*batch, numbers)

    def pack(self, flat: Sequence[Any]) -> Any:
        """Outputs in the structure of the traced function."""
        structure, given = self._traced.structured_outputs, iter(flat)
        if isinstance(structure, dict) and all(isinstance(leaf, tf.Tensor) for leaf in structure.values()):
            return dict(zip(sorted(structure), given, strict=True))
        leaves = tf.nest.flatten(structure, expand_composites=True)
        every = [None if leaf is None else next(given) for leaf in leaves]
        return tf.nest.pack_sequence_as(structure, every, expand_composites=True)


def _drops_row(shaped: Shaped) -> bool:
    """Whether a graph takes away all axes with one element, and one of them counts rows."""
    squeezes = [op for op in shaped.ops if op.type == "Squeeze" and not op.get_attr("squeeze_dims")]
    here = any(shaped.prime in (shaped.shape(op.inputs[0]) or ()) for op in squeezes)
    return here or any(_drops_row(body) for bodies in shaped.bodies.values() for body in bodies)
