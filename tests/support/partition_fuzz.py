"""Random steps of Keras in float64 for the partitioner: `python -m tests.support.partition_fuzz --steps 20 --seed 0`.

Layers, a loss with its reduction, metrics, regularizers, constraints and an optimizer are drawn from a seed. Ranks are
threads; one rank is the measure. It prints a line for each step that differs, and its seed. A process of its own: the
type of floats is a setting of Keras.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np

import matex_tf  # noqa: F401
from tests.support import fuzzing, partition_cases

TOLERANCE = 1e-6
L = keras.layers


def layers(draw: random.Random) -> list[Any]:
    """Layers from 12 numbers a row to 4."""
    pick = draw.choice
    extra = {
        "kernel_regularizer": pick([None, None, "l2", keras.regularizers.L1(0.01)]),
        "kernel_constraint": pick([None, None, "non_neg", keras.constraints.MaxNorm(0.5)]),
        "activation": pick(["relu", "tanh", "gelu", "softplus", "selu", None]),
    }
    vectors = [
        lambda: L.Dense(draw.randint(3, 8), **extra), lambda: L.BatchNormalization(momentum=0.8),
        lambda: L.LayerNormalization(), lambda: L.Activation("elu"), lambda: L.Rescaling(2.0),
        lambda: L.Dropout(0.3, seed=draw.randint(0, 9)), lambda: L.ActivityRegularization(l2=0.01),
        lambda: L.UnitNormalization(), lambda: L.GaussianNoise(0.1, seed=draw.randint(0, 9)), lambda: L.LeakyReLU(),
    ]  # fmt: skip
    sequences = [
        lambda: L.Conv1D(3, 2, padding=pick(["same", "valid", "causal"])), lambda: L.LSTM(4, return_sequences=True),
        lambda: L.GRU(4, return_sequences=True, reset_after=pick([True, False])), lambda: L.SimpleRNN(4,
        return_sequences=True),
        lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)), lambda: L.BatchNormalization(),
        lambda: L.MaxPooling1D(2, padding="same"), lambda: L.AveragePooling1D(2, padding="same"),
        lambda: L.LayerNormalization(),
        lambda: L.TimeDistributed(L.Dense(3)), lambda: L.SpatialDropout1D(0.3, seed=1), lambda: L.SeparableConv1D(4, 2),
        lambda: Attention(), lambda: L.UpSampling1D(2), lambda: L.ZeroPadding1D(1), lambda: L.Permute((2, 1)),
    ]  # fmt: skip
    images = [
        lambda: L.Conv2D(4, 2, padding="same", strides=pick([1, 2])), lambda: L.DepthwiseConv2D(2, padding="same"),
        lambda: L.BatchNormalization(), lambda: L.GroupNormalization(groups=1), lambda: L.MaxPooling2D(2,
        padding="same"),
        lambda: L.AveragePooling2D(2, padding="same"), lambda: L.Conv2DTranspose(2, 2), lambda: L.UpSampling2D(2),
    ]  # fmt: skip
    kind = pick(["vectors", "vectors", "sequences", "images", "tokens"])
    made: list[Any] = []
    if kind == "sequences":
        made += [L.Reshape((4, 3)), *([L.Masking(0.0)] if draw.random() < 0.2 else [])]
        made += [pick(sequences)() for _ in range(draw.randint(1, 3))] + [
            pick([L.Flatten, L.GlobalAveragePooling1D, L.GlobalMaxPooling1D])()
        ]
    elif kind == "images":
        made += [L.Reshape((3, 2, 2)), *(pick(images)() for _ in range(draw.randint(1, 3)))]
        made += [pick([L.Flatten, L.GlobalAveragePooling2D, L.GlobalMaxPooling2D])()]
    elif kind == "tokens":
        made += [
            Tokens(),
            L.Embedding(10, 4, mask_zero=draw.random() < 0.5),
            pick([lambda: L.LSTM(4), L.GlobalAveragePooling1D])(),
        ]
    made += [pick(vectors)() for _ in range(draw.randint(0, 4))]
    return [*made, L.Dense(4)]


@keras.saving.register_keras_serializable("fuzz")
class Tokens(L.Layer):
    def call(self, x: Any) -> Any:
        return keras.ops.cast(x * 9, "int32")


@keras.saving.register_keras_serializable("fuzz")
class Attention(L.Layer):
    def build(self, shape: Any) -> None:
        self.inner = L.MultiHeadAttention(2, 2)
        self.inner.build(shape, shape)

    def call(self, x: Any) -> Any:
        return self.inner(x, x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def optimizer(draw: random.Random) -> Any:
    """Any but Lion: it takes the sign of a gradient, and that of a bias before BatchNormalization is 0 and rounding."""
    kind = draw.choice(["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Nadam", "Adamax", "Adadelta", "Ftrl"])
    options: dict[str, Any] = {"learning_rate": 0.01}
    options |= draw.choice([{}, {"clipnorm": 0.1}, {"clipvalue": 0.01}, {"global_clipnorm": 0.2}])
    options |= draw.choice(
        [
            {},
            {"weight_decay": 0.01},
            {"use_ema": True, "ema_overwrite_frequency": 2},
            {"gradient_accumulation_steps": 2},
        ]
    )
    if kind == "SGD" and draw.random() < 0.5:
        options |= {"momentum": 0.9, "nesterov": draw.random() < 0.5}
    return getattr(keras.optimizers, kind)(**options)


def loss(draw: random.Random) -> Any:
    reduction = draw.choice(["sum_over_batch_size", "sum", "mean_with_sample_weight"])
    kind = draw.choice(
        [
            "crossentropy",
            "crossentropy",
            "MeanSquaredError",
            "Huber",
            "LogCosh",
            "MeanAbsoluteError",
            "CosineSimilarity",
        ]
    )
    if kind == "crossentropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction), [
            "accuracy",
            "sparse_categorical_crossentropy",
        ]
    return getattr(keras.losses, kind)(reduction=reduction), [
        "mae",
        keras.metrics.MeanSquaredError(),
        keras.metrics.RootMeanSquaredError(),
    ]


def build(seed: int, weighted: bool) -> Any:
    """The variables and the step of a seed."""
    draw = random.Random(seed)
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((12,)), *layers(draw)])
    function, metrics = loss(draw)
    more = {"weighted_metrics": metrics} if weighted else {"metrics": metrics}
    model.compile(optimizer(draw), function, jit_compile=False, **more)
    model.optimizer.build(model.trainable_variables)
    x, y = np.zeros((2, 12)), np.zeros((2, 1), "int32")
    model.compute_loss(x, y, model(x))  # metrics make their variables when they first see values
    model._compile_metrics.build(y, model(x))
    variables = [*model.variables, *model.optimizer.variables]

    def step(*batch: Any) -> Any:
        return model.train_step(batch)

    return [variable.value for variable in variables if variable.dtype != "string"], step


def batch(generator: Any, size: int, weighted: bool) -> list[Any]:
    values = partition_cases.rows(generator, size)
    return [*values, generator.rand(size)] if weighted else values


def failure(seed: int) -> str:
    """What is wrong with the step of a seed; "" if nothing is."""
    keras.backend.clear_session()
    draw = random.Random(-seed - 1)
    weighted = draw.random() < 0.3
    sizes = [draw.randint(1, 12) for _ in range(3)]
    try:
        result = partition_cases.compare(lambda: build(seed, weighted), lambda g, n: batch(g, n, weighted), sizes)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-600:]}"
    far = max(result.logs, result.variables)
    if not far < TOLERANCE or result.apart:
        return f"differs by {far:.1e}, ranks by {result.apart:.1e}"
    if os.environ.get("FUZZ_WHOLE") and result.whole:
        print(f"seed {seed}: whole: {result.whole}", flush=True)
    return ""


if __name__ == "__main__":
    keras.config.set_floatx("float64")
    sys.exit(fuzzing.main("Random training steps on ranks that are threads, beside one rank.", "steps", failure))
