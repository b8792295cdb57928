"""Values of equal indices that a rank adds before they travel: what travels is as large as the different indices.

That is right where nothing but sums by index is made of the values: what lies between them and the sums is linear in
the values, and depends on the index otherwise (a learning rate; rows of a slot that are looked up). What is not linear,
as a square, a rank computes of its rows, and adds that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.patches.partition.patterns.guarded import Division
from matex_tf.patches.partition.rules.elementwise import ELEMENTWISE, LINEAR
from matex_tf.patches.partition.shapes.shaped import HANDLES, Shaped
from matex_tf.patches.partition.tensor_map import TensorMap

#: By the type of an op: the inputs that are indices and values.
ADDS = {
    "UnsortedSegmentSum": (1, 0), "ResourceScatterAdd": (1, 2), "ResourceScatterSub": (1, 2),
    "ResourceScatterUpdate": (1, 2), "ResourceScatterMul": (1, 2), "ResourceScatterDiv": (1, 2),
    "ResourceScatterMax": (1, 2), "ResourceScatterMin": (1, 2),
}  # fmt: skip
_SUMS = ("UnsortedSegmentSum", "ResourceScatterAdd", "ResourceScatterSub")
#: What optimizers do with indices: they look up rows of their slots.
LOOK_UP = ("GatherV2", "ResourceGather")


class Family:
    """What is added by some indices.

    Attributes:
        values: the ops that add, each with the tensor whose rows of equal indices can be added; empty if others read
            the indices or these values.
        readers: ops that read the sums, or the different indices.
        looks_up: those of them that look up rows.
    """

    def __init__(
        self,
        shaped: Shaped,
        indices: Any,
        sinks: Sequence[Any],
        readers: TensorMap[list[Any]],
        root: Callable[[Any], Any],
        divisions: dict[Any, Division],
    ):
        """Args: shaped: the step's graph. indices: a tensor of it. sinks: ops that add by them. readers: the ops that
        read a tensor. root: gives the tensor that one is another name of. divisions: see `guarded.find`."""
        self._divisions = divisions
        self._shaped, self._indices, self._sinks, self._readers, self._root = shaped, indices, sinks, readers, root
        self._outputs = {id(root(output)) for output in shaped.outputs}
        self._are_linear: dict[Any, bool] = {}
        self.values: list[tuple[Any, Any]] = []
        self.readers: set[Any] = set(sinks)
        self.looks_up: set[Any] = set()
        self._looked_up: TensorMap[None] = TensorMap()
        if self._is_fit():
            found = [(op, self._source(op)) for op in sinks]
            if all(self._is_kept_apart(values) for _, values in found):
                self.values = found

    def _is_fit(self) -> bool:
        shape = self._shaped.shape(self._indices)
        if shape is None or len(shape) != 1 or not self._has_rows(self._indices) or self._is_given(self._indices):
            return False
        for op in self._readers.get(self._indices, ()):
            if op in self._divisions:
                self.looks_up.add(op)
                if not self._is_linear(op):
                    return False
            elif op.type in LOOK_UP and self._root(op.inputs[1]) is self._indices:
                self.readers.add(op)
                self.looks_up.add(op)
                self._looked_up[op.outputs[0]] = None
            elif op not in self._sinks or sum(self._root(one) is self._indices for one in op.inputs) != 1:
                return False
        return all(op.type in _SUMS for op in self._sinks) and all(
            not self._is_given(rows) and all(map(self._is_linear, self._readers.get(rows, ())))
            for rows in self._looked_up
        )

    def _has_rows(self, tensor: Any) -> bool:
        return tensor.dtype not in HANDLES and self._shaped.rows_axes(tensor)[:1] == [0]

    def _depends_on_rows(self, tensor: Any) -> bool:
        shape = self._shaped.shape(tensor)
        return shape is None or None in shape or bool(self._shaped.rows_axes(tensor))

    def _is_given(self, tensor: Any) -> bool:
        return id(tensor) in self._outputs

    def _own(self, op: Any) -> list[int]:
        """The inputs of an op that have rows, and are none that are looked up by the indices."""
        if op in self._divisions:
            return [self._divisions[op].values]
        given = [(place, self._root(one)) for place, one in enumerate(op.inputs)]
        return [place for place, one in given if self._has_rows(one) and one not in self._looked_up]

    def _is_linear(self, op: Any) -> bool:
        """Whether an op, and all that follows, is linear in what it reads until it is added."""
        if op not in self._are_linear:
            self._are_linear[op] = False
            self._are_linear[op] = self._leads_to_sums(op)
        return self._are_linear[op]

    def _leads_to_sums(self, op: Any) -> bool:
        if op in self._divisions:
            return self._divides(op, self._divisions[op])
        own = self._own(op)
        if len(own) != 1 or own[0] not in LINEAR.get(op.type, ()):
            return False
        for place, one in enumerate(op.inputs):
            if place != own[0] and self._root(one) not in self._looked_up and self._depends_on_rows(one):
                return False
        if self._shaped.shape(op.inputs[own[0]]) != self._shaped.shape(op.outputs[0]):
            return False
        return self._are_added(op.outputs[0])

    def _divides(self, op: Any, by: Division) -> bool:
        """Whether a division is by rows that these indices name, and nothing but sums is made of what it gives."""
        given, others = op.outputs[by.gives_indices], set(range(len(op.inputs))) - {by.indices, by.values}
        if self._root(op.inputs[by.indices]) is not self._indices or self._is_given(given):
            return False
        if not self._has_rows(op.inputs[by.values]) or any(self._depends_on_rows(op.inputs[one]) for one in others):
            return False
        by_them = (
            one in self._sinks and self._root(one.inputs[ADDS[one.type][0]]) is given
            for one in self._readers.get(given, ())
        )
        return all(by_them) and self._are_added(op.outputs[by.gives_values])

    def _are_added(self, values: Any) -> bool:
        """Whether nothing but sums by index is made of values."""
        after = self._readers.get(values, ())
        linear = all(self._adds(one, values) or self._is_linear(one) for one in after)
        return bool(after) and linear and not self._is_given(values)

    def _adds(self, op: Any, values: Any) -> bool:
        """Whether an op adds these values by the indices."""
        places = [place for place, one in enumerate(op.inputs) if self._root(one) is values]
        return op in self._sinks and places == [ADDS[op.type][1]]

    def _source(self, op: Any) -> Any:
        """What the values that an op adds are linear in."""
        values = self._root(op.inputs[ADDS[op.type][1]])
        while self._is_linear(values.op):
            self.readers.add(values.op)
            values = self._root(values.op.inputs[self._own(values.op)[0]])
        return values

    def _is_kept_apart(self, values: Any) -> bool:
        """Whether what else reads values computes each row by itself: it does not get the sums."""
        shape = self._shaped.shape(values)
        if not values.dtype.is_floating or not self._has_rows(values) or self._is_given(values) or shape is None:
            return False
        if None in shape:
            return False
        for op in (one for one in self._readers.get(values, ()) if one not in self.readers):
            others = [one for one in op.inputs if self._root(one) is not values]
            if op.type not in ELEMENTWISE or any(self._shaped.shape(one) not in ([], [1]) for one in others):
                return False
        return True
