"""The table of trials of ops on rows, of ops by indices, and of ops on variables and lists."""

# ruff: noqa: E501  a line for each trial

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.partition_table import FLOAT, HALF, raw, rows, t

BOTH = ("float64", "float32")


def of_batch(type_: str, names: str, **attributes: Any) -> Callable[..., Any]:
    return lambda *values: getattr(raw, type_)(**dict(zip(names.split(), values, strict=True)), **attributes)


def pool(type_: str, names: str = "input", **more: Any) -> Callable[..., Any]:
    rank = 5 if "3D" in type_ else 4
    size = [1, *[2] * (rank - 2), 1]
    return of_batch(type_, names, ksize=size, strides=size, padding="VALID", **more)


def shaped(type_: str, shape_at: int, sizes: Any, names: str, **attributes: Any) -> Callable[..., Any]:
    """Gradients that are told the shape of their result."""

    def call(*values: Any) -> Any:
        given = list(values)
        given.insert(shape_at, tf.stack([rows(values[-1]), *sizes]))
        return getattr(raw, type_)(**dict(zip(names.split(), given, strict=True)), **attributes)

    return call


S1, V = [1, 1, 1, 1], {"padding": "VALID"}
S3 = [1, 1, 1, 1, 1]
W = {"strides": S1, **V}
IMAGE, IMAGES = "f n 4 4 2", "u n 4 4 3"
ROWWISE = [
    t("Conv2D", of_batch("Conv2D", "input filter", strides=S1, padding="SAME"), IMAGE, "f 3 3 2 5", gives="S0", dtypes=HALF),
    t("Conv2D", of_batch("Conv2D", "input filter", strides=S1, padding="SAME"), "f 1 n 4 2", "f 3 3 2 5"),
    t("Conv2D", of_batch("Conv2D", "input filter", strides=S1, padding="VALID"), "f 2 n 4 2", "f 1 1 2 5"),
    t("Conv3D", of_batch("Conv3D", "input filter", strides=S3, padding="SAME"), "f n 3 3 3 2", "f 2 2 2 2 3", gives="S0"),
    t("DepthwiseConv2dNative", of_batch("DepthwiseConv2dNative", "input filter", **W), IMAGE, "f 2 2 2 2", gives="S0"),
    t("Dilation2D", of_batch("Dilation2D", "input filter", rates=S1, **W), IMAGE, "f 2 2 2", gives="S0"),
    t("Dilation2DBackpropInput", of_batch("Dilation2DBackpropInput", "input filter out_backprop", rates=S1, **W), IMAGE, "f 2 2 2", "f n 3 3 2", gives="S0"),
    t("Dilation2DBackpropFilter", of_batch("Dilation2DBackpropFilter", "input filter out_backprop", rates=S1, **W), IMAGE, "f 2 2 2", "f n 3 3 2", gives="P"),
    t("MaxPool", pool("MaxPool"), IMAGE, gives="S0", dtypes=HALF),
    t("MaxPoolV2", lambda x: raw.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **V), IMAGE, gives="S0", dtypes=FLOAT),
    t("MaxPool3D", pool("MaxPool3D"), "f n 2 2 4 2", gives="S0", dtypes=FLOAT),
    t("AvgPool", pool("AvgPool", "value"), IMAGE, gives="S0", dtypes=HALF),
    t("AvgPool3D", pool("AvgPool3D"), "f n 2 2 4 2", gives="S0", dtypes=FLOAT),
    t("MaxPoolGrad", lambda x, g: raw.MaxPoolGrad(orig_input=x, orig_output=raw.MaxPool(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **V), grad=g, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **V), IMAGE, "f n 2 2 2", gives="S0", dtypes=BOTH),
    t("MaxPoolGradGrad", lambda x, g: raw.MaxPoolGradGrad(orig_input=x, orig_output=raw.MaxPool(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **V), grad=g, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **V), IMAGE, IMAGE, gives="S0", dtypes=BOTH),
    t("MaxPool3DGrad", lambda x, g: raw.MaxPool3DGrad(orig_input=x, orig_output=raw.MaxPool3D(input=x, ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], **V), grad=g, ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], **V), "f n 2 2 4 2", "f n 1 1 2 2", gives="S0", dtypes=FLOAT),
    t("LRN", of_batch("LRN", "input"), IMAGE, gives="S0", dtypes=FLOAT),
    t("LRNGrad", of_batch("LRNGrad", "input_grads input_image output_image"), IMAGE, IMAGE, IMAGE, gives="S0", dtypes=FLOAT),
    t("SparseSoftmaxCrossEntropyWithLogits", of_batch("SparseSoftmaxCrossEntropyWithLogits", "features labels"), "f n 4", "i4 n", gives="S0", dtypes=HALF),
    t("SoftmaxCrossEntropyWithLogits", of_batch("SoftmaxCrossEntropyWithLogits", "features labels"), "f n 4", "u n 4", gives="S0", dtypes=HALF),
    t("SoftmaxCrossEntropyWithLogits", of_batch("SoftmaxCrossEntropyWithLogits", "features labels"), "f n 4", "u 1 4"),
    t("SoftmaxCrossEntropyWithLogits", of_batch("SoftmaxCrossEntropyWithLogits", "features labels"), "f n N", "u n N"),
    t("InTopK", of_batch("InTopK", "predictions targets", k=2), "f n 4", "i4 n", gives="S0", dtypes=FLOAT),
    t("InTopKV2", of_batch("InTopKV2", "predictions targets", k=2), "f n 4", "i4 n", gives="S0", dtypes=FLOAT),
    *(t(name, of_batch(name, "images", size=[6, 5]), IMAGES, gives="S0", dtypes=BOTH) for name in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea")),
    t("ResizeBilinearGrad", of_batch("ResizeBilinearGrad", "grads original_image"), "f n 6 5 3", IMAGES, gives="S0", dtypes=FLOAT),
    t("ResizeBicubicGrad", of_batch("ResizeBicubicGrad", "grads original_image"), "f n 6 5 3", IMAGES, gives="S0", dtypes=FLOAT),
    t("ResizeNearestNeighborGrad", of_batch("ResizeNearestNeighborGrad", "grads", size=[3, 3]), "f n 6 5 3", gives="S0", dtypes=BOTH),
    t("AdjustContrastv2", lambda x: raw.AdjustContrastv2(images=x, contrast_factor=0.5), IMAGES, gives="S0", dtypes=FLOAT),
    t("AdjustContrastv2", lambda x: raw.AdjustContrastv2(images=x, contrast_factor=0.5), "u n 4 3", dtypes=FLOAT),
    t("AdjustHue", lambda x: raw.AdjustHue(images=x, delta=0.1), IMAGES, gives="S0", dtypes=FLOAT),
    t("AdjustSaturation", lambda x: raw.AdjustSaturation(images=x, scale=0.1), IMAGES, gives="S0", dtypes=FLOAT),
    t("RGBToHSV", lambda x: raw.RGBToHSV(images=x), "u n 3", gives="S0", dtypes=BOTH),
    t("HSVToRGB", lambda x: raw.HSVToRGB(images=x), IMAGES, gives="S0", dtypes=BOTH),
    t("ImageProjectiveTransformV3", lambda x, m: raw.ImageProjectiveTransformV3(images=x, transforms=m, output_shape=[4, 4], fill_value=0.0, interpolation="BILINEAR"), IMAGES, "u n 8", gives="S0", dtypes=FLOAT),
    t("ImageProjectiveTransformV3", lambda x, m: raw.ImageProjectiveTransformV3(images=x, transforms=m, output_shape=[4, 4], fill_value=0.0, interpolation="BILINEAR"), IMAGES, "u 1 8", gives="S0", dtypes=FLOAT, forms=("rows", "blocks")),
    t("ExtractImagePatches", of_batch("ExtractImagePatches", "images", ksizes=[1, 2, 2, 1], strides=S1, rates=S1, **V), IMAGE, gives="S0"),
    t("FakeQuantWithMinMaxVars", lambda x: raw.FakeQuantWithMinMaxVars(inputs=x, min=-1.0, max=1.0), "f n 3", gives="S0", dtypes=FLOAT),
    *(t(name, of_batch(name, "logits"), shape, gives=gives, dtypes=HALF) for name in ("Softmax", "LogSoftmax") for shape, gives in (("f n 4", "S0"), ("f n 2 4", "S0"), ("f 4 n", ""), ("f n N", ""))),
    t("TopKV2", lambda x: raw.TopKV2(input=x, k=2), "f n 4", gives="S0", dtypes=HALF),
    t("TopKV2", lambda x: raw.TopKV2(input=x, k=2), "f 4 n"),
    t("TopKV2", lambda x: raw.TopKV2(input=x, k=rows(x)), "f n N"),
    *(t(name, of_batch(name, "input"), shape, gives=gives) for name in ("FFT", "IFFT") for shape, gives in (("c n 4", "S0"), ("c 4 n", ""))),
    t("RFFT", lambda x: raw.RFFT(input=x, fft_length=[4], Tcomplex=tf.complex64), "f n 4", gives="S0", dtypes=FLOAT),
    t("IRFFT", lambda x: raw.IRFFT(input=x, fft_length=[4], Treal=tf.float64), "c n 3", gives="S0"),
    *(t(name, of_batch(name, "input"), shape, gives=gives) for name in ("FFT2D", "IFFT2D") for shape, gives in (("c n 2 4", "S0"), ("c 2 n 4", ""))),
    t("MatrixInverse", of_batch("MatrixInverse", "input"), "f n 3 3", gives="S0", dtypes=BOTH),
    t("MatrixInverse", lambda x: raw.MatrixInverse(input=x + 5.0 * tf.eye(rows(x), dtype=x.dtype)), "f n N"),
    t("Cholesky", lambda x: raw.Cholesky(input=tf.matmul(x, x, transpose_b=True) + 3.0 * tf.eye(3, dtype=x.dtype)), "f n 3 3", gives="S0", dtypes=BOTH),
    t("CholeskyGrad", lambda x, g: raw.CholeskyGrad(l=tf.linalg.band_part(x, -1, 0) + 3.0 * tf.eye(3, dtype=x.dtype), grad=g), "u n 3 3", "f n 3 3", gives="S0", dtypes=BOTH),
    t("MatrixDeterminant", of_batch("MatrixDeterminant", "input"), "f n 3 3", gives="S0", dtypes=BOTH),
    t("LogMatrixDeterminant", of_batch("LogMatrixDeterminant", "input"), "f n 3 3", gives="S0", dtypes=BOTH),
    t("MatrixDiagPartV3", lambda x: raw.MatrixDiagPartV3(input=x, k=0, padding_value=tf.zeros([], x.dtype)), "f n 3 3", gives="S0"),
    t("MatrixDiagPartV3", lambda x: raw.MatrixDiagPartV3(input=x, k=0, padding_value=tf.zeros([], x.dtype)), "f n N"),
    t("MatrixDiagV3", lambda x: raw.MatrixDiagV3(diagonal=x, k=0, num_rows=-1, num_cols=-1, padding_value=tf.zeros([], x.dtype)), "f n 3", gives="S0"),
    t("MatrixDiagV3", lambda x: raw.MatrixDiagV3(diagonal=x, k=0, num_rows=-1, num_cols=-1, padding_value=tf.zeros([], x.dtype)), "f 3 n"),
    t("MatrixDiagV3", lambda x: raw.MatrixDiagV3(diagonal=x, k=0, num_rows=-1, num_cols=-1, padding_value=tf.zeros([], x.dtype)), "f n"),
    t("MatrixDiagV3", lambda x: raw.MatrixDiagV3(diagonal=x, k=[0, 1], num_rows=-1, num_cols=-1, padding_value=tf.zeros([], x.dtype)), "f n 2 3"),
    t("Qr", lambda x: tf.abs(raw.Qr(input=x)[1]), "f n 3 3", gives="S0", dtypes=BOTH),
    t("SelfAdjointEigV2", lambda x: raw.SelfAdjointEigV2(input=x, compute_v=False)[0], "f n 3 3", gives="S0", dtypes=BOTH),
    t("Svd", lambda x: raw.Svd(input=x)[0], "f n 3 2", gives="S0", dtypes=BOTH),
    t("MatrixSolve", of_batch("MatrixSolve", "matrix rhs"), "f n 3 3", "f n 3 2", gives="S0"),
    t("MatrixSolve", lambda x, y: raw.MatrixSolve(matrix=x + 3.0 * tf.eye(3, dtype=x.dtype), rhs=y), "u 3 3", "f 3 n"),
    t("MatrixTriangularSolve", lambda x, y: raw.MatrixTriangularSolve(matrix=x + tf.eye(3, dtype=x.dtype), rhs=y), "u n 3 3", "f n 3 2", gives="S0"),
    t("MatrixTriangularSolve", lambda x, y: raw.MatrixTriangularSolve(matrix=x + tf.eye(3, dtype=x.dtype), rhs=y), "u 1 3 3", "f n 3 2"),
    t("Conv2DBackpropFilter", lambda x, g: raw.Conv2DBackpropFilter(input=x, filter_sizes=[3, 3, 2, 5], out_backprop=g, strides=S1, padding="SAME"), IMAGE, "f n 4 4 5", gives="P", dtypes=HALF),
    t("Conv3DBackpropFilterV2", lambda x, g: raw.Conv3DBackpropFilterV2(input=x, filter_sizes=[2, 2, 2, 2, 3], out_backprop=g, strides=S3, padding="SAME"), "f n 3 3 3 2", "f n 3 3 3 3", gives="P"),
    t("DepthwiseConv2dNativeBackpropFilter", lambda x, g: raw.DepthwiseConv2dNativeBackpropFilter(input=x, filter_sizes=[2, 2, 2, 2], out_backprop=g, **W), IMAGE, "f n 3 3 4", gives="P"),
    t("Conv2DBackpropInput", shaped("Conv2DBackpropInput", 0, [4, 4, 2], "input_sizes filter out_backprop", strides=S1, padding="SAME"), "f 3 3 2 5", "f n 4 4 5", gives="S0", dtypes=HALF),
    t("Conv3DBackpropInputV2", shaped("Conv3DBackpropInputV2", 0, [3, 3, 3, 2], "input_sizes filter out_backprop", strides=S3, padding="SAME"), "f 2 2 2 2 3", "f n 3 3 3 3", gives="S0"),
    t("DepthwiseConv2dNativeBackpropInput", shaped("DepthwiseConv2dNativeBackpropInput", 0, [4, 4, 2], "input_sizes filter out_backprop", **W), "f 2 2 2 2", "f n 3 3 4", gives="S0"),
    t("AvgPoolGrad", shaped("AvgPoolGrad", 0, [4, 4, 2], "orig_input_shape grad", ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], **V), "f n 2 2 2", gives="S0", dtypes=HALF),
    t("AvgPool3DGrad", shaped("AvgPool3DGrad", 0, [2, 2, 4, 2], "orig_input_shape grad", ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], **V), "f n 1 1 2 2", gives="S0", dtypes=FLOAT),
    *(t("OneHot", lambda x, axis=axis: raw.OneHot(indices=x, depth=5, on_value=2.0, off_value=0.5, axis=axis), shape, gives=gives) for axis, shape, gives in ((-1, "i n", "S0"), (0, "i n", "S1"), (1, "i n 2", "S0"), (-1, "i 2 n", "S1"))),
    t("OneHot", lambda x: raw.OneHot(indices=x, depth=rows(x), on_value=2.0, off_value=0.5), "i n", gives="S0"),
    t("BiasAdd", of_batch("BiasAdd", "value bias"), "f n 3", "f 3", gives="S0", dtypes=HALF),
    t("BiasAdd", of_batch("BiasAdd", "value bias"), "f 3 n", "f n"),
    t("BiasAdd", of_batch("BiasAdd", "value bias"), "f 2 3", "f 3", forms=("parts",)),
    t("BiasAdd", of_batch("BiasAdd", "value bias", data_format="NCHW"), "f n 3 4", "f 3", gives="S0"),
]  # fmt: skip

