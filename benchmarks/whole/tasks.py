"""The four jobs: sizes, data and, for Keras 2 and 3, networks. All rows are made of a seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Task(NamedTuple):
    """A job.

    Attributes:
        steps: of an epoch.
        epochs: how many.
        batch: rows of a step, of all ranks together.
        validation: rows of it; 0 for none in `fit`, where 1,000 are evaluated at the end.
    """

    steps: int
    epochs: int
    batch: int
    validation: int = 0


TASKS = {
    "lenet": Task(200, 10, 64),
    "resnet": Task(20, 2, 64, 256),
    "text": Task(100, 3, 32, 320),
    "tabular": Task(0, 1, 256),
}
WORDS, LENGTH, COLUMNS, CLASSES = 20_000, 64, 28, 10


def rows(name: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a job and their labels, int32; of images float32 (count, height, width, channels), of texts int32."""
    random = np.random.RandomState(seed)
    y = random.randint(0, CLASSES, count).astype("int32")
    if name == "text":
        x = random.randint(CLASSES, WORDS, (count, LENGTH)).astype("int32")
        x[:, ::7] = y[:, None]  # a word for each class
        return x, y
    shape = (28, 28, 1) if name == "lenet" else (32, 32, 3)
    x = random.rand(count, *shape).astype("float32")
    x[np.arange(count), 2 * y] += 1  # a bright line
    return x, y


def write_table(path: str, megabytes: int) -> None:
    """A CSV file of so many columns of numbers, the last of which is a label, 0 or 1."""
    random = np.random.RandomState(0)
    values = random.normal(size=(2000, COLUMNS))
    labels = (values[:, :4].sum(1) > 0).astype(int)
    lines = "".join(
        ",".join(f"{value:.5f}" for value in row) + f",{label}\n" for row, label in zip(values, labels, strict=True)
    )
    with open(path, "w") as file:
        file.write(",".join(f"x{number}" for number in range(COLUMNS)) + ",label\n")
        for _ in range(max(1, megabytes * 10**6 // len(lines))):
            file.write(lines)


def network(name: str, keras: Any) -> Any:
    """A network of logits, not compiled."""
    layers = keras.layers
    if name == "lenet":
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                *(layers.Conv2D(20, 5, activation="relu", padding="same"), layers.MaxPooling2D(2)),
                *(layers.Conv2D(50, 5, activation="relu", padding="same"), layers.MaxPooling2D(2)),
                *(layers.Flatten(), layers.Dense(500, activation="relu"), layers.Dense(CLASSES)),
            ]
        )
    if name == "resnet":
        return _resnet20(keras)
    if name == "text":
        words = keras.Input((LENGTH,), dtype="int32")
        x = layers.Embedding(WORDS, 64)(words)
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
            x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(256, activation="relu")(x)))
        x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
        return keras.Model(words, layers.Dense(CLASSES)(x))
    hidden = [layers.Dense(256, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((COLUMNS,)), *hidden, layers.Dense(2)])


def _resnet20(keras: Any) -> Any:
    """ResNet-20 for images of 32 x 32 (arXiv 1512.03385, section 4.2), behind random flips and shifts."""
    layers = keras.layers

    def normalized(x: Any, width: int, stride: int = 1) -> Any:
        x = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    images = keras.Input((32, 32, 3))
    x = layers.RandomFlip("horizontal")(images)
    x = layers.RandomTranslation(0.1, 0.1)(x)
    x = layers.ReLU()(normalized(x, 16))
    for width in (16, 32, 64):
        for block in range(3):
            stride = 2 if width > 16 and not block else 1
            inner = layers.ReLU()(normalized(x, width, stride))
            inner = normalized(inner, width)
            same = x if stride == 1 else layers.Conv2D(width, 1, 2, use_bias=False)(x)
            x = layers.ReLU()(same + inner)
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
