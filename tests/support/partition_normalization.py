"""The table of trials of batch normalization that TensorFlow has fused: in training and after it, and their gradients."""

# ruff: noqa: E501  a line for each trial

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.partition_table import FLOAT, raw, t

OLD = ("FusedBatchNorm", "FusedBatchNormV2")
HALVES = ("float32", "float16")
#: Images by their layout; the channels are 2.
IMAGES = {"NHWC": "f n 3 4 2", "NCHW": "f n 2 3 4", "NDHWC": "f n 2 3 1 2"}


def wide(vector: Any) -> Any:
    return tf.cast(vector, tf.float32)  # whatever x is


def train(type_: str = "FusedBatchNormV3", factor: float = 1.0, **more: Any) -> Callable[..., Any]:
    """Training: x far from 0, as the squares of such values lose digits. What the gradient alone reads is left out."""

    def call(x: Any, v: Any, *before: Any) -> Any:
        v, before = wide(v), [wide(one) for one in before] if factor != 1 else [tf.zeros([0]), tf.zeros([0])]
        given = {"mean": before[0], "variance": before[1], "exponential_avg_factor": factor}
        return getattr(raw, type_)(x=x + 5, scale=v, offset=v + 1, is_training=True, epsilon=0.01, **given, **more)[:3]

    return call


def test(type_: str = "FusedBatchNormV3", **more: Any) -> Callable[..., Any]:
    """With the moving statistics."""

    def call(x: Any, v: Any) -> Any:
        v = wide(v)
        return getattr(raw, type_)(x=x, scale=v, offset=v + 1, mean=v, variance=v * v, is_training=False, **more)[0]

    return call


def gradient(training: bool, type_: str = "FusedBatchNormV3", **more: Any) -> Callable[..., Any]:
    """The gradient, of what the op itself gives for it."""

    def call(dy: Any, x: Any, v: Any) -> Any:
        x, v = x + 5, wide(v)
        if training:
            none = tf.zeros([0])
            found = getattr(raw, type_)(x=x, scale=v, offset=v, mean=none, variance=none, is_training=True, **more)
            kept = list(found[3:])
        else:
            kept = [v, v * v, *([tf.zeros([0])] if type_.endswith("3") else [])]
        given = {f"reserve_space_{place + 1}": value for place, value in enumerate(kept)}
        of = getattr(raw, type_.replace("Norm", "NormGrad"))
        return of(y_backprop=dy, x=x, scale=v, is_training=training, **given, **more)[:3]

    return call


NORMALIZATION = [
    *(t("FusedBatchNormV3", train(data_format=layout), shape, "p 2", gives="S0", dtypes=HALVES) for layout, shape in IMAGES.items()),
    *(t("FusedBatchNormV3", test(data_format=layout), shape, "p 2", gives="S0", dtypes=HALVES) for layout, shape in IMAGES.items()),
    t("FusedBatchNormV3", train(factor=0.3), IMAGES["NHWC"], "p 2", "f 2", "p 2", gives="S0", dtypes=FLOAT),
    *(t(name, of(name), IMAGES["NHWC"], "p 2", gives="S0", dtypes=FLOAT) for name in OLD for of in (train, test)),
    t("FusedBatchNormV3", lambda x, v: train()(tf.transpose(x, [1, 0, 2, 3]), v), IMAGES["NHWC"], "p 2", dtypes=FLOAT),
    *(t("FusedBatchNormGradV3", gradient(training, data_format=layout), shape, shape, "p 2", gives="S0", dtypes=HALVES if layout == "NHWC" else FLOAT) for layout, shape in IMAGES.items() for training in (True, False)),
    *(t(f"{name}Grad" if name[-1] == "m" else "FusedBatchNormGradV2", gradient(training, name), IMAGES["NHWC"], IMAGES["NHWC"], "p 2", gives="S0", dtypes=FLOAT) for name in OLD for training in (True, False)),
]  # fmt: skip


def two_layers() -> Any:
    """A step with two layers that normalize, and their moving statistics; float32 as the op has it."""
    start = np.random.RandomState(0)
    first, second = (tf.Variable(start.randn(*shape).astype("float32") * 0.4) for shape in ((2, 2, 1, 3), (3, 4)))
    scale, offset = tf.Variable(tf.ones(3)), tf.Variable(tf.zeros(3))
    moving = [tf.Variable(tf.zeros(3)), tf.Variable(tf.ones(3)), tf.Variable(tf.zeros(4)), tf.Variable(tf.ones(4))]

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z = tf.nn.conv2d(tf.reshape(tf.cast(x, tf.float32), [-1, 3, 4, 1]), first, 1, "VALID")
            z, *one = tf.compat.v1.nn.fused_batch_norm(z, scale, offset)
            z = (tf.reduce_mean(tf.nn.elu(z), [1, 2]) @ second)[:, None, None]
            z, *other = tf.compat.v1.nn.fused_batch_norm(z, tf.ones(4), tf.zeros(4))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y[:, 0], z[:, 0, 0]))
        trained = [first, second, scale, offset]
        for variable, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            variable.assign_sub(0.1 * gradient)
        for variable, value in zip(moving, [*one, *other], strict=True):
            variable.assign(0.8 * variable + 0.2 * value)
        return {"loss": loss}

    return [first, second, scale, offset, *moving], run
