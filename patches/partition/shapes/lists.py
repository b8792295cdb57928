"""The shapes of what is kept in TensorFlow's lists, which the lists themselves know only as they were traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.tensor_map import TensorMap

READS = ("TensorListGetItem", "TensorListPopBack", "TensorListStack")


class Lists:
    """What is known of the elements of each list of a graph.

    Attributes:
        shapes: of the elements, by list.
        values: integers that all elements are, by list.
        counts: of the elements, by list, where they do not depend on the rows.
        lost: whether the shape of something that was read is not known.
    """

    def __init__(self, prime: int, known: TensorMap[Affine], sizes: set[int]):
        """Args: see `Shaped`."""
        self._prime, self._known, self._sizes = prime, known, sizes
        self.shapes: TensorMap[tf.TensorShape] = TensorMap()
        self.values: TensorMap[Affine] = TensorMap()
        self.counts: TensorMap[int] = TensorMap()
        self.lost = False

    def give(self, tensor: Any, shape: tf.TensorShape | None, value: Affine | None, count: int | None) -> None:
        """Say what a list holds; what is None is left as it was.

        Args:
            tensor: the list. shape: of each element. value: integers that each element is. count: of elements.
        """
        if shape is not None:
            self.shapes[tensor] = shape
        if value is not None:
            self.values[tensor] = value
        if count is not None:
            self.counts[tensor] = count

    def of(self, tensor: Any) -> tuple[tf.TensorShape | None, Affine | None, int | None]:
        """What is known of a list."""
        return self.shapes.get(tensor), self.values.get(tensor), self.counts.get(tensor)

    def see(self, op: Any, inputs: Sequence[Any]) -> None:
        """Follow an op that has been made.

        Args:
            op: of the new graph. inputs: what it reads, tensors of that graph; none is `hidden`.
        """
        if op.type in ("EmptyTensorList", "TensorListReserve"):
            dims = self._known.get(inputs[0])
            if dims is not None and dims.constant.ndim:
                sizes = dims.at(self._prime).tolist()
                self.give(op.outputs[0], tf.TensorShape([None if size < 0 else size for size in sizes]), None, None)
            count = self._known.get(inputs[1]) if op.type == "TensorListReserve" else None
            if count is not None and count.is_constant:
                self.counts[op.outputs[0]] = int(count.constant)
        elif op.type == "TensorListFromTensor":
            size = inputs[0].shape[0] if inputs[0].shape.rank else None
            self.give(op.outputs[0], inputs[0].shape[1:], None, size if size in self._sizes else None)
        elif op.type in ("TensorListPushBack", "TensorListSetItem"):
            item = inputs[1 if op.type == "TensorListPushBack" else 2]
            count = self.counts.get(inputs[0]) if op.type == "TensorListSetItem" else None
            self.give(op.outputs[0], _better(self.shapes.get(inputs[0]), item.shape), self._known.get(item), count)
        elif op.type == "TensorListLength" and inputs[0] in self.counts:
            self._known[op.outputs[0]] = Affine.of(self.counts[inputs[0]])
        elif op.type in READS:
            self._read(op, inputs[0])
        elif op.type in ("Identity", "ZerosLike", "AddN", "StopGradient") and op.outputs[0].dtype == tf.variant:
            self.give(op.outputs[0], *self.of(inputs[0]))

    def _read(self, op: Any, held: Any) -> None:
        shape, value, count = self.of(held)
        element = op.outputs[-1]
        if op.type == "TensorListPopBack":
            self.give(op.outputs[0], shape, value, None)
        if op.type != "TensorListStack" and value is not None:
            self._known[element] = value
        if shape is not None and op.type == "TensorListStack":
            shape = tf.TensorShape([count]).concatenate(shape)
        if shape is not None and element.shape.is_compatible_with(shape):
            element.set_shape(shape)
        rest = element.shape[1:] if op.type == "TensorListStack" else element.shape
        self.lost = self.lost or not rest.is_fully_defined()


def _better(one: tf.TensorShape | None, other: tf.TensorShape) -> tf.TensorShape:
    if one is None or not one.is_compatible_with(other):
        return other
    return one.merge_with(other)
