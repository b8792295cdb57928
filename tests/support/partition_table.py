"""The table of trials of ops that are not elementwise, by the module of their rule."""

# ruff: noqa: E501  a line for each trial

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.support.partition_rules import Trial

raw = tf.raw_ops
ONE = ("float64",)
FLOAT = ("float32",)
HALF = ("float64", "float32", "float16")
SIMPLE = ("rows", "blocks", "parts")


def t(
    type_: str, function: Callable[..., Any], *operands: str, gives: str = "", dtypes: Any = ONE, forms: Any = ()
) -> Trial:
    """A line of the table."""
    return Trial(type_, function, operands, gives, dtypes, forms)


def matmul(a: bool, b: bool) -> Callable[..., Any]:
    return lambda x, y: raw.MatMul(a=x, b=y, transpose_a=a, transpose_b=b)


def batched(type_: str, a: bool = False, b: bool = False) -> Callable[..., Any]:
    more = {"Tout": tf.float64} if type_ == "BatchMatMulV3" else {}
    return lambda x, y: getattr(raw, type_)(x=x, y=y, adj_x=a, adj_y=b, **more)


def einsum(equation: str) -> Callable[..., Any]:
    return lambda *operands: raw.Einsum(inputs=list(operands), equation=equation)


CONTRACTIONS = [
    t("MatMul", matmul(False, False), "f n 4", "f 4 3", gives="S0", dtypes=HALF),
    t("MatMul", matmul(True, False), "f n 4", "f n 3", gives="P", dtypes=HALF),
    t("MatMul", matmul(False, False), "f 4 n", "f n 3", gives="P"),
    t("MatMul", matmul(False, True), "f 4 3", "f n 3", gives="S1"),
    t("MatMul", matmul(False, True), "f n 3", "f n 3", gives="S0"),
    t("MatMul", matmul(False, False), "f n N", "f n 3", gives=""),
    t("MatMul", matmul(True, False), "f n N", "f n 3", gives=""),
    t("MatMul", matmul(False, False), "f 4 5", "f 5 3", forms=("parts",)),
    t("MatMul", matmul(False, False), "i n 4", "i 4 3", gives="S0"),
    t("MatMul", matmul(True, False), "i n 4", "i n 3", gives="P"),
    *(
        t(name, batched(name), "f n 2 4", "f n 4 3", gives="S0")
        for name in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
    ),
    t("BatchMatMulV2", batched("BatchMatMulV2"), "f 5 n 4", "f 5 4 3", gives="S1", dtypes=HALF),
    t("BatchMatMulV2", batched("BatchMatMulV2"), "f n 2 4", "f 4 3", gives="S0"),
    t("BatchMatMulV2", batched("BatchMatMulV2"), "f 1 2 4", "f n 4 3", gives="S0"),
    t("BatchMatMulV2", batched("BatchMatMulV2", True), "f 5 n 4", "f 5 n 3", gives="P"),
    t("BatchMatMulV2", batched("BatchMatMulV2", False, True), "f 5 n 4", "f 5 n 4", gives="S1"),
    t("BatchMatMulV2", batched("BatchMatMulV2"), "f 5 2 4", "f 4 3", forms=("parts",)),
    t("Einsum", einsum("bi,io->bo"), "f n 4", "f 4 3", gives="S0", dtypes=HALF),
    t("Einsum", einsum("abc,cde->abde"), "f n 5 4", "f 4 2 3", gives="S0"),
    t("Einsum", einsum("aecd,abcd->acbe"), "f n 5 2 3", "f n 4 2 3", gives="S0"),
    t("Einsum", einsum("bi,bo->io"), "f n 4", "f n 3", gives="P"),
    t("Einsum", einsum("bi->i"), "f n 4", gives="P"),
    t("Einsum", einsum("bi,ci->bc"), "f n 4", "f n 4", gives="S0"),
    t("Einsum", einsum("...i,io->...o"), "f n 4", "f 4 3"),
    t("Einsum", einsum("bii->bi"), "f n 4 4"),
    t("Einsum", einsum("ij,jk->ik"), "f 3 4", "f 4 2", forms=("parts",)),
    t("Cross", lambda a, b: raw.Cross(a=a, b=b), "f n 3", "f n 3", gives="S0"),
]


