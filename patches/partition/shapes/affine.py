"""Integers that follow from shapes, as functions of the number of rows: `per_row * rows + constant`.

`tf.shape(x)` and what a step computes of it decide the shapes of other tensors. Where such a number is linear in the
rows it is known without running anything; where it is not (`tf.shape(x)[0] // 2`) it is computed when the step runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

#: What an op makes that has more elements is not followed: shapes have fewer, and as many as a length would be folded
#: for one length alone.
MOST = 8


@dataclasses.dataclass(frozen=True)
class Affine:
    """Integers `per_row * rows + constant`, elementwise. Both arrays have the tensor's shape, int64."""

    per_row: np.ndarray
    constant: np.ndarray

    @classmethod
    def of(cls, value: Any) -> Affine:
        """Integers that do not depend on the rows."""
        array = np.asarray(value, np.int64)
        return cls(np.zeros_like(array), array)

    @property
    def is_constant(self) -> bool:
        return not self.per_row.any()

    @property
    def key(self) -> tuple[Any, ...]:
        """What is the same for the same integers, and has a hash."""
        return self.per_row.tobytes(), self.constant.tobytes(), self.constant.shape

    def at(self, rows: int) -> np.ndarray:
        """The integers for a number of rows."""
        return self.per_row * rows + self.constant


def product(values: Affine) -> Affine | None:
    """The product of all elements; None if it is not linear in the rows."""
    per_row, constant = 0, 1
    for k, c in zip(values.per_row.ravel().tolist(), values.constant.ravel().tolist(), strict=True):
        if per_row and k:
            return None
        per_row, constant = per_row * c + constant * k, constant * c
    return Affine(np.asarray(per_row, np.int64), np.asarray(constant, np.int64))


#: Ops that place integers, or are linear in them, with the inputs that hold the integers; None: all of them.
_PLACING: dict[str, Sequence[int] | None] = {
    "Pack": None, "ConcatV2": None, "StridedSlice": (0,), "GatherV2": (0,), "Slice": (0,), "Reshape": (0,),
    "ExpandDims": (0,), "Squeeze": (0,), "Identity": (0,), "Unpack": (0,), "Fill": (1,), "Transpose": (0,),
    "BroadcastTo": (0,), "Split": (1,), "Tile": (0,), "ReverseV2": (0,), "Cast": (0,), "Pad": (0,), "Neg": (0,),
    "Sum": (0,), "Select": (1, 2), "SelectV2": (1, 2), "DynamicStitch": None,
}  # fmt: skip
#: Ops that are evaluated if nothing that they read depends on the rows.
_CONSTANT = frozenset(
    [
        "FloorMod",
        "FloorDiv",
        "Maximum",
        "Minimum",
        "Equal",
        "NotEqual",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "SelectV2",
        "Select",
        "LogicalAnd",
        "LogicalOr",
        "LogicalNot",
        "Range",
        "InvertPermutation",
        "Sum",
        "Max",
        "Min",
        "DynamicStitch",
        "ConcatOffset",
        "Pad",
        "Neg",
        "Abs",
        "ListDiff",
        "BroadcastArgs",
        "RealDiv",
    ]
)


