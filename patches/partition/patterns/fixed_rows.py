"""A step that was traced for a fixed number of rows, as a tf.function is for the tensors that it gets: which of its
constants count them.

TensorFlow writes shapes that it knows into a graph as numbers. One that is as large as the batch is taken to count rows
where it stands for a size. In such a graph that is never wrong: the number is the same, and what is then computed by
rows is checked by the shapes for a prime number of rows like everything else. If it was mistaken, less is shared out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.python.framework import tensor_util

from matex_tf.patches.partition.shapes.affine import Affine

#: Multiples are recognized from this number of rows on; smaller ones are multiples by chance too often.
_FEW = 16
#: Inputs that are sizes, by the type of the op; None: all of them.
_SIZES: dict[str, tuple[int, ...] | None] = {
    "Reshape": (1,), "Fill": (0,), "BroadcastTo": (1,), "Tile": (1,), "BroadcastGradientArgs": None,
    "Conv2DBackpropInput": (0,), "Conv3DBackpropInputV2": (0,), "DepthwiseConv2dNativeBackpropInput": (0,),
    "StridedSlice": (0,), "StridedSliceGrad": (0,), "GatherV2": (0,), "Pack": None, "BroadcastArgs": None,
    "ScatterNd": (2,), "UnsortedSegmentSum": (2,), "ConcatOffset": (1, 2, 3, 4, 5),
    "RandomStandardNormal": (0,), "RandomUniform": (0,), "TruncatedNormal": (0,), "RandomUniformInt": (0,),
    "StatelessRandomNormalV2": (0,), "StatelessRandomUniformV2": (0,), "StatelessTruncatedNormalV2": (0,),
    "StatelessRandomUniformIntV2": (0,), "Prod": (0,), "Slice": (2,), "SelectV2": (1, 2), "Range": (1,),
}  # fmt: skip
#: Inputs that are the shape of a list's elements: that may be open, and nothing checks it.
_OF_ELEMENTS: dict[str, tuple[int, ...] | None] = {
    "TensorListReserve": (0,), "EmptyTensorList": (0,), "TensorListFromTensor": (1,), "TensorListStack": (1,),
    "TensorListGetItem": (2,), "TensorListPopBack": (1,), "TensorListConcatV2": (1,),
}  # fmt: skip


def sizes(op: Any, value: np.ndarray, rows: int) -> Affine:
    """The integers of a constant, of which one counts rows if the constant holds sizes.

    Args:
        op: a Const of the traced graph. value: what it holds, integers or booleans of any shape.
        rows: the number of rows that the step was traced for.
    """
    if value.ndim == 1 and _is(op, _OF_ELEMENTS):
        return Affine.of(np.where(value == rows, -1, value))
    if value.ndim > 1 or value.dtype == bool or not _is(op, _SIZES):
        return Affine.of(value)
    flat, per_row = value.ravel().astype(np.int64), np.zeros(value.size, np.int64)
    place = _place(flat.tolist(), rows)
    if place is None:
        return Affine.of(value)
    per_row[place] = flat[place] // rows
    rest = np.where(per_row > 0, 0, flat)
    return Affine(per_row.reshape(value.shape), rest.reshape(value.shape))


def filled(op: Any, rows: int) -> tuple[Affine, Any] | None:
    """Shape and value of a constant that has one value for every row; None for any other.

    Args:
        op: a Const of the traced graph. rows: the number of rows that the step was traced for.

    Returns:
        The shape, integers `[dimensions]`, and the value, a NumPy scalar.
    """
    shape = op.outputs[0].shape
    place = _place(shape.as_list(), rows) if shape.rank else None
    if place is None or _is(op, _SIZES) or op.outputs[0].dtype.name == "string":
        return None
    value = tensor_util.MakeNdarray(op.get_attr("value"))
    if not (value == value.flat[0]).all():
        return None
    per_row, rest = np.zeros(value.ndim, np.int64), np.asarray(value.shape, np.int64)
    per_row[place], rest[place] = rest[place] // rows, 0
    return Affine(per_row, rest), value.flat[0]


def has_rows(op: Any, rows: int) -> bool:
    """Whether the first axis of a constant is as long as the batch, such as a batch that a function knows by closure.

    Args:
        op: a Const of the traced graph. rows: the number of rows that the step was traced for.
    """
    shape = op.outputs[0].shape
    return rows >= _FEW and bool(shape.rank) and shape[0] == rows and not _is(op, _SIZES)


def opened(shape: Any, rows: int) -> Any:
    """The shape that a step asks a tensor to have, with the dimension open that counts rows.

    Args:
        shape: a `tf.TensorShape`. rows: the number of rows that the step was traced for.
    """
    place = _place([size or 0 for size in shape.as_list()], rows) if shape.rank else None
    return shape if place is None else shape[:place].concatenate([None]).concatenate(shape[place + 1 :])


def _place(numbers: list[int], rows: int) -> int | None:
    """Which of these sizes counts rows, if one does."""
    if not numbers:
        return None
    multiple = rows >= _FEW and numbers[0] > 0 and numbers[0] % rows == 0
    if numbers[0] == rows or multiple:
        return 0
    return numbers.index(rows) if numbers.count(rows) == 1 else None


def _is(op: Any, table: dict[str, tuple[int, ...] | None]) -> bool:
    """Whether a constant is used in these places alone."""
    uses = [(one.type, place) for one in op.outputs[0].consumers() for place in _places(one, op.outputs[0])]
    return bool(uses) and all(_has(table.get(kind, ()), place) for kind, place in uses)


def _has(places: tuple[int, ...] | None, place: int) -> bool:
    return places is None or place in places


def _places(op: Any, tensor: Any) -> list[int]:
    return [place for place, one in enumerate(op.inputs) if one is tensor]
