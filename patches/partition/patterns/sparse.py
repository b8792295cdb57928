"""Sparse gradients: what is added to some rows of a table, such as the gradient of an embedding.

A step keeps it as values and indices of the batch's rows (`tf.IndexedSlices`), and adds it to a variable or makes a
table of it. A table is the size of the variable, so values and indices are gathered, once and before anything is
computed of them; every rank then does what one rank does. A table that is the smaller one is a part, and added up.

If nothing but sums is made of values, a rank adds those of equal indices before they travel: see `distinct.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from matex_tf.patches.partition.patterns import distinct, guarded
from matex_tf.patches.partition.patterns.distinct import ADDS, LOOK_UP
from matex_tf.patches.partition.rules.elementwise import ELEMENTWISE
from matex_tf.patches.partition.shapes.shaped import BRANCHES, HANDLES, ROWS, Shaped, shape_of
from matex_tf.patches.partition.tensor_map import TensorMap


class Sparse:
    """What is gathered.

    Attributes:
        gathered: values and indices.
        added: those of which a rank adds the values of equal indices before, with the indices.
        owned: those of which a rank gets no more than the sums for its own rows of a table, with the shape of that.
        readers: ops that read such sums; others read the rows.
        divisions: those of them that divide these, see `guarded.find`.
        local: ops that look up rows by the indices that a rank gets so.
    """

    def __init__(self) -> None:
        self.gathered: TensorMap[None] = TensorMap()
        self.added: TensorMap[Any] = TensorMap()
        self.owned: TensorMap[tuple[int, ...]] = TensorMap()
        self.readers: set[Any] = set()
        self.divisions: dict[Any, guarded.Division] = {}
        self.local: set[Any] = set()

    def is_whole(self, tensor: Any, op: Any) -> bool:
        """Whether what is gathered of a tensor is read, not the rank's rows.

        Args:
            tensor: under its first name. op: which reads it; None: any that does not read sums by index.
        """
        return tensor in self.gathered and (tensor not in self.added or op in self.readers)


def find(
    shaped: Shaped,
    ops: Iterable[Any],
    root: Callable[[Any], Any],
    adds: bool = True,
    in_parts: Callable[[Any], bool] = lambda _: False,
) -> Sparse:
    """Values and indices that are gathered.

    Args:
        shaped: the step's graph. ops: those of it that outputs or effects depend on, in their order.
        root: gives the tensor that one is another name of.
        adds: whether the values of equal indices may be added before they travel.
        in_parts: whether the variable of a handle lies in parts on the ranks.
    """
    found = Sparse()
    sinks = [op for op in ops if op.type in ADDS]
    if not sinks:
        return found
    readers: TensorMap[list[Any]] = TensorMap()
    for op in ops:
        is_name = op.outputs and root(op.outputs[0]) is not op.outputs[0]
        for tensor in () if is_name else op.inputs:
            readers.setdefault(root(tensor), []).append(op)
    divisions = guarded.find(shaped, ops, root)
    of_indices: TensorMap[list[Any]] = TensorMap()
    for op in sinks:
        indices = root(op.inputs[ADDS[op.type][0]])
        while indices.op in divisions:
            indices = root(indices.op.inputs[divisions[indices.op].indices])
        of_indices.setdefault(indices, []).append(op)
    for indices, own in of_indices.items():
        sums = distinct.Family(shaped, indices, own, readers, root, divisions) if adds else None
        if sums is not None and sums.values and all(_is_smaller(shaped, *one) for one in sums.values):
            table = _of_parts(shaped, sums, own, divisions, in_parts)
            family = [indices, *(values for _, values in sums.values)]
            found.gathered.update((one, None) for one in family)
            found.added.update((one, indices) for one in family)
            found.readers |= sums.readers
            found.divisions |= {op: divisions[op] for op in sums.looks_up if op in divisions}
            if table is not None:
                found.owned.update((one, table) for one in family)
                found.local |= sums.looks_up
            continue
        for op in own:
            both = indices, values = indices, _source(shaped, root(op.inputs[ADDS[op.type][1]]), root)
            if any(shaped.rows_axes(tensor)[:1] != [0] for tensor in both) or not _is_smaller(shaped, op, values):
                continue
            if all(_is_update(shaped, tensor, readers, root) for tensor in both):
                found.gathered[indices] = found.gathered[values] = None
    return found


def _of_parts(
    shaped: Shaped,
    sums: distinct.Family,
    sinks: Iterable[Any],
    divisions: dict[Any, guarded.Division],
    in_parts: Callable[[Any], bool],
) -> tuple[int, ...] | None:
    """The shape of the tables in parts to which a family adds, all of one shape, and where it looks up; None for
    others."""
    added = [op.outputs[0] if op.type == "UnsortedSegmentSum" else op.inputs[0] for op in sinks]
    read = [divisions[op].of(op) if op in divisions else op.inputs[0] for op in sums.looks_up]
    shapes = {_shape(shaped, one) for one in (*added, *read)}
    fit = all(in_parts(one) if one.dtype in HANDLES else shapes <= shaped.in_parts for one in added)
    table = [size for size in shapes.pop() if size is not None] if len(shapes) == 1 else []
    return tuple(table) if fit and table else None


def _shape(shaped: Shaped, table: Any) -> tuple[int | None, ...]:
    """The shape of a table or of a variable, by its handle."""
    return tuple((shape_of(table) if table.dtype in HANDLES else shaped.shape(table)) or ())


def _source(shaped: Shaped, tensor: Any, root: Callable[[Any], Any]) -> Any:
    """What values are computed of, each by itself, as an optimizer scales and squares a gradient."""
    while tensor.op.type in ELEMENTWISE:
        before = [one for one in map(root, tensor.op.inputs) if one.dtype not in HANDLES and shaped.rows_axes(one)]
        if len(before) != 1 or shaped.shape(before[0]) != shaped.shape(tensor):
            break
        tensor = before[0]
    return tensor


def _is_smaller(shaped: Shaped, op: Any, values: Any) -> bool:
    """Whether values take fewer bytes than the sum of a table over the ranks, which travels twice."""
    if op.type != "UnsortedSegmentSum":
        return True
    table, shape = shaped.shape(op.outputs[0]), shaped.shape(values)
    if table is None or shape is None or None in table or None in shape or any(map(shaped.counts, table)):
        return False
    width = shape[0] // shaped.prime  # type: ignore[operator]
    return ROWS * width <= 2 * table[0]  # type: ignore[operator]


def _is_update(shaped: Shaped, tensor: Any, readers: TensorMap[list[Any]], root: Callable[[Any], Any]) -> bool:
    """Whether nothing but an update is made of a tensor, which then need not be kept by rows."""
    seen, stack, outputs = {id(tensor)}, [tensor], {id(root(output)) for output in shaped.outputs}
    while stack:
        last = stack.pop()
        if id(last) in outputs:
            return False
        for op in readers.get(last, ()):
            for given in op.outputs:
                if given.dtype in HANDLES or shaped.shape(given) is None:
                    return False
                if not shaped.rows_axes(given) or id(given) in seen:
                    continue
                if op.type not in ELEMENTWISE and op.type not in BRANCHES and op.type not in LOOK_UP:
                    return False
                seen.add(id(given))
                stack.append(given)
    return True
