"""A function that TensorFlow has traced, as one for a rank's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from matex_tf.patches.partition import shapes
from matex_tf.patches.partition.analysis import Plan
from matex_tf.patches.partition.build import Builder, Exchange
from matex_tf.patches.partition.labels import Label, R, S


class Partitioned:
    """A traced function, rebuilt.

    Attributes:
        plan: labels and exchanges.
        function: takes the tensors of a batch, each with this rank's rows if it has rows, and the numbers of these:
            where they begin in the batch, how many there are, how many the batch has (int32, a vector of three).
            Gives the outputs of the traced function, flat and whole.
    """

    def __init__(self, traced: Any, rows: Sequence[bool], exchange: Exchange):
        """Args:
        traced: a concrete function of tensors, of which those with rows have None as their first dimension.
        rows: for each of its tensors, whether its first axis runs over the rows of the batch.
        """
        self._traced = traced
        given = len(rows)
        specs = [tensor.shape.as_list() if has else tensor.shape for tensor, has in zip(traced.inputs, rows, strict=False)]
        shaped = shapes.of(traced.graph, specs)
        labels = [S(0) if place < given and rows[place] else R for place in range(len(shaped.inputs))]
        self.plan = Plan(shaped, labels).finish([R] * len(shaped.outputs))
        wanted: list[Label | None] = [R] * len(shaped.outputs)

        def step(*arguments: Any) -> list[Any]:
            *batch, numbers = arguments
            first, rows_, total = tf.unstack(numbers)
            captured = traced.captured_inputs
            graph = tf_ops.get_default_graph()
            for function in shaped.graph._functions.values():
                graph._add_function_recursive(function)
            builder = Builder(self.plan, exchange, first, rows_, total)
            return builder.run([*batch, *captured], wanted)

        signature = [tf.TensorSpec(t.shape, t.dtype) for t in traced.inputs[:given]] + [tf.TensorSpec([3], tf.int32)]
        self.function = tf.function(step, input_signature=signature, autograph=False).get_concrete_function()

    def outputs(self, flat: Sequence[Any]) -> Any:
        """The outputs in the structure of the traced function."""
        return tf.nest.pack_sequence_as(self._traced.structured_outputs, list(flat), expand_composites=True)
