"""Sparse gradients: what is added to some rows of a table, such as the gradient of an embedding.

A step keeps it as values and indices of the batch's rows (`tf.IndexedSlices`), and adds it to a variable or makes a
table of it. A table is the size of the variable, so values and indices are gathered, once and before anything is
computed of them; every rank then does what one rank does. A table that is the smaller one is a part, and added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from matex_tf.patches.partition.rules.elementwise import ELEMENTWISE
from matex_tf.patches.partition.shapes.shaped import BRANCHES, HANDLES, ROWS, Shaped
from matex_tf.patches.partition.tensor_map import TensorMap

#: By the type of an op: the inputs that are indices and values.
_ADDS = {
    "UnsortedSegmentSum": (1, 0), "ResourceScatterAdd": (1, 2), "ResourceScatterSub": (1, 2),
    "ResourceScatterUpdate": (1, 2), "ResourceScatterMul": (1, 2), "ResourceScatterDiv": (1, 2),
    "ResourceScatterMax": (1, 2), "ResourceScatterMin": (1, 2),
}  # fmt: skip
#: What optimizers do with indices: they look up rows of their slots.
_LOOK_UP = ("GatherV2", "ResourceGather")


def find(shaped: Shaped, ops: Iterable[Any], root: Callable[[Any], Any]) -> TensorMap[None]:
    """Values and indices that are gathered."""
    found: TensorMap[None] = TensorMap()
    sinks = [op for op in ops if op.type in _ADDS]
    if not sinks:
        return found
    readers: TensorMap[list[Any]] = TensorMap()
    for op in ops:
        is_name = op.outputs and root(op.outputs[0]) is not op.outputs[0]
        for tensor in () if is_name else op.inputs:
            readers.setdefault(root(tensor), []).append(op)
    for op in sinks:
        at, of = _ADDS[op.type]
        both = indices, values = root(op.inputs[at]), _source(shaped, root(op.inputs[of]), root)
        if any(shaped.rows_axes(tensor)[:1] != [0] for tensor in both) or not _is_smaller(shaped, op, values):
            continue
        if all(_is_update(shaped, tensor, readers, root) for tensor in both):
            found[indices] = found[values] = None
    return found


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
                if op.type not in ELEMENTWISE and op.type not in BRANCHES and op.type not in _LOOK_UP:
                    return False
                seen.add(id(given))
                stack.append(given)
    return True
