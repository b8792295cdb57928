"""The four models, alike in Keras 2, Keras 3 and PyTorch: 7 k, 1.3 M, 25 M and 23.6 M parameters; and in Keras two of
1.1 M and 4.2 M that take hardly any time to compute, a transformer of 0.4 M, and the convnet of examples/digits.py."""

from __future__ import annotations

from typing import Any

import numpy as np

BATCH = {"small": 32, "lenet": 16, "mlp": 32, "resnet": 8}  # rows of a rank; few, so that what an exchange adds is seen
STEPS = {"small": 200, "lenet": 15, "mlp": 5, "resnet": 2}  # of a turn
SHAPES = {
    **{"small": (64,), "lenet": (28, 28, 1), "mlp": (2048,), "resnet": (64, 64, 3), "wide": (512,), "dense": (1024,)},
    "transformer": (32, 128),
    "digits": (8, 8, 1),
}
CLASSES = 10


def rows(name: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch: float32 (batch, …) and int32 (batch,); the same on every rank, so that weights stay alike."""
    random = np.random.RandomState(0)
    x = random.normal(size=(batch, *SHAPES[name])).astype("float32")
    return x, random.randint(0, CLASSES, batch).astype("int32")


def in_keras(name: str, seed: int = 7) -> Any:
    """The model for the Keras of this environment, compiled; its weights, and what Keras draws later, by the seed."""
    from tensorflow import keras

    layers = keras.layers
    keras.utils.set_random_seed(seed)
    if name == "small":
        body = [layers.Dense(64, activation="relu"), layers.Dense(32, activation="relu")]
    elif name == "lenet":
        body = [
            layers.Conv2D(20, 5, activation="relu", padding="same"),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5, activation="relu", padding="same"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
        ]
    elif name == "digits":
        body = [
            layers.Conv2D(32, 3, activation="tanh", padding="same"),
            layers.Conv2D(64, 3, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="tanh"),
        ]
    elif name == "wide":
        body = [layers.Dense(512, activation="relu") for _ in range(4)]
    elif name == "dense":
        body = [layers.Dense(1024, activation="relu") for _ in range(4)]
    elif name == "transformer":
        return _transformer(keras, SHAPES[name])
    elif name == "mlp":
        body = [layers.Dense(2048, activation="relu") for _ in range(6)]
    else:
        body = [keras.applications.ResNet50(include_top=False, weights=None, input_shape=SHAPES[name], pooling="avg")]
    return keras.Sequential([keras.Input(SHAPES[name]), *body, layers.Dense(CLASSES)])


def _transformer(keras: Any, shape: tuple[int, ...]) -> Any:
    """Two blocks of attention and dense layers."""
    layers, inputs = keras.layers, keras.Input(shape)
    rows = inputs
    for _ in range(2):
        normal = layers.LayerNormalization()(rows)
        rows = rows + layers.MultiHeadAttention(4, 32)(normal, normal)
        hidden = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(rows))
        rows = rows + layers.Dense(shape[-1])(hidden)
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(rows)))


def compile_keras(model: Any, optimizer: Any = None, xla: bool = False) -> None:
    """SGD and cross-entropy."""
    from tensorflow import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.001), loss, jit_compile=xla)


def parameters(model: Any) -> int:
    """The number of weights that are trained, of a Keras model."""
    return int(sum(np.prod(variable.shape) for variable in model.trainable_variables))


def in_torch(name: str) -> Any:
    """The model in PyTorch, with channels first."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    if name == "small":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    if name == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 20, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(2450, 500), nn.ReLU(), nn.Linear(500, CLASSES),
        )  # fmt: skip
    if name == "mlp":
        hidden = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(2048, CLASSES))
    return _resnet50(nn)


def _resnet50(nn: Any) -> Any:
    """ResNet-50 (arXiv 1512.03385, table 1), as Keras has it: with biases in front of batch normalization."""

    def normalized(inside: int, outside: int, size: int, stride: int = 1) -> list[Any]:
        return [nn.Conv2d(inside, outside, size, stride, size // 2), nn.BatchNorm2d(outside, eps=1.001e-5)]

    class Block(nn.Module):
        def __init__(self, inside: int, width: int, stride: int):
            super().__init__()
            self.body = nn.Sequential(
                *normalized(inside, width, 1, stride), nn.ReLU(),
                *normalized(width, width, 3), nn.ReLU(),
                *normalized(width, 4 * width, 1),
            )  # fmt: skip
            same = inside == 4 * width and stride == 1
            self.shortcut = nn.Identity() if same else nn.Sequential(*normalized(inside, 4 * width, 1, stride))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    layers, inside = [*normalized(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Block(inside, width, 1 if block else stride))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))