def reduction(type_: str, axis: Any, keep: bool = False) -> Callable[..., Any]:
    more = {
        "Sum": "input",
        "Mean": "input",
        "Max": "input",
        "Min": "input",
        "Prod": "input",
        "All": "input",
        "Any": "input",
    }
    return lambda x: getattr(raw, type_)(**{more.get(type_, "input"): x, "axis": axis, "keep_dims": keep})


_WAYS = {"Sum": "P", "Mean": "P", "Max": "P:max", "Min": "P:min", "Prod": "P:prod"}
REDUCTIONS = [
    *(
        t(name, reduction(name, axis, keep), shape, gives=gives or over, dtypes=dtypes)
        for name, over in _WAYS.items()
        for axis, keep, shape, gives, dtypes in (
            (0, False, "f n 3", "", HALF), (1, False, "f n 3", "S0", HALF), ([0, 1], True, "f n 3", "", ONE),
            (-1, True, "f 2 n", "", ONE), (0, False, "f 2 n", "S0", ONE), ([0, 1], False, "f n N", "", ONE),
            (0, False, "f n N", "", ONE), (1, False, "f n N", "S0", ONE), ([], False, "f n 3", "S0", ONE),
            (0, True, "f 2 n", "S1", ONE), ([1], False, "f 2 3 n", "S1", ONE), ([0, 2], False, "f 2 n 3", "S0", ONE),
        )
    ),
    *(t(name, reduction(name, 0), "i n 3", gives=over) for name, over in _WAYS.items() if name != "Mean"),
    t("Mean", reduction("Mean", 0), "i n 3"),
    *(t(name, reduction(name, axis), "f 3 2", forms=("parts",)) for name in _WAYS for axis in (0, [0, 1])),
    *(t(name, reduction(name, 0), "b n 3", gives=f"P:{name.lower()}") for name in ("All", "Any")),
    *(t(name, reduction(name, 1), "b n 3", gives="S0") for name in ("All", "Any")),
    t("EuclideanNorm", reduction("EuclideanNorm", 1), "f n 3", gives="S0"),
    t("EuclideanNorm", reduction("EuclideanNorm", 0), "f n 3"),
    t("EuclideanNorm", reduction("EuclideanNorm", 0), "f 3", forms=("parts",)),
    t("L2Loss", lambda x: raw.L2Loss(t=x), "f n 3", gives="P", dtypes=HALF),
    t("L2Loss", lambda x: raw.L2Loss(t=x), "f 3", forms=("parts",)),
    t("BiasAddGrad", lambda x: raw.BiasAddGrad(out_backprop=x), "f n 3", gives="P", dtypes=HALF),
    t("BiasAddGrad", lambda x: raw.BiasAddGrad(out_backprop=x), "f 2 n"),
    t("BiasAddGrad", lambda x: raw.BiasAddGrad(out_backprop=x, data_format="NCHW"), "f n 3 4", gives="P"),
    t("BiasAddGrad", lambda x: raw.BiasAddGrad(out_backprop=x), "f 2 3", forms=("parts",)),
    *(
        t(name, lambda x, name=name, axis=axis: getattr(raw, name)(input=x, dimension=axis), shape, gives=gives, dtypes=dtypes)
        for name in ("ArgMax", "ArgMin")
        for axis, shape, gives, dtypes in (
            (1, "f n 3", "S0", ("float64", "float32")), (0, "f n 3", "", ONE), (0, "f 2 n", "S0", ONE), (-1, "f 2 n 3", "S1", ONE),
        )
    ),
    *(
        t(name, lambda x, name=name, axis=axis, more=more: getattr(raw, name)(x=x, axis=axis, **more), shape, gives=gives)
        for name in ("Cumsum", "Cumprod", "CumulativeLogsumexp")
        for axis, shape, gives, more in (
            (1, "f n 3", "S0", {}), (0, "f n 3", "", {}), (0, "f 3 n", "S1", {"exclusive": True, "reverse": True}),
        )
    ),
    t("Cumsum", lambda x: raw.Cumsum(x=x, axis=0), "f 3 2", forms=("parts",)),
]  # fmt: skip


def rows(x: Any, axis: int = 0) -> Any:
    return tf.shape(x)[axis]


