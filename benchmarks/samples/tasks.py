"""What is trained on fewer rows: data, networks, and trainings that go on until they have converged.

The learning rate falls to 0 along a cosine, and all ways have the same epochs: so many that plain training on all rows
has converged. A training that ends before has fewer steps to learn in with every row that is left out: that would
measure how many steps there were, and not which rows. For the same reason the optimizer is SGD with momentum where it
learns as well as Adam, whose steps do not become longer where gradients are scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.apoptosis import tasks


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        make_data: of a number of rows: inputs and labels.
        model: of a width.
        loss: of Keras.
        rows, tested: how many there are to train on, and after them for the test.
        learning_rate: of the first step.
        momentum: of SGD, whose steps are as long as gradients are, as InfoBatch has it; None: Adam.
        rate: of `--prune-samples`.
    """

    title: str
    make_data: Callable[[int], tuple[np.ndarray, np.ndarray]]
    model: Callable[[Any, float], Any]
    loss: str
    rows: int
    tested: int
    epochs: int
    batch: int
    width: float
    learning_rate: float
    momentum: float | None = None
    rate: float = 0.75

    def optimizer(self, keras: Any, rows: int, epochs: int) -> Any:
        """One whose learning rate falls along a cosine to the end of a training on so many rows."""
        falls = keras.optimizers.schedules.CosineDecay(self.learning_rate, -(-rows // self.batch) * epochs)
        if self.momentum is None:
            return keras.optimizers.Adam(falls)
        return keras.optimizers.SGD(falls, momentum=self.momentum, nesterov=True)


def digits(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits, 8 x 8."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(labels))[:rows]
    return (images[order].reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels[order].astype(np.int32)


def convnet(keras: Any, width: float) -> Any:
    """Two convolutions and a layer of neurons."""
    layers = keras.layers
    convolutions = [layers.Conv2D(int(width * times), 3, activation="relu", padding="same") for times in (1, 2)]
    head = [layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dropout(0.3)]
    return keras.Sequential([layers.Input((8, 8, 1)), *convolutions, *head, layers.Dense(10, activation="softmax")])


_SUBJECTS = ["film", "plot", "music", "actor", "ending", "camera", "cast", "scene", "joke", "story"]
_GOOD = ["good", "great", "moving", "funny", "brilliant", "fresh", "clever", "warm"]
_BAD = ["bad", "dull", "boring", "flat", "awful", "stale", "clumsy", "cold"]
_FILLERS = ["rather", "very", "really", "quite", "indeed", "somehow"]
_WORDS = ["", "the", "was", "not", "never", "but", "and", *_SUBJECTS, *_GOOD, *_BAD, *_FILLERS]


def reviews(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Reviews of up to four clauses: what follows the last "but" is the verdict, "not" and "never" turn it round."""
    random, number = np.random.default_rng(7), {word: place for place, word in enumerate(_WORDS)}
    text, labels = np.zeros((rows, 32), np.int32), np.zeros(rows, np.int32)
    for row in range(rows):
        words: list[str] = []
        verdict = 0
        for clause in range(random.integers(1, 5)):
            if clause:
                words.append(("and", "but")[random.integers(2)])
                verdict = 0 if words[-1] == "but" else verdict
            good, turned = bool(random.integers(2)), random.random() < 0.4
            words += ["the", random.choice(_SUBJECTS), "was"]
            words += [("not", "never")[random.integers(2)]] * turned
            words += [random.choice(_FILLERS)] * int(random.random() < 0.5)
            words.append(random.choice(_GOOD if good else _BAD))
            verdict += 1 if good != turned else -1
        if not verdict:
            verdict = 1 if good != turned else -1
        text[row, : len(words)] = [number[word] for word in words]
        labels[row] = verdict > 0
    wrong = random.random(rows) < 0.02
    return text, np.where(wrong, 1 - labels, labels)


def lstm(keras: Any, width: float) -> Any:
    """Embedding, LSTM over what is no padding, and a neuron for each class."""
    layers = keras.layers
    embedding = layers.Embedding(len(_WORDS), 16, mask_zero=True)
    return keras.Sequential(
        [layers.Input((32,), dtype="int32"), embedding, layers.LSTM(int(width)), layers.Dense(2, activation="softmax")]
    )


def resnet(keras: Any, width: float) -> Any:
    """The small residual network of the other benchmarks, behind a convolution that halves the sides of images."""
    layers = keras.layers
    stem = [layers.Conv2D(int(16 * width), 5, strides=2, padding="same", use_bias=False), layers.BatchNormalization()]
    small = keras.models.clone_model(tasks.resnet(keras, width), input_tensors=keras.Input((16, 16, int(16 * width))))
    return keras.Sequential([layers.Input((32, 32, 3)), *stem, layers.ReLU(), small])


_CLASSES = "sparse_categorical_crossentropy"
_COLLISIONS = Task(
    "collisions, MLP",
    tasks.higgs_data,
    tasks.higgs_model,
    "binary_crossentropy",
    80000,
    30000,
    16,
    1000,
    192,
    0.1,
    0.9,
    rate=0.76,
)
TASKS = {
    "digits": Task("digits, convnet", digits, convnet, _CLASSES, 1438, 359, 60, 64, 32, 0.02, 0.9, rate=0.58),
    "higgs": _COLLISIONS,
    "higgs-adam": replace(
        _COLLISIONS, title="collisions, MLP, Adam", width=128, learning_rate=1e-3, momentum=None, rate=0.8
    ),
    "resnet": Task("images, ResNet", tasks.images_data, resnet, _CLASSES, 3000, 1000, 40, 32, 0.5, 0.02, 0.9, 0.75),
    "lstm": Task("reviews, LSTM", reviews, lstm, _CLASSES, 3200, 2000, 40, 64, 32, 4e-3, rate=0.6),
}
