"""One graph of several that are the same but for integers, which follow from the lengths for which each was made.

An integer that is linear in the lengths in all of them is computed when the graph runs; any other difference is an
error. That it is linear for other lengths too is shown by one graph more than it has coefficients: what TensorFlow
makes of a length by halving, rounding up or a limit is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import cond_v2, while_v2

from matex_tf.patches.partition import copies
from matex_tf.patches.partition.labels import CannotPartition
from matex_tf.patches.partition.shapes import inference
from matex_tf.patches.partition.shapes.shaped import BRANCHES, LOOPS
from matex_tf.patches.partition.tensor_map import TensorMap

#: Attributes that a copy has anew of TensorFlow; and those in which graphs may differ.
_INFERRED = ("_output_shapes", "_class")
_NO_MATTER = (*_INFERRED, "_user_specified_name")

#: What a marked op becomes in the graph that is made: from its inputs there to its outputs.
Replay = Callable[[Sequence[Any]], list[Any]]


class NotLinear(CannotPartition):
    """A number of a step is not linear in the lengths of its batches."""


class Merged:
    """What several graphs have in common.

    Attributes:
        first: one of them.
    """

    def __init__(self, graphs: Sequence[Any], points: Sequence[Sequence[int]]):
        """Args:
        graphs: FuncGraphs. points: the lengths for which each was made, in any unit: at least two more than there are
            lengths.

        Raises:
            NotLinear: integers are not linear in the lengths.
            CannotPartition: they differ otherwise than in integers.
        """
        self.first = graphs[0]
        self._matrix = [[1, *point] for point in points]
        self._coefficients: dict[Any, np.ndarray] = {}
        self._attributes: dict[Any, dict[str, Any]] = {}
        self._compare(graphs)

    def _compare(self, graphs: Sequence[Any], inside: bool = False) -> None:
        """Find what differs. Args: inside: whether these are of a loop or branch: they have to be the same."""
        places = [{op: place for place, op in enumerate(graph.get_operations())} for graph in graphs]
        if len(set(map(len, places))) > 1:
            raise CannotPartition("steps for batches of other lengths have other ops")
        for row in zip(*places, strict=True):
            first = row[0]
            if len({(op.type, *_reads(op, at)) for op, at in zip(row, places, strict=True)}) > 1:
                raise CannotPartition(f"the step for batches of another length has another op than {first.name}")
            self._compare_attributes(row, inside)

    def _compare_attributes(self, row: Sequence[Any], inside: bool) -> None:
        first = row[0]
        every = [op.node_def.attr for op in row]
        kept = {name: value for name, value in every[0].items() if name not in _INFERRED}
        for name in set(every[0]).difference(_NO_MATTER):
            values = [attributes[name] for attributes in every]
            kind = values[0].WhichOneof("value")
            if kind == "func" and first.type in (*LOOPS, *BRANCHES):
                self._compare(_functions(row, name), inside=True)
            elif len({value.SerializeToString(deterministic=True) for value in values}) == 1:
                continue
            elif kind == "list" and values[0].list.func and first.type in BRANCHES:
                for graphs in zip(*map(cond_v2.get_func_graphs, row), strict=True):
                    self._compare(graphs, inside=True)
            elif kind == "shape" and not inside:
                kept[name] = _open(values)
            elif first.type == "Const" and name == "value" and not inside:
                self._coefficients[first] = self._fitted(first, [tensor_util.MakeNdarray(v.tensor) for v in values])
            else:
                raise CannotPartition(f"{name} of {first.name} depends on the length of batches")
        self._attributes[first] = kept

    def _fitted(self, op: Any, values: Sequence[np.ndarray]) -> np.ndarray:
        """The coefficients of what a constant is for each graph: int64 `[1 + lengths, …]`."""
        if not op.outputs[0].dtype.is_integer or len({value.shape for value in values}) > 1:
            raise CannotPartition(f"{op.name} depends on the length of batches")
        count = len(self._matrix[0])
        wanted = np.stack(values).reshape(len(values), -1).astype(np.int64)
        found = np.linalg.solve(np.array(self._matrix[:count], np.float64), wanted[:count].astype(np.float64))
        whole = np.rint(found).astype(np.int64)
        if not (np.array(self._matrix, np.int64) @ whole == wanted).all():
            raise NotLinear(f"{op.name} is not linear in the length of batches")
        return whole.reshape(count, *values[0].shape)

    def run(self, inputs: Sequence[Any], lengths: Sequence[Any], replays: Mapping[str, Replay]) -> list[Any]:
        """Make the ops in the graph that is current; returns what they give.

        Args:
            inputs: the first inputs of the graph; what it captures is captured again. lengths: int32 scalars, in the
                unit of `points`. replays: what marked ops become, by their names.
        """
        graph, at, made = tf_ops.get_default_graph(), TensorMap[Any](), dict[Any, list[Any]]()
        for function in self.first._functions.values():
            graph._add_function_recursive(function)
        at.update(zip(self.first.inputs, inputs, strict=False))
        at.update((inside, graph.capture(outside)) for outside, inside in self.first.captures)
        numbers = _Numbers(lengths)
        for op in inference.in_order(self.first):
            if op.type == "Placeholder" and op.outputs[0] in at:
                continue
            with graph.control_dependencies([one for before in op.control_inputs for one in made.get(before, ())]):
                given = [at[tensor] for tensor in op.inputs]
                if op.name in replays:
                    outputs = replays[op.name](given)
                    made[op] = [one.op for one in outputs]
                    outputs = outputs[: len(op.outputs)]
                elif op in self._coefficients:
                    outputs = [numbers.linear(self._coefficients[op], op.outputs[0].dtype)]
                else:
                    again = copies.again(graph, op, given, self._attributes[op], op.name)
                    outputs, made[op] = list(again.outputs), [again]
            made.setdefault(op, [tensor.op for tensor in outputs])
            at.update(zip(op.outputs, outputs, strict=True))
        return [at[tensor] for tensor in self.first.outputs]


class _Numbers:
    """What is linear in the lengths, each made once."""

    def __init__(self, lengths: Sequence[Any]):
        """Args: lengths: int32 scalars."""
        self._lengths, self._made = lengths, dict[Any, Any]()

    def linear(self, coefficients: np.ndarray, dtype: Any) -> Any:
        """A tensor of a `dtype`. Args: coefficients: int64 `[1 + lengths, …]`."""
        key = coefficients.tobytes(), coefficients.shape, dtype
        if key not in self._made:
            with tf_ops.get_default_graph().control_dependencies(None):
                value = tf.constant(coefficients[0], dtype)
                for one, length in zip(coefficients[1:], self._lengths, strict=True):
                    value += tf.constant(one, dtype) * tf.cast(length, dtype)
                self._made[key] = value
        return self._made[key]


def _reads(op: Any, places: Mapping[Any, int]) -> tuple[Any, ...]:
    """What an op reads and waits for, by its place in the graph."""
    read = tuple((places[tensor.op], tensor.value_index) for tensor in op.inputs)
    return read, tuple(sorted(places[one] for one in op.control_inputs))


def _functions(row: Sequence[Any], name: str) -> list[Any]:
    """The graphs that ops call by an attribute."""
    if row[0].type in LOOPS:
        return [while_v2._get_graph(op, name, f"_{name}_graph") for op in row]
    place = ("then_branch", "else_branch").index(name)
    return [cond_v2.get_func_graphs(op)[place] for op in row]


def _open(values: Sequence[Any]) -> Any:
    """The shapes that attributes have in common: any size where they differ."""
    shapes = [tf.TensorShape(value.shape) for value in values]
    common = functools.reduce(tf.TensorShape.most_specific_compatible_shape, shapes)
    return type(values[0])(shape=common.as_proto())