def reshape(*sizes: Any) -> Callable[..., Any]:
    """A size k * n is written as a string "k"."""

    def call(x: Any) -> Any:
        count = tf.size(x) // _elements(x)
        return raw.Reshape(
            tensor=x, shape=tf.stack([count * int(size) if isinstance(size, str) else size for size in sizes])
        )

    return call


def _elements(x: Any) -> int:
    """Elements of a row."""
    known = [size for size in x.shape.as_list() if size is not None]
    count = 1
    for size in known:
        count *= size
    return count


LAYOUT = [
    t("Reshape", reshape(-1, 2), "f n 6", gives="S0", dtypes=HALF),
    t("Reshape", reshape(-1), "f n 3", gives="S0"),
    t("Reshape", reshape("1", 2, 3), "f n 6", gives="S0"),
    t("Reshape", reshape(-1, 3), "f 2 n 3"),
    t("Reshape", reshape(2, -1), "f 2 n 3", gives="S1"),
    t("Reshape", reshape(1, -1, 3), "f n 3", gives="S1"),
    t("Reshape", reshape(3, -1), "f n 3"),
    t("Reshape", lambda x: raw.Reshape(tensor=x, shape=tf.concat([tf.shape(x), [1]], 0)), "f n N", gives=""),
    t("Reshape", lambda x: raw.Reshape(tensor=x, shape=tf.concat([tf.shape(x), [1]], 0)), "f N n", gives=""),
    t("Reshape", lambda x: raw.Reshape(tensor=x, shape=[-1]), "f n N"),
    t("Reshape", lambda x: raw.Reshape(tensor=x, shape=[6]), "f 2 3", forms=("parts",)),
    t("ExpandDims", lambda x: raw.ExpandDims(input=x, axis=0), "f n 3", gives="S1"),
    t("ExpandDims", lambda x: raw.ExpandDims(input=x, axis=-1), "f n 3", gives="S0"),
    t("ExpandDims", lambda x: raw.ExpandDims(input=x, axis=2), "f N n", gives=""),
    t("ExpandDims", lambda x: raw.ExpandDims(input=x, axis=0), "f 3", forms=("parts",)),
    t("Squeeze", lambda x: raw.Squeeze(input=x, axis=[1]), "f n 1 3", gives="S0"),
    t("Squeeze", lambda x: raw.Squeeze(input=x, axis=[0]), "f 1 n 3", gives="S0"),
    t("Squeeze", lambda x: raw.Squeeze(input=x, axis=[]), "f 1 n 3", gives="S0"),
    t("Squeeze", lambda x: raw.Squeeze(input=x, axis=[0]), "f 1 3", forms=("parts",)),
    t("Fill", lambda x: raw.Fill(dims=[rows(x), 2], value=tf.constant(3.0)), "f n 3", gives="S0"),
    t("Fill", lambda x: raw.Fill(dims=[2, rows(x)], value=tf.constant(True)), "f n 3", gives="S1"),
    t("Fill", lambda x: raw.Fill(dims=[rows(x), rows(x)], value=tf.constant(2)), "f n 3", gives="S0"),
    t("Fill", lambda x: raw.Fill(dims=[rows(x) + 1], value=tf.constant(2)), "f n 3"),
    t("Fill", lambda x, y: raw.Fill(dims=[rows(x)], value=y), "f n 3", "f", forms=("rows", "parts"), gives="S0"),
    t("Fill", lambda x: raw.Fill(dims=[rows(x) // 2], value=tf.constant(2)), "f n 3"),
    t("BroadcastTo", lambda x: raw.BroadcastTo(input=x, shape=[2, rows(x), 3]), "f n 3", gives="S1"),
    t("BroadcastTo", lambda x: raw.BroadcastTo(input=x, shape=[rows(x), 3]), "f n 1", gives="S0"),
    t("BroadcastTo", lambda x, y: raw.BroadcastTo(input=y, shape=[rows(x), 3]), "f n 1", "f 3", gives="S0"),
    t("BroadcastTo", lambda x: raw.BroadcastTo(input=x, shape=[rows(x), rows(x)]), "f n 1", gives="S0"),
    t("BroadcastTo", lambda x: raw.BroadcastTo(input=tf.transpose(x), shape=[rows(x), rows(x)]), "f n 1", gives=""),
    t("Transpose", lambda x: raw.Transpose(x=x, perm=[1, 0]), "f n 3", gives="S1", dtypes=HALF),
    t("Transpose", lambda x: raw.Transpose(x=x, perm=[2, 0, 1]), "f 2 n 3", gives="S2"),
    t("Transpose", lambda x: raw.Transpose(x=x, perm=[1, 0]), "f n N", gives="S1"),
    t("Transpose", lambda x: raw.Transpose(x=x, perm=[1, 0]), "f 2 3", forms=("parts",)),
    t("Tile", lambda x: raw.Tile(input=x, multiples=[1, 2]), "f n 3", gives="S0"),
    t("Tile", lambda x: tf.reduce_sum(raw.Tile(input=x, multiples=[2, 1])[rows(x) :] * 2, 1), "f n 3"),
    t("Tile", lambda x: raw.Tile(input=x, multiples=[2, 1]), "f n 3", gives=""),
    t("Tile", lambda x: raw.Tile(input=x, multiples=[rows(x), 1]), "f n 3"),
    t("Tile", lambda x, y: raw.Tile(input=y, multiples=[rows(x), 1]), "f n 3", "f 1 3"),
    t("Tile", lambda x: raw.Tile(input=x, multiples=[0, 1]), "f n 3"),
    t("Tile", lambda x: raw.Tile(input=x, multiples=[2]), "f 3", forms=("parts",)),
    t("Pad", lambda x: raw.Pad(input=x, paddings=[[0, 0], [1, 2]]), "f n 3", gives="S0"),
    t("Pad", lambda x: raw.Pad(input=x, paddings=[[1, 0], [0, 0]]), "f n 3"),
    t(
        "PadV2",
        lambda x: raw.PadV2(input=x, paddings=[[0, 0], [1, 2]], constant_values=tf.cast(7, x.dtype)),
        "f n 3",
        gives="S0",
    ),
    t(
        "PadV2",
        lambda x: raw.PadV2(input=x, paddings=[[1, 1]], constant_values=tf.cast(7, x.dtype)),
        "f 3",
        forms=("parts",),
    ),
    t("MirrorPad", lambda x: raw.MirrorPad(input=x, paddings=[[0, 0], [1, 2]], mode="REFLECT"), "f n 3", gives="S0"),
    t(
        "MirrorPadGrad",
        lambda x: raw.MirrorPadGrad(input=x, paddings=[[0, 0], [1, 2]], mode="REFLECT"),
        "f n 6",
        gives="S0",
    ),
    t("ReverseV2", lambda x: raw.ReverseV2(tensor=x, axis=[1]), "f n 3", gives="S0"),
    t("ReverseV2", lambda x: raw.ReverseV2(tensor=x, axis=[0, -1]), "f n 3"),
    t("ReverseV2", lambda x: raw.ReverseV2(tensor=x, axis=[0]), "f 3", forms=("parts",)),
    t("Roll", lambda x: raw.Roll(input=x, shift=[1], axis=[1]), "f n 3", gives="S0"),
    t("Roll", lambda x: raw.Roll(input=x, shift=[1], axis=[0]), "f n 3"),
    t("Roll", lambda x: raw.Roll(input=x, shift=[1], axis=[0]), "f 3", forms=("parts",)),
    t("MatrixBandPart", lambda x: raw.MatrixBandPart(input=x, num_lower=1, num_upper=0), "f n 3 3", gives="S0"),
    t("MatrixBandPart", lambda x: raw.MatrixBandPart(input=x, num_lower=0, num_upper=0), "f n N"),
    t("MatrixBandPart", lambda x: raw.MatrixBandPart(input=x, num_lower=0, num_upper=0), "f 3 3", forms=("parts",)),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=1), "f n 3", "f n 2", gives="S0", dtypes=HALF),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=0), "f 2 n", "f 3 n", gives="S1"),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=0), "f n 3", "f n 3", gives=""),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y, x], axis=0), "f n 3", "f n 3", gives=""),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=0), "f n 3", "f 2 3"),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, tf.reshape(y, [-1, 3])], axis=0), "f n 3", "f n 6"),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=0), "f 3", "f 2", forms=("parts",)),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=1), "f n N", "f n 2", gives=""),
    t("ConcatV2", lambda x, y: raw.ConcatV2(values=[x, y], axis=0), "f n N", "f n N", gives="", forms=("rows", "wide")),
    t("Pack", lambda x, y: raw.Pack(values=[x, y], axis=0), "f n 3", "f n 3", gives="S1"),
    t("Pack", lambda x, y: raw.Pack(values=[x, y], axis=1), "f n 3", "f n 3", gives="S0"),
    t("Pack", lambda x, y: raw.Pack(values=[x, y], axis=-1), "f 2 n", "f 2 n", gives="S1"),
    t("Pack", lambda x, y: raw.Pack(values=[x, y], axis=0), "f 3", "f 3", forms=("parts",)),
    t("Unpack", lambda x: raw.Unpack(value=x, num=3, axis=1), "f n 3", gives="S0"),
    t("Unpack", lambda x: raw.Unpack(value=x, num=2, axis=0), "f 2 n", gives="S0"),
    t("Unpack", lambda x: raw.Unpack(value=x, num=2, axis=-1), "f 3 n 2", gives="S1"),
    t("Unpack", lambda x: raw.Unpack(value=x, num=2, axis=0), "f 2 3", forms=("parts",)),
    t("Split", lambda x: raw.Split(value=x, axis=1, num_split=2), "f n 4", gives="S0"),
    t("Split", lambda x: raw.Split(value=tf.concat([x, x * 2], 0), axis=0, num_split=2), "f n 4", gives="S0"),
    t("Split", lambda x: raw.Split(value=x, axis=-1, num_split=2), "f 4 2", forms=("parts",)),
    t("SplitV", lambda x: raw.SplitV(value=x, size_splits=[1, 3], axis=1, num_split=2), "f n 4", gives="S0"),
    t("SplitV", lambda x: raw.SplitV(value=x, size_splits=[1, rows(x) - 1], axis=0, num_split=2), "f n 4"),
    t("SplitV", lambda x: raw.SplitV(value=x, size_splits=[1, 3], axis=0, num_split=2), "f 4 2", forms=("parts",)),
    t("DepthToSpace", lambda x: raw.DepthToSpace(input=x, block_size=2), "f n 2 2 4", gives="S0", dtypes=FLOAT),
    t("SpaceToDepth", lambda x: raw.SpaceToDepth(input=x, block_size=2), "f n 2 2 4", gives="S0", dtypes=FLOAT),
    t("IdentityN", lambda x, y: raw.IdentityN(input=[x, y]), "f n 4", "f 3", gives="S0"),
]