def fold(op: Any, inputs: Sequence[Affine | None]) -> list[Affine] | None:
    """What an op on integers gives, one value for each output; None if it is computed when the step runs.

    Args:
        op: of the traced step. inputs: the integers that it reads; None for those that do not follow from shapes.
    """
    if not inputs or any(value is None for value in inputs):
        return None
    values: list[Affine] = list(inputs)  # type: ignore[arg-type]
    if op.type in _COMPUTING:
        found = _COMPUTING[op.type](op, values)
        return None if found is None else _small([found] if isinstance(found, Affine) else found)
    if op.type in _PLACING:
        if op.type == "Cast" and not op.outputs[0].dtype.is_integer:
            return None
        data = _PLACING[op.type]
        rest = [i for i in range(len(values)) if data is not None and i not in data]
        if op.type == "ConcatV2":
            rest = [len(values) - 1]
        elif op.type == "DynamicStitch":
            rest = list(range(len(values) // 2))
        if any(not values[i].is_constant for i in rest):
            return None
        constants = [value.constant for value in values]
        parts = [eagerly(op, constants)]
        if all(value.is_constant for value in values):
            return _small([Affine.of(part) for part in parts[0]])
        parts.append(eagerly(op, [values[i].constant if i in rest else values[i].per_row for i in range(len(values))]))
        return _small([Affine(k.astype(np.int64), c.astype(np.int64)) for c, k in zip(*parts, strict=True)])
    if op.type in _CONSTANT and all(value.is_constant for value in values):
        if not all(tensor.dtype.is_integer or tensor.dtype == tf.bool for tensor in op.outputs):
            return None
        return _small([Affine.of(part) for part in eagerly(op, [value.constant for value in values])])
    return None


def _small(values: list[Affine]) -> list[Affine] | None:
    return values if all(value.constant.size <= MOST for value in values) else None


def _times(op: Any, values: list[Affine]) -> Affine | None:
    a, b = values
    if not a.is_constant and not b.is_constant:
        return None
    return Affine(a.per_row * b.constant + a.constant * b.per_row, a.constant * b.constant)


def _divided(op: Any, values: list[Affine]) -> Affine | None:
    """Exact divisions alone: by a constant that divides both parts, or of multiples of the rows."""
    a, b = values
    if b.is_constant and b.constant.all() and not (a.per_row % b.constant).any():
        if a.is_constant:
            return Affine.of(a.constant // b.constant)
        exact = not (a.constant % b.constant).any()
        return Affine(a.per_row // b.constant, a.constant // b.constant) if exact else None
    if not a.constant.any() and not b.constant.any() and b.per_row.all() and not (a.per_row % b.per_row).any():
        return Affine.of(a.per_row // b.per_row)
    return None


def _larger(op: Any, values: list[Affine]) -> Affine | None:
    """`maximum(rows * k, c)` where it is the first for one row already; and of what is the same."""
    a, b = values if not values[0].is_constant else values[::-1]
    if a.is_constant and b.is_constant:
        return Affine.of(np.maximum(a.constant, b.constant))
    if b.is_constant and (a.per_row > 0).all() and (a.per_row + a.constant >= b.constant).all():
        return Affine(*np.broadcast_arrays(a.per_row, a.constant))
    return a if _same(a, b) else None


def _smaller(op: Any, values: list[Affine]) -> Affine | None:
    """The other one of `maximum`."""
    larger = _larger(op, values)
    if larger is None:
        return None
    return Affine(*(sum(getattr(value, name) for value in values) - getattr(larger, name) for name in _PARTS))


_PARTS = ("per_row", "constant")


def _same(a: Affine, b: Affine) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in _PARTS)


def _product(op: Any, values: list[Affine]) -> Affine | None:
    data, axes = values
    if not axes.is_constant:
        return None
    if op.get_attr("keep_dims") or data.constant.ndim != 1 or axes.constant.size != 1:
        return Affine.of(eagerly(op, [data.constant, axes.constant])[0]) if data.is_constant else None
    return product(data)


def _reduced_axes(op: Any, values: list[Affine]) -> list[Affine] | None:
    """Axes over which the gradient of a broadcast is summed (`BroadcastGradientArgs`)."""
    first, second = (list(zip(v.per_row.tolist(), v.constant.tolist(), strict=True)) for v in values)
    rank = max(len(first), len(second))
    first, second = ([(0, 1)] * (rank - len(dims)) + dims for dims in (first, second))
    axes: tuple[list[int], list[int]] = ([], [])
    for axis, pair in enumerate(zip(first, second, strict=True)):
        for one, other, found in ((*pair, axes[0]), (*pair[::-1], axes[1])):
            if one == (0, 1) and (other != (0, 1) or pair == ((0, 1), (0, 1))):
                found.append(axis)
    return [Affine.of(np.asarray(found, np.int64)) for found in axes]


def _offsets(op: Any, values: list[Affine]) -> list[Affine] | None:
    """Where each tensor begins in the concatenation of all (`ConcatOffset`)."""
    axis, shapes = values[0], values[1:]
    if not axis.is_constant:
        return None
    found, k, c = [], 0, 0
    for shape in shapes:
        per_row, constant = np.zeros_like(shape.per_row), np.zeros_like(shape.constant)
        per_row[int(axis.constant)], constant[int(axis.constant)] = k, c
        found.append(Affine(per_row, constant))
        k, c = k + int(shape.per_row[int(axis.constant)]), c + int(shape.constant[int(axis.constant)])
    return found


_COMPUTING: dict[str, Callable[[Any, list[Affine]], Any]] = {
    "Mul": _times,
    "AddV2": lambda op, v: Affine(v[0].per_row + v[1].per_row, v[0].constant + v[1].constant),
    "Sub": lambda op, v: Affine(v[0].per_row - v[1].per_row, v[0].constant - v[1].constant),
    "FloorDiv": _divided,
    "Maximum": _larger,
    "Minimum": _smaller,
    "Prod": _product,
    "BroadcastGradientArgs": _reduced_axes,
    "ConcatOffset": _offsets,
}


def _sliced(op: Any, values: Sequence[np.ndarray]) -> np.ndarray | None:
    """One slice of a vector, or one of its elements."""
    data, begin, end, step = values
    if data.ndim != 1 or begin.size != 1 or op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    if op.get_attr("shrink_axis_mask"):
        return data[int(begin[0])]
    first = None if op.get_attr("begin_mask") else int(begin[0])
    return data[first : None if op.get_attr("end_mask") else int(end[0]) : int(step[0])]


def _taken(op: Any, values: Sequence[np.ndarray]) -> np.ndarray | None:
    data, indices, axis = values
    return None if op.get_attr("batch_dims") else np.take(data, indices, int(axis))


#: What NumPy computes of the integers of a step, in a hundredth of the time of an op; None: it does not know.
_BY_NUMPY: dict[str, Callable[[Any, Sequence[np.ndarray]], np.ndarray | None]] = {
    "Cast": lambda op, values: values[0],
    "ConcatV2": lambda op, values: np.concatenate(values[:-1], int(values[-1])),
    "FloorMod": lambda op, values: np.mod(*values) if values[1].all() else None,
    "GatherV2": _taken,
    "Pack": lambda op, values: np.stack(values, op.get_attr("axis")),
    "StridedSlice": _sliced,
}


def eagerly(op: Any, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What an op of a graph gives for some arrays, computed now by NumPy or TensorFlow: an array for each output.

    Args:
        op: whose attributes count, not its inputs. values: an array for each input, of a dtype that can be cast to its.
    """
    quick = _BY_NUMPY[op.type](op, values) if op.type in _BY_NUMPY else None
    if quick is not None:
        return [np.asarray(quick)]

    def plain(value: Any) -> Any:
        if isinstance(value, tf.DType):
            return value.as_datatype_enum
        return [plain(one) for one in value] if isinstance(value, list) else value

    attributes = tuple(item for a in op.op_def.attr for item in (a.name, plain(op.get_attr(a.name))))
    with tf.init_scope():
        given = [tf.constant(value, tensor.dtype) for value, tensor in zip(values, op.inputs, strict=True)]
        results = execute.quick_execute(op.type, len(op.outputs), given, attributes, context.context())
    return [np.asarray(result.numpy()) for result in results]
