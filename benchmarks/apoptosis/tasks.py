"""What is trained: data, networks and how they are compiled; the same for this package and for its peers.

A function gets `keras`, which is Keras 3, or tf_keras for a peer that knows no other.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        name: on the command line.
        make_data: of a number of rows: inputs and labels, of which the last are held out.
        model: of keras and a width, or a multiple of the usual widths.
        loss, metric, score: names of Keras; the score is that of the held-out rows, such as "val_auc".
        rows, epochs, batch, width: usual ones.
        held_out: the part of the rows that is for validation; as many again are for the test.
        decays: whether the learning rate falls to 0 along a cosine.
    """

    name: str
    make_data: Callable[[int], tuple[np.ndarray, np.ndarray]]
    model: Callable[[Any, float], Any]
    loss: str
    metric: str
    rows: int
    epochs: int
    batch: int
    width: float
    learning_rate: float
    held_out: float = 0.1
    decays: bool = False

    @property
    def score(self) -> str:
        return f"val_{self.metric}"

    def compile(self, keras: Any, model: Any, steps: int) -> None:
        """Compile a model of this task, for a training of so many steps."""
        metric = keras.metrics.AUC(name="auc") if self.metric == "auc" else "accuracy"
        rate: Any = self.learning_rate
        if self.decays:
            rate = keras.optimizers.schedules.CosineDecay(rate, steps)
        model.compile(keras.optimizers.Adam(rate), self.loss, metrics=[metric])

    def train(self, keras: Any, model: Any, data: Any, batch: int, epochs: int, callbacks: Sequence[Any]) -> float:
        """Compile and train a model on what `write` has written; the score of the rows for the test."""
        self.compile(keras, model, -(-len(data["train_y"]) // batch) * epochs)
        model.fit(
            data["train_x"],
            data["train_y"],
            batch_size=batch,
            epochs=epochs,
            validation_data=(data["valid_x"], data["valid_y"]),
            callbacks=callbacks,
            verbose=0,
        )
        # On several ranks Keras gives the whole answer everywhere; a batch is larger, as nothing is trained.
        return float(model.evaluate(data["test_x"], data["test_y"], batch_size=2000, verbose=0)[1])

    def write(self, path: Path, rows: int) -> None:
        """Write data for all trainings of a run."""
        inputs, labels = self.make_data(rows)
        held = int(len(labels) * self.held_out)
        parts = {"train": slice(0, -2 * held), "valid": slice(-2 * held, -held), "test": slice(-held, None)}
        arrays = {f"{name}_{what}": array[part] for name, part in parts.items() for what, array in zip(
            "xy", (inputs, labels), strict=True)}  # fmt: skip
        np.savez(path, allow_pickle=False, **arrays)


def higgs_data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulated collisions, see examples/decays.py."""
    sys.path.insert(0, str(ROOT / "examples"))
    from decays import collisions

    inputs, labels = collisions(rows)
    return inputs, labels.astype(np.float32)


def higgs_model(keras: Any, width: float) -> Any:
    """Five layers of neurons, as many in each, as in arXiv 1610.00790."""
    dense = [keras.layers.Dense(int(width), activation="relu") for _ in range(5)]
    return keras.Sequential([keras.layers.Input((28,)), *dense, keras.layers.Dense(1, activation="sigmoid")])


def digits_data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits at 28 x 28, each several times, moved by up to two pixels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(labels))
    images, labels = images[order], labels[order]
    large = np.kron(images.reshape(-1, 8, 8) / 16, np.ones((1, 3, 3)))
    large = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    # Rows that are held out come last, so that no digit is in two parts: each is repeated in a row.
    times = -(-rows // len(labels))
    large, labels = np.repeat(large, times, axis=0)[:rows], np.repeat(labels, times)[:rows]
    random = np.random.default_rng(8)
    for shift in range(1, 3):
        for axis in (1, 2):
            moved = random.random(rows) < 0.5
            large[moved] = np.roll(large[moved], random.choice([-1, 1]) * shift, axis)
    return large[..., None], labels.astype(np.int32)


def lenet(keras: Any, width: float) -> Any:
    """LeNet, with the widths that papers on pruning take: 20, 50 and 500."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(int(20 * width), 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(int(50 * width), 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(int(500 * width), activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def images_data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 32 x 32 in colour with ten classes: five shapes, each striped in one of two directions."""
    random = np.random.default_rng(7)
    label = random.integers(0, 10, rows)
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    place = random.uniform(-0.35, 0.35, (2, rows, 1, 1))
    size = random.uniform(0.35, 0.7, (rows, 1, 1))
    turn = random.normal(0, 0.15, (rows, 1, 1))
    u, v = (x - place[0]) / size, (y - place[1]) / size
    u, v = u * np.cos(turn) - v * np.sin(turn), u * np.sin(turn) + v * np.cos(turn)
    radius = np.hypot(u, v)
    shapes = [
        radius < 1,
        np.maximum(abs(u), abs(v)) < 0.85,
        (v > -0.8) & (abs(u) < 0.55 * (1 - v)) & (v < 0.9),
        (radius < 1) & (radius > 0.55),
        (abs(u) < 0.33) & (abs(v) < 1) | (abs(v) < 0.33) & (abs(u) < 1),
    ]
    shape = np.choose((label // 2)[:, None, None], shapes)
    along = np.where((label % 2)[:, None, None] == 1, u, v)
    stripes = 0.75 + 0.25 * np.sign(np.sin(along * random.uniform(7, 11, (rows, 1, 1))))
    colour, ground = random.uniform(0.2, 1, (rows, 1, 1, 3)), random.uniform(0, 0.8, (rows, 1, 1, 3))
    slope = (random.normal(0, 0.2, (rows, 1, 1)) * x + random.normal(0, 0.2, (rows, 1, 1)) * y)[..., None]
    image = np.where(shape[..., None], colour * stripes[..., None], ground + slope)
    image = image + random.normal(0, 0.1, image.shape)
    return np.clip(image, 0, 1).astype(np.float32), label.astype(np.int32)


def resnet(keras: Any, width: float, blocks: int = 1) -> Any:
    """A residual network of three stages of blocks, with 16, 32 and 64 filters (He et al. 2016, section 4.2)."""
    layers = keras.layers

    def convolve(data: Any, filters: int, size: int = 3, strides: int = 1) -> Any:
        data = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(data)
        return layers.BatchNormalization(momentum=0.9)(data)

    inputs = keras.Input((32, 32, 3))
    data = layers.ReLU()(convolve(inputs, int(16 * width)))
    for stage, block in itertools.product(range(3), range(blocks)):
        count, strides = int(2**stage * 16 * width), 2 if stage and not block else 1
        branch = layers.ReLU()(convolve(data, count, strides=strides))
        branch = convolve(branch, count)
        if strides > 1:
            data = convolve(data, count, 1, strides)
        data = layers.ReLU()(layers.Add()([data, branch]))
    outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(data))
    return keras.Model(inputs, outputs)


def resnet20(keras: Any, width: float) -> Any:
    """The same with three blocks in each stage: the ResNet-20 of He et al. for CIFAR-10."""
    return resnet(keras, width, 3)


_CLASSES = "sparse_categorical_crossentropy"
TASKS = {
    task.name: task
    for task in (
        Task("higgs", higgs_data, higgs_model, "binary_crossentropy", "auc", 500_000, 8, 2000, 600, 1e-3),
        Task("lenet", digits_data, lenet, _CLASSES, "accuracy", 5391, 12, 128, 1, 1e-3),
        Task("resnet", images_data, resnet, _CLASSES, "accuracy", 6000, 12, 64, 1, 2e-3, decays=True),
        Task("resnet20", images_data, resnet20, _CLASSES, "accuracy", 6000, 12, 64, 1, 2e-3, decays=True),
    )
}
