"""Ops that work on each row by itself: convolutions, pooling, softmax and what comes before or after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling, rule

#: Ops of a batch along the first axis, and which inputs have it.
_BATCHES = {
    "Conv2D": (0,), "Conv3D": (0,), "DepthwiseConv2dNative": (0,), "Dilation2D": (0,),
    "MaxPool": (0,), "MaxPool3D": (0,), "AvgPool": (0,), "AvgPool3D": (0,), "MaxPoolGrad": (0, 1, 2),
    "MaxPoolGradGrad": (0, 1, 2), "MaxPool3DGrad": (0, 1, 2), "MaxPoolV2": (0,), "LRN": (0,), "LRNGrad": (0, 1, 2),
    "SparseSoftmaxCrossEntropyWithLogits": (0, 1), "SoftmaxCrossEntropyWithLogits": (0, 1),
    "InTopK": (0, 1), "InTopKV2": (0, 1), "ResizeBilinear": (0,), "ResizeNearestNeighbor": (0,), "ResizeBicubic": (0,),
    "ResizeArea": (0,), "ResizeBilinearGrad": (0, 1), "ResizeNearestNeighborGrad": (0,), "ResizeBicubicGrad": (0, 1),
    "AdjustContrastv2": (0,), "AdjustHue": (0,), "AdjustSaturation": (0,), "RGBToHSV": (0,), "HSVToRGB": (0,),
    "ImageProjectiveTransformV3": (0, 1), "ExtractImagePatches": (0,),
    "Dilation2DBackpropInput": (0, 2), "FakeQuantWithMinMaxVars": (0,),
}  # fmt: skip


@rule(*_BATCHES)
def batch(op: Op) -> Ruling | None:
    """What has the axis of rows first is given by rows."""
    places = _BATCHES[op.type]
    if not any(op.labels[place].kind == "S" for place in places):
        return None
    if op.type == "AdjustContrastv2" and len(op.shapes[0] or ()) < 4:
        return None  # one image, by the mean of it
    if op.type.endswith("SoftmaxCrossEntropyWithLogits") and not _one_axis(op):
        return None
    label = _first_axis(op, places)
    wants: list[Label | None] = [R] * len(op.labels)
    for place in places:
        shape = op.shapes[place]
        if not shape:
            return None
        if op.is_rows(label, shape):
            wants[place] = label
        elif shape[0] != 1:
            return None
    if not all(shape and op.is_rows(label, shape) for shape in op.out_shapes):
        return None
    return Ruling(wants, [label] * len(op.out_shapes))


def _first_axis(op: Op, places: Sequence[int]) -> Label:
    """The label of rows along the first axis that an input has; rows that are along others alone are brought there."""
    labels = [op.labels[place] for place in places]
    return next((label for label in labels if label.kind == "S" and label.axis == 0), S(0))


def _one_axis(op: Op) -> bool:
    """Labels and logits count rows in the same way: one row of logits for each label."""
    shapes = [op.shapes[0], op.shapes[1]]
    return all(shape is not None for shape in shapes) and shapes[0][0] == shapes[1][0]  # type: ignore[index]


#: Ops on the last axes of a tensor, and how many these are.
_LAST = {
    "Softmax": 1, "LogSoftmax": 1, "TopKV2": 1, "FFT": 1, "IFFT": 1, "RFFT": 1, "IRFFT": 1, "FFT2D": 2,
    "IFFT2D": 2, "MatrixInverse": 2, "Cholesky": 2, "MatrixDeterminant": 2, "MatrixDiagPartV3": 2, "Qr": 2,
    "SelfAdjointEigV2": 2, "LogMatrixDeterminant": 2, "Svd": 2, "MatrixDiagV3": 1,
}  # fmt: skip


@rule(*_LAST)
def last_axes(op: Op) -> Ruling | None:
    """Rows are along an axis before those."""
    label, shape = op.labels[0], op.shapes[0]
    if label.kind != "S" or shape is None:
        return None
    before = len(shape) - _LAST[op.type]
    if label.axis >= before:  # rows along another axis do as well
        found = next((axis for axis in range(before) if op.is_rows(S(axis), shape)), None)
        if found is None:
            return None
        label = S(found)
    if not all(op.is_rows(label, out) or out == [0] for out in op.out_shapes):
        return None
    gives = [R if out == [0] else label for out in op.out_shapes]  # vectors that were not asked for have no elements
    return Ruling([label] + [R] * (len(op.labels) - 1), gives)


@rule("MatrixSolve", "MatrixTriangularSolve", "CholeskyGrad")
def matrices(op: Op) -> Ruling | None:
    """Of one matrix for each row."""
    if not any(label.kind == "S" for label in op.labels):
        return None
    label = next(label for label in op.labels if label.kind == "S")
    fits = all(
        shape is not None and label.axis < len(shape) - 2 and op.is_rows(label, shape)
        for shape in [*op.shapes, *op.out_shapes]
    )
    return Ruling([label] * len(op.labels), [label]) if fits else None


@rule(
    "Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter",
    "Dilation2DBackpropFilter",
)  # fmt: skip
def of_filter(op: Op) -> Ruling | None:
    """The gradient of a filter: a sum over rows."""
    first, last = 0, 2
    label = _first_axis(op, (first, last))
    if not any(op.labels[place].kind == "S" for place in (first, last)):
        return None
    if not all(op.is_rows(label, op.shapes[place]) for place in (first, last)):
        return None
    wants: list[Label | None] = [R] * len(op.labels)
    wants[first] = wants[last] = label
    return Ruling(wants, [P])


#: Gradients that are told the shape of their result, and where; and the inputs that hold rows.
_SHAPED = {
    "Conv2DBackpropInput": (0, (2,)), "Conv3DBackpropInputV2": (0, (2,)),
    "DepthwiseConv2dNativeBackpropInput": (0, (2,)), "AvgPoolGrad": (0, (1,)), "AvgPool3DGrad": (0, (1,)),
}  # fmt: skip


@rule(*_SHAPED)
def of_input(op: Op) -> Ruling | None:
    """The gradient of what was convolved or pooled."""
    of_shape, places = _SHAPED[op.type]
    after, label = op.out_shapes[0], _first_axis(op, _SHAPED[op.type][1])
    if op.known(of_shape) is None or after is None or not op.is_rows(label, after):
        return None
    if not all(op.is_rows(label, op.shapes[place]) for place in places):
        return None
    if not any(op.labels[place].kind == "S" for place in places):
        return None
    wants: list[Label | None] = [R] * len(op.labels)
    for place in places:
        wants[place] = label

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        shape = tf.cast(builder.local_shape(after, label), made.inputs[of_shape].dtype)
        return builder.same(made, [shape if place == of_shape else value for place, value in enumerate(values)])

    return Ruling(wants, [label], build)


@rule("OneHot")
def one_hot(op: Op) -> Ruling | None:
    """An axis more."""
    label, after = op.labels[0], op.out_shapes[0]
    if label.kind != "S" or after is None:
        return None
    axis = op.attribute("axis") % len(after)
    return Ruling([None] + [R] * 3, [S(label.axis + (axis <= label.axis), label.blocks)])


@rule("BiasAdd")
def bias_add(op: Op) -> Ruling | None:
    """A vector added along the channels."""
    label, shape = op.labels[0], op.shapes[0]
    if label.kind != "S" or shape is None:
        return None
    channels = 1 if op.attribute("data_format") == b"NCHW" else len(shape) - 1
    return Ruling([None, R], [label]) if label.axis != channels else None