def sliced(item: Any) -> Callable[..., Any]:
    return lambda x: x[item]


def n(x: Any) -> Any:
    return tf.shape(x)[0]


def slice_grad(begin: Any, end: Any, size: Any, **masks: int) -> Callable[..., Any]:
    """The gradient of a slice; bounds and sizes are functions of the number of rows."""

    def call(x: Any) -> Any:
        r = rows(x)
        return raw.StridedSliceGrad(
            shape=tf.stack(size(r)),
            begin=tf.stack(begin(r)),
            end=tf.stack(end(r)),
            strides=[1] * len(begin(r)),
            dy=x,
            **masks,
        )

    return call


SLICES = [
    t("StridedSlice", sliced(slice(None)), "f n 3", gives="S0"),
    t("StridedSlice", sliced((slice(None), 0)), "f n 3", gives="S0"),
    t("StridedSlice", sliced((Ellipsis, slice(1, None))), "f n 3", gives="S0"),
    t("StridedSlice", sliced((slice(None), tf.newaxis)), "f n 3", gives="S0"),
    t("StridedSlice", sliced((tf.newaxis, Ellipsis)), "f n 3", gives="S1"),
    t("StridedSlice", sliced((slice(None), slice(None, None, -1))), "f n 3", gives="S0"),
    t("StridedSlice", sliced((1, Ellipsis, tf.newaxis)), "f 2 n 3", gives="S0"),
    t("StridedSlice", sliced((slice(0, 1), slice(None), slice(-2, None))), "f 2 n 3", gives="S1"),
    t("StridedSlice", sliced((Ellipsis, tf.newaxis, 0)), "f 2 n 3", gives="S1"),
    t("StridedSlice", sliced(0), "f n 3"),
    t("StridedSlice", sliced(-1), "f n 3"),
    t("StridedSlice", sliced(slice(None, 2)), "f n 3"),
    t("StridedSlice", sliced(slice(1, None)), "f n 3"),
    t("StridedSlice", sliced(slice(None, -1)), "f n 3"),
    t("StridedSlice", sliced(slice(None, None, 2)), "f n 3"),
    t("StridedSlice", sliced(slice(None, None, -1)), "f n 3"),
    t("StridedSlice", lambda x: x[: n(x) // 2], "f n 3"),
    t("StridedSlice", lambda x: x[n(x) // 2 :], "f n 3"),
    t("StridedSlice", lambda x: x[: n(x)], "f n 3", gives=""),
    t("StridedSlice", lambda x: tf.concat([x, x * 2], 0)[: n(x)], "f n 3", gives=""),
    t("StridedSlice", lambda x: tf.concat([x, x * 2], 0)[n(x) :, 1:], "f n 3", gives=""),
    t("StridedSlice", lambda x: tf.concat([x, x * 2, x + 1], 0)[-n(x) :], "f n 3", gives=""),
    t("StridedSlice", lambda x: tf.transpose(tf.concat([x, x * 2], 0))[1, n(x) :], "f n 3", gives=""),
    t("StridedSlice", lambda x: x[:, : n(x)], "f n N", gives=""),
    t("StridedSlice", lambda x: x[1:, 0], "f 3 2", forms=("parts",)),
    t(
        "StridedSliceGrad",
        slice_grad(lambda r: [0, 1], lambda r: [0, 4], lambda r: [r, 5], begin_mask=1, end_mask=1),
        "f n 3",
        gives="S0",
    ),
    t(
        "StridedSliceGrad",
        slice_grad(lambda r: [0, 1], lambda r: [0, 4], lambda r: [r, 5], begin_mask=1, end_mask=1, shrink_axis_mask=2),
        "f n",
        gives="S0",
    ),
    t(
        "StridedSliceGrad",
        slice_grad(lambda r: [0, 0], lambda r: [r, 3], lambda r: [2 * r, 3]),
        "f n 3",
        gives="",
        forms=("rows", "wide"),
    ),
    t(
        "StridedSliceGrad",
        slice_grad(lambda r: [r, 0], lambda r: [2 * r, 3], lambda r: [2 * r, 3]),
        "f n 3",
        gives="",
        forms=("rows", "wide"),
    ),
    t(
        "StridedSliceGrad",
        slice_grad(lambda r: [1, 0], lambda r: [r + 1, 3], lambda r: [2 * r, 3]),
        "f n 3",
        forms=("rows", "wide", "blocks"),
    ),
    t(
        "StridedSliceGrad",
        lambda x: raw.StridedSliceGrad(shape=[5], begin=[1], end=[4], strides=[1], dy=x),
        "f 3",
        forms=("parts",),
    ),
    t(
        "StridedSliceGrad",
        lambda x, y: raw.StridedSliceGrad(shape=tf.stack([rows(x), 3]), begin=[0, 0], end=[2, 3], strides=[1, 1], dy=y),
        "f n 3",
        "f 2 3",
        forms=("rows", "parts"),
    ),
    t(
        "StridedSliceGrad",
        lambda x, y: raw.StridedSliceGrad(
            shape=tf.stack([rows(x), 3]), begin=[1, 0], end=[2, 3], strides=[1, 1], shrink_axis_mask=1, dy=y
        ),
        "f n 3",
        "f 3",
        forms=("rows", "parts"),
    ),
    t("Slice", lambda x: raw.Slice(input=x, begin=[0, 1], size=[-1, 2]), "f n 3", gives="S0"),
    t("Slice", lambda x: raw.Slice(input=x, begin=[0, 1], size=[rows(x), 2]), "f n 3", gives=""),
    t("Slice", lambda x: raw.Slice(input=x, begin=[1, 0], size=[1, -1]), "f 2 n", gives="S1"),
    t("Slice", lambda x: raw.Slice(input=x, begin=[1, 0], size=[-1, -1]), "f n 3"),
    t("Slice", lambda x: raw.Slice(input=x, begin=[0, 0], size=[2, 3]), "f n 3"),
    t(
        "Slice",
        lambda x: raw.Slice(input=tf.concat([x, x * 2], 0), begin=[rows(x), 1], size=[rows(x), -1]),
        "f n 3",
        gives="",
    ),
    t("Slice", lambda x: raw.Slice(input=x, begin=[1], size=[2]), "f 3", forms=("parts",)),
]
