"""A graph whose shapes are those for a prime number of rows, and what is known of it.

Relies on (TensorFlow 2.13 to 2.21, private): `FuncGraph` and its `_add_function_recursive`;
`handle_data_util.get_resource_handle_data`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import handle_data_util

from matex_tf.patches.partition.labels import Label
from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.lists import Lists
from matex_tf.patches.partition.tensor_map import TensorMap

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
#: Values that are handles: they have no rows.
HANDLES = (tf.resource, tf.variant)
#: Rows of a batch for which sizes are compared: a step is planned for any number of them.
ROWS = 256


class Shaped:
    """A graph whose shapes are those for `prime` rows.

    Attributes:
        graph: of TensorFlow.
        inputs, outputs: tensors of the graph, in the order of those of the function that it was made of.
        ops: each after what it reads and what it waits for.
        prime: the number of rows.
        known: integers that follow from shapes, by tensor.
        integers: constants for these, one for each value; attributes: of the ops, by op.
        traced: the shape that a tensor had when the step was traced, by tensor.
        lists: what is known of lists of tensors.
        sizes: dimensions that do not depend on the rows.
        is_body: whether it is the body of a loop.
        bodies: of a loop "cond" and "body", of a branch one for each, by op.
        batches: that the step takes from iterators, in its order: the shapes of their tensors, which become inputs.
        fixed: the number of rows that the step was traced for; 0: any number.
        in_parts: the shapes of variables that lie in parts on the ranks.
        local: ops that look up rows, and whose indices, if they are whole, are those of this rank's rows of tables.
        by_xla: whether one rank has XLA compile the step, so that XLA makes the random numbers.
    """

    def __init__(self, prime: int, around: Any = None):
        """Args: prime: the number of rows. around: the FuncGraph that is copied, or None: the functions that it
        calls."""
        self.graph = func_graph.FuncGraph("rows")
        self.prime = prime
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.ops: list[Any] = []
        self.known: TensorMap[Affine] = TensorMap()
        self.attributes: dict[Any, dict[str, Any]] = {}
        self.traced: TensorMap[tf.TensorShape] = TensorMap()
        self.bodies: dict[Any, list[Shaped]] = {}
        self.is_body = False
        self.sizes: set[int] = set()
        self.lists = Lists(prime, self.known, self.sizes)
        self.integers: dict[Any, Any] = {}
        self.batches: Iterator[Sequence[Any]] | None = None
        self.fixed = 0
        self.in_parts: set[tuple[int | None, ...]] = set()
        self.local: set[Any] = set()
        self.by_xla = False
        self.add_functions_of(around)

    def set_by_xla(self, by_xla: bool) -> None:
        """Say whether one rank has XLA compile the step, loops and branches with it."""
        self.by_xla = by_xla
        for bodies in self.bodies.values():
            for body in bodies:
                body.set_by_xla(by_xla)

    def counts(self, size: int | None) -> bool:
        """Whether a dimension counts rows: a multiple of the prime, once."""
        return bool(size) and size % self.prime == 0 and size // self.prime % self.prime != 0  # type: ignore[operator]

    def per_row(self, size: int, blocks: int = 1) -> int | None:
        """Elements of a row in a dimension of `size`, for the prime number of rows, that has so many `blocks` of rows;
        None if it is no multiple of them."""
        width, rest = divmod(size, self.prime * blocks)
        return None if rest or not width else width

    def is_rows(self, label: Label, shape: Sequence[int | None] | None) -> bool:
        """Whether a value of a `shape`, for the prime number of rows, can have this `label` S."""
        if shape is None or not 0 <= label.axis < len(shape):
            return False
        size = shape[label.axis]
        return size is not None and self.counts(size) and self.per_row(size, label.blocks) is not None

    def shape(self, tensor: Any) -> list[int | None] | None:
        """The dimensions of a tensor; None if their number is not known. One is None if it depends on the rows and is
        no multiple of them, such as that of `x[1:]`."""
        shape = tensor.shape
        if shape.rank is None:
            return None
        return [size if size in self.sizes or self.counts(size) else None for size in shape.as_list()]

    def rows_axes(self, tensor: Any) -> list[int]:
        """The axes of a tensor that count rows."""
        return [axis for axis, size in enumerate(self.shape(tensor) or []) if self.counts(size)]

    def sized(self, tensor: Any) -> Any:
        """The tensor whose shape the integers of this one begin with; None if they are none."""
        while tensor.op.type in ("Identity", "PlaceholderWithDefault"):
            tensor = tensor.op.inputs[0]
        made = tensor.op
        if made.type in ("Shape", "ShapeN"):
            return made.inputs[tensor.value_index]
        return made.inputs[0] if made.type == "StringSplitV2" and tensor.value_index == 2 else None

    def note_trace(self, tensor: Any, old: Any) -> None:
        """Note the shape that a tensor had when the step was traced; its dimensions that count rows are open.

        Args:
            tensor: of this graph. old: the tensor of the traced step that it was made of.
        """
        shape = old.shape
        if self.fixed and shape.rank:
            now = self.shape(tensor) or [None] * shape.rank
            number = [size is not None and not self.counts(size) for size in now]
            shape = tf.TensorShape([size if is_number else None for size, is_number in zip(shape, number, strict=True)])
        if tensor not in self.traced:
            self.traced[tensor] = shape

    def see(self, op: Any, made: Any) -> None:
        """Take note of the dimensions of what an op gives that do not depend on the rows: those of the trace, and those
        beside rows where what the op reads has such dimensions alone.

        Args:
            op: of the traced step. made: the one of this graph that was made of it.
        """
        for tensor in op.outputs:
            self.sizes.update(numbers_of(tensor))
        if any(None in (self.shape(tensor) or []) for tensor in made.inputs):
            return
        given = [self.known[tensor] for tensor in made.inputs if tensor in self.known]
        if any((value.per_row.astype(bool) & value.constant.astype(bool)).any() for value in given):
            return
        axes = max([int(any(not value.is_constant for value in given)), *(len(self.rows_axes(t)) for t in made.inputs)])
        for tensor in made.outputs:
            if tensor.shape.rank and len(self.rows_axes(tensor)) >= axes:
                self.sizes.update(size for size in tensor.shape.as_list() if size is not None and not self.counts(size))

    def hidden(self, tensor: Any, shape: Any) -> Any:
        """The tensor under another name, so that no shape is inferred from its value (or none from its shape).

        Args:
            tensor: of this graph. shape: that the name has; None: not known.
        """
        other = tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)
        self.attributes[other.op] = dict(other.op.node_def.attr)
        self.ops.append(other.op)
        return other

    def add_functions_of(self, graph: Any) -> None:
        while graph is not None:  # a function's functions may be known to the graph around it alone
            for function in getattr(graph, "_functions", {}).values():
                self.graph._add_function_recursive(function)
            graph = getattr(graph, "outer_graph", None)


def numbers_of(tensor: Any) -> list[int]:
    """The dimensions of a tensor that are numbers."""
    return [size for size in tensor.shape.as_list() if size is not None] if tensor.shape.rank else []


def shape_of(handle: Any) -> list[int | None] | None:
    """The shape of a variable; None if it is not known."""
    data = handle_data_util.get_resource_handle_data(handle)
    if not data.is_set or data.shape_and_type[0].shape.unknown_rank:
        return None
    return [dim.size for dim in data.shape_and_type[0].shape.dim]
