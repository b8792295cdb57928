"""A value that a function makes of nothing, such as the initial value of a weight: a rank makes its part alone.

The function is traced, and its graph is made again for a run of elements. It has random numbers by key and counter,
of which those of the run follow from a counter that is moved on (`philox.py`), a number for all elements, and ops that
compute each element by itself. The bits are those that the function gives.

Relies on (TensorFlow 2.13 to 2.21, private): `FuncGraph`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph

from matex_tf.patches.partition import copies, philox, shards
from matex_tf.patches.partition.rules.elementwise import ELEMENTWISE
from matex_tf.patches.partition.shapes import inference
from matex_tf.patches.partition.tensor_map import TensorMap

#: By the type of an op, whose inputs are shape, key, counter and algorithm: the layout of its numbers.
_DRAWS = {
    "StatelessRandomUniformV2": philox.plain,
    "StatelessRandomNormalV2": philox.plain,
    "StatelessTruncatedNormalV2": philox.rejecting,
}
_ALIKE = ("Identity", "Reshape")


class CannotDraw(Exception):
    """No rule says how to make a part of the value."""


class Drawn:
    """The value of a function, not yet made.

    Attributes:
        shape, dtype: of it.
        content: what tells it from other values.
    """

    def __init__(self, make: Callable[[], Any]):
        """Args: make: the function, which is traced.

        Raises:
            CannotDraw: a part of it cannot be made by itself.
        """
        self._graph = func_graph.FuncGraph("initial")
        with self._graph.as_default():
            self._output = tf.convert_to_tensor(make())
        if self._graph.inputs or not self._output.shape.is_fully_defined():
            raise CannotDraw(f"{self._output} is not made of nothing")
        self.shape, self.dtype = tuple(self._output.shape), self._output.dtype
        self._size = math.prod(self.shape)
        self.content: bytes = self._graph.as_graph_def().SerializeToString(deterministic=True)
        ops = inference.in_order(self._graph)
        self._large = [op for op in ops if op.type != "Const" and any(map(self._is_all, op.outputs))]
        self._small = [op for op in ops if op not in self._large]
        read = {id(tensor): tensor for op in self._large for tensor in op.inputs if not self._is_all(tensor)}
        self._read = list(read.values())
        # What is small, and where to begin, comes in: TensorFlow would leave out an addition of 0, which makes -0 of 0,
        # and make what follows from constants once more, beside the result.
        self._given = tf.function(self._of_small, autograph=False).get_concrete_function()()
        specs = [tf.TensorSpec([2], tf.int64), *(tf.TensorSpec(one.shape, one.dtype) for one in self._read)]
        self._made = tf.function(self._of_large, input_signature=specs, autograph=False)
        self._made.get_concrete_function()

    def part(self, low: int, high: int) -> tf.Tensor:
        """Elements `low` to `high`, flat. Args: low: a multiple of `shards.UNIT`."""
        with tf.init_scope(), tf.device("CPU:0"):
            return self._made(tf.constant([low, high - low], tf.int64), *self._given)

    def _of_small(self) -> list[Any]:
        """What is read of values that are small."""
        values: TensorMap[Any] = TensorMap()
        for op in self._small:
            if any(one not in values for one in op.inputs) or op.op_def.is_stateful or op.type == "Placeholder":
                raise CannotDraw(f"{op.type} gives {[tuple(tensor.shape) for tensor in op.outputs]}")
            values.update(zip(op.outputs, _again(op, [values[tensor] for tensor in op.inputs]), strict=True))
        if any(tensor not in values or self._is_all(tensor) for tensor in self._read):
            raise CannotDraw("what is small is made of what is large")
        return [values[tensor] for tensor in self._read]

    def _of_large(self, run: Any, *small: Any) -> Any:
        """Args: run: int64 (2,), the first element and how many."""
        values: TensorMap[Any] = TensorMap()
        values.update(zip(self._read, small, strict=True))
        for op in self._large:
            values[op.outputs[0]] = self._of_op(op, [values[tensor] for tensor in op.inputs], run)
        if self._output not in values:
            raise CannotDraw("it is written down")
        return values[self._output]

    def _is_all(self, tensor: Any) -> bool:
        return tensor.shape.num_elements() == self._size

    def _of_op(self, op: Any, inputs: list[Any], run: Any) -> Any:
        """The run of elements of what an op gives."""
        parts = [self._is_all(tensor) for tensor in op.inputs]
        if len(op.outputs) == 1:
            if op.type in _DRAWS and not any(parts):
                return self._draw(op, inputs, run)
            if op.type == "Fill" and op.inputs[1].shape.rank == 0:
                return tf.fill(run[1:], inputs[1])
            if op.type in _ALIKE and parts[0]:
                return inputs[0]
            if op.type in ELEMENTWISE and any(parts):
                given = zip(op.inputs, inputs, parts, strict=True)
                return _again(op, [one if part else _scalar(of, one) for of, one, part in given])[0]
        raise CannotDraw(f"{op.type} gives {[tuple(tensor.shape) for tensor in op.outputs]}")

    def _draw(self, op: Any, inputs: list[Any], run: Any) -> Any:
        layout = _DRAWS[op.type](op.outputs[0].dtype)
        algorithm = tf.get_static_value(op.inputs[3])
        if shards.UNIT % layout.group or algorithm is None or int(algorithm) not in (philox.PHILOX, philox.CHOSEN):
            raise CannotDraw(f"{op.type} by algorithm {algorithm}")
        counter = philox.advanced(inputs[2], run[0] // layout.group * layout.jump)
        shape = tf.cast(run[1:], op.inputs[0].dtype)
        return _again(op, [shape, inputs[1], counter, inputs[3]])[0]


def _scalar(tensor: Any, value: Any) -> Any:
    if tensor.shape.num_elements() != 1:
        raise CannotDraw(f"{tensor} is not a number for all elements")
    return tf.reshape(value, [])


def _again(op: Any, inputs: list[Any]) -> list[Any]:
    attributes = {name: value for name, value in op.node_def.attr.items() if name not in ("_output_shapes", "_class")}
    return list(copies.again(tf.compat.v1.get_default_graph(), op, inputs, attributes, op.type).outputs)