TABLE = np.arange(12.0).reshape(4, 3)


def table(keys: Any) -> Any:
    if not hasattr(table, "made"):
        with tf.init_scope():
            values = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2, 3]), tf.constant([5.0, 6.0, 7.0, 8.0]))
            table.made = tf.lookup.StaticHashTable(values, -1.0)  # type: ignore[attr-defined]
    return table.made.lookup(keys)  # type: ignore[attr-defined]


def lengths(words: Any) -> Any:
    """Of words that are ragged."""
    return tf.ragged.map_flat_values(tf.strings.length, words)


def padded(words: Any) -> Any:
    """Their lengths, rows as long as the longest one: a size that is not known."""
    return tf.cast(lengths(tf.strings.split(words, "1")).to_tensor(), tf.float64)


def gather(axis: int = 0, batch_dims: int = 0) -> Callable[..., Any]:
    return lambda x, i: raw.GatherV2(params=x, indices=i, axis=axis, batch_dims=batch_dims)


class Variables:
    """A variable that is only read, for all trials of a process."""

    made: Any = None

    @classmethod
    def handle(cls) -> Any:
        if cls.made is None:
            with tf.init_scope():
                cls.made = tf.Variable(TABLE)
        return cls.made.handle


INDICES = [
    t("GatherV2", gather(), "f 4 3", "i4 n", gives="S0", dtypes=HALF),
    t("GatherV2", gather(), "f 4 3", "i4 n 2", gives="S0"),
    t("GatherV2", gather(1), "f 4 5", "i4 n", gives="S1"),
    t("GatherV2", gather(-1), "f 4 5", "i4 2 n", gives="S2"),
    t("GatherV2", gather(1), "f n 5", "i4 2", gives="S0"),
    t("GatherV2", gather(1), "f n 5", "i4", gives="S0"),
    t("GatherV2", gather(0), "f 4 n", "i4 2 3", gives="S2"),
    t("GatherV2", gather(0), "f 4 n", "i4", gives="S0"),
    t("GatherV2", gather(0), "f n 3", "i2 n"),
    t("GatherV2", gather(0), "f n 3", "i2 2"),
    t("GatherV2", gather(1, 1), "f n 5", "i4 n", gives="S0"),
    t("GatherV2", gather(1, 1), "f n 5 2", "i4 n 3", gives="S0"),
    t("GatherV2", gather(2, 1), "f n 5 4", "i4 n 3", gives="S0"),
    t("GatherV2", gather(2, 1), "f 2 n 4", "i4 2 3", gives=""),
    t("GatherV2", gather(1, 1), "f 2 4", "i4 2 n", gives=""),
    t("GatherV2", gather(), "f 4 3", "i4 2", forms=("parts",)),
    t("Gather", lambda x, i: raw.Gather(params=x, indices=i), "f 4 3", "i4 n", gives="S0"),
    t("ResourceGather", lambda i: raw.ResourceGather(resource=Variables.handle(), indices=i, dtype=tf.float64), "i4 n 2", gives="S0"),
    t("ResourceGatherNd", lambda i: raw.ResourceGatherNd(resource=Variables.handle(), indices=i, dtype=tf.float64), "i3 n 2", gives="S0"),
    t("GatherNd", lambda x, i: raw.GatherNd(params=x, indices=i), "f 4 4", "i4 n 2", gives="S0"),
    t("GatherNd", lambda x, i: raw.GatherNd(params=x, indices=i), "f 4 4", "i4 3 n 1", gives="S1"),
    t("GatherNd", lambda x, i: raw.GatherNd(params=x, indices=i), "f n 4", "i2 2 2"),
    t("GatherNd", lambda x, i: raw.GatherNd(params=x, indices=i), "f n 4", "i2 n 1"),
    t("UnsortedSegmentSum", lambda x, i: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=4), "f n 3", "i4 n", gives="P", dtypes=HALF),
    t("UnsortedSegmentSum", lambda x, i: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=4), "f n 2 3", "i4 n 2", gives="P"),
    t("UnsortedSegmentSum", lambda x, i: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=4), "f 2 n", "i4 2", gives="S1"),
    t("UnsortedSegmentSum", lambda x, i: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=4), "f 2 3 n", "i4 2 3", gives="S1"),
    *(t(f"UnsortedSegment{of}", lambda x, i, of=of: getattr(raw, f"UnsortedSegment{of}")(data=x, segment_ids=i, num_segments=4), "f 2 3 n", "i4 2", gives="S2") for of in ("Max", "Min", "Prod")),
    t("UnsortedSegmentMax", lambda x, i: raw.UnsortedSegmentMax(data=x, segment_ids=i, num_segments=4), "f n 3", "i4 n", gives=""),
    *(t(f"Segment{of}", lambda x, of=of: getattr(raw, f"Segment{of}")(data=x, segment_ids=[0, 0, 2]), "f 3 n", gives="S1") for of in ("Sum", "Mean", "Max", "Min", "Prod")),
    t("SegmentSum", lambda x: raw.SegmentSum(data=x, segment_ids=[0, 0, 2]), "f 3 n 2", gives="S1"),
    t("UnsortedSegmentSum", lambda x, i: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=rows(x)), "f n 3", "i2 n"),
    t("UnsortedSegmentSum", lambda x, i: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=4), "i n 3", "i4 n"),
    t("ScatterNd", lambda i, x: raw.ScatterNd(indices=i, updates=x, shape=[4, 3]), "i4 n 1", "f n 3", gives="P", dtypes=BOTH),
    t("ScatterNd", lambda i, x: raw.ScatterNd(indices=i, updates=x, shape=[4, 3]), "i3 n 2", "f n", gives="P"),
    t("ScatterNd", lambda i, x: raw.ScatterNd(indices=i, updates=x, shape=[9]), "i9 n 1", "b n", gives="P:any"),
    t("ScatterNd", lambda i, x: raw.ScatterNd(indices=i, updates=x, shape=[9]), "i9 n 1", "s n"),
    t("ScatterNd", lambda i, x: raw.ScatterNd(indices=i, updates=x, shape=[rows(i), 3]), "i2 n 1", "f n 3"),
    t("ScatterNd", lambda i, x: raw.ScatterNd(indices=i, updates=x, shape=tf.stack([4, rows(x, 1)])), "i4 2 1", "f 2 n"),
    t("LookupTableFindV2", lambda i: table(i), "i5 n", gives="S0"),
    t("RaggedTensorToTensor", lambda x: lengths(tf.strings.split(x, "1")).to_tensor(shape=[None, 3]), "s n", gives="S0"),
    t("RaggedTensorToTensor", lambda x: lengths(tf.strings.split(x, "1")).to_tensor(), "s n", gives="S0"),
    t("Shape", lambda x: raw.Shape(input=padded(x)), "s n", gives="whole"),
    t("Shape", lambda x: raw.Shape(input=tf.transpose(padded(x)[:, :, None], [1, 2, 0]), out_type=tf.int64), "s n", gives="whole"),
    t("ShapeN", lambda x: raw.ShapeN(input=[y := padded(x), y * 2])[0], "s n", gives="whole"),
    t("Size", lambda x: raw.Size(input=padded(x)), "s n", gives="whole"),
    t("ExpandDims", lambda x: raw.ExpandDims(input=padded(x), axis=0), "s n", gives="S1"),
    t("ExpandDims", lambda x: raw.ExpandDims(input=padded(x), axis=-1), "s n", gives="S0"),
    t("Squeeze", lambda x: raw.Squeeze(input=padded(x)[:, None], axis=[1]), "s n", gives="S0"),
    t("Squeeze", lambda x: raw.Squeeze(input=padded(x)[None], axis=[-3]), "s n", gives="S0"),
    t("Reshape", lambda x: raw.Reshape(tensor=padded(x), shape=[-1]), "s n", gives="S0"),
    t("Reshape", lambda x, y: raw.Reshape(tensor=padded(x)[:, :, None] * y, shape=[-1, 3]), "s n", "f 3", gives="S0"),
    t("Reshape", lambda x: raw.Reshape(tensor=tf.transpose(padded(x)), shape=[-1]), "s n"),
    t("Slice", lambda x: raw.Slice(input=padded(x), begin=[0, 0], size=[-1, 1]), "s n", gives="S0"),
    t("Slice", lambda x: raw.Slice(input=tf.transpose(padded(x)), begin=[0, 0], size=[1, -1]), "s n", gives="S1"),
    t("Square", lambda x: raw.Square(x=tf.reshape(padded(x), [-1])), "s n", gives="S0"),
    t("Mul", lambda x: raw.Mul(x=tf.reshape(padded(x), [-1]), y=tf.reshape(padded(x), [-1])), "s n", gives="S0"),
    t("UnsortedSegmentSum", lambda x: raw.UnsortedSegmentSum(data=tf.reshape(padded(x), [-1]), segment_ids=tf.cast(tf.reshape(padded(x), [-1]), "int32") % 3, num_segments=3), "s n", gives="P"),
    t("DenseBincount", lambda x: raw.DenseBincount(input=x, size=5, weights=np.zeros([0])), "i n", gives="P"),
    t("DenseBincount", lambda x: raw.DenseBincount(input=x, size=5, weights=np.zeros([0])), "i n 4", gives="S0"),
    t("DenseBincount", lambda x, w: raw.DenseBincount(input=x, size=5, weights=w), "i n", "f n", gives="P"),
    t("DenseBincount", lambda x: raw.DenseBincount(input=x, size=5, weights=np.zeros([0]), binary_output=True), "i n"),
    t("DenseBincount", lambda x: raw.DenseBincount(input=x, size=5, weights=np.zeros([0]), binary_output=True), "i n 4", gives="S0"),
    t("DenseBincount", lambda x: raw.DenseBincount(input=x, size=5, weights=np.zeros([0], "int32")), "i n"),
    t("Bincount", lambda x: raw.Bincount(arr=x, size=5, weights=np.zeros([0])), "i n", gives="P"),
    t("Bincount", lambda x, w: raw.Bincount(arr=x, size=5, weights=w), "i n", "f n", gives="P"),
]  # fmt: skip
