"""The built-in networks, and how they learn from a few labels: FixMatch (arXiv 2001.07685).

A row of a batch is one image with a label and `_UNLABELLED` without. Of these the network first says what they are,
slightly augmented. Where it is sure, it learns to say the same of them strongly augmented (section 2.2). A network that
knows little yet is sure of few images, and often wrong of those: so they weigh as much as the share of all images was
that it was sure of in the epoch before (the paper: always 1). Rows are shared out among ranks as in any other script,
and the numbers that augmentation draws belong to rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from matex_tf.features.label.network.augment import DRAWS, Augment
from matex_tf.features.label.network.layers import network

RATE = 3e-3  # of learning, at its highest
_UNLABELLED = 2  # images without a label for each that has one; 7 in the paper
_VIEWS = 2  # of an image, augmented, that are looked at beside it


class Cosine(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that falls along half a cosine to 2 % of what it begins with, once more in each round.

    Attributes:
        rate: the first one. steps: how many it takes. Both can be set while steps stay compiled.
    """

    def __init__(self) -> None:
        self.rate, self.steps = tf.Variable(RATE, trainable=False), tf.Variable(1.0, trainable=False)

    def __call__(self, step: Any) -> Any:
        share = tf.minimum(tf.cast(step, tf.float32) / self.steps, 1.0)
        return self.rate * (0.02 + 0.49 * (1 + tf.cos(math.pi * share)))


class Learner(keras.Model):
    """Learns from rows of numbers of images: column 0 is an image with a label, the others are of any.

    Args:
        images: (count, height, width, channels) of uint8, or (count, numbers) of float32.
        classes: how many there are.
        semi: whether images without a label are learned from (FixMatch).
        threshold: how sure the network must be of one for that, 0.95 in the paper.
    """

    def __init__(
        self,
        images: np.ndarray,
        classes: int,
        augment: str,
        semi: bool,
        threshold: float,
        seed: int,
        backbone: str = "small",
        weights: str = "",
    ):
        super().__init__()
        self.body, self.head = network(images.shape[1:], int(classes), backbone, weights)
        self.augment, self.semi, self.threshold = Augment(augment), semi, threshold
        self.draws = keras.random.SeedGenerator(seed)
        self.augmented = tf.Variable(False, trainable=False)  # what is predicted for
        self.weight = tf.Variable(0.0, trainable=False)  # of images without a label
        self.rate = Cosine()
        self._begin = True  # with a new optimizer, and steps that are compiled anew
        sample = images[:: max(1, len(images) // 1000)].astype(np.float32)
        axes = tuple(range(sample.ndim - 1))
        self.mean, self.scale = sample.mean(axes), 1 / (sample.std(axes) + 1e-6)
        self.images = tf.constant(images)
        self.loss_mean, self.accuracy = keras.metrics.Mean("loss"), keras.metrics.SparseCategoricalAccuracy("accuracy")
        self.used = keras.metrics.Mean("used")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_mean, self.accuracy, *([self.used] if self.semi else [])]

    def pixels(self, numbers: Any) -> Any:
        """Images by their numbers, float32 around 0."""
        return (tf.cast(tf.gather(self.images, numbers), tf.float32) - self.mean) * self.scale

    def change(self, semi: bool, threshold: float) -> None:
        """Go on with other options: steps are compiled anew.

        Args:
            semi, threshold: see `Learner`.
        """
        self.semi, self.threshold = semi, threshold
        self._begin = True

    def go_on_from(self, other: Learner) -> None:
        """Begin with what the body of another one has learned, for other classes."""
        self.body.set_weights(other.body.get_weights())

    def call(self, numbers: Any, training: bool = False) -> Any:
        """Probabilities (rows, classes) of images.

        Args:
            numbers: of the images, int32 (rows, 1 or more); the first column counts.
            training: whether layers such as BatchNormalization work as in training.
        """
        return tf.nn.softmax(self.head(self.body(self.pixels(numbers[:, 0]), training=training)))

    def predict_step(self, data: Any) -> Any:
        """Probabilities (rows, classes) of images, slightly augmented where `augmented` says so, and features."""
        numbers = data[0] if isinstance(data, tuple) else data
        images = self.pixels(numbers[:, 0])
        draws = keras.random.uniform((tf.shape(numbers)[0], DRAWS), seed=self.draws)
        images = tf.cond(self.augmented, lambda: self.augment(images, draws, strong=False), lambda: images)
        features = self.body(images, training=False)
        return tf.nn.softmax(self.head(features)), features

    def train_step(self, data: Any) -> dict[str, Any]:
        numbers, labels = data
        rows = tf.shape(numbers)[0]
        draws = keras.random.uniform((rows, 1 + 2 * _UNLABELLED, DRAWS), seed=self.draws)
        labelled = self.augment(self.pixels(numbers[:, 0]), draws[:, 0], strong=False)
        if self.semi:
            flat = tf.reshape(numbers[:, 1:], [-1])
            others = self.pixels(flat)
            weak = self.augment(others, tf.reshape(draws[:, 1 : 1 + _UNLABELLED], [-1, DRAWS]), strong=False)
            strong = self.augment(others, tf.reshape(draws[:, 1 + _UNLABELLED :], [-1, DRAWS]), strong=True)
            sure = tf.nn.softmax(self.head(self.body(weak, training=False)))
            most, most_like = tf.reduce_max(sure, axis=1), tf.argmax(sure, axis=1)
            use = tf.cast(most >= self.threshold, tf.float32)
            labelled = tf.concat([labelled, strong], axis=0)
        with tf.GradientTape() as tape:
            logits = self.head(self.body(labelled, training=True))
            own = logits[:rows]
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, own)
            if self.semi:
                wrong = tf.nn.sparse_softmax_cross_entropy_with_logits(most_like, logits[rows:])
                loss += self.weight * tf.reduce_mean(tf.reshape(use * wrong, [rows, _UNLABELLED]), axis=1)
                self.used.update_state(tf.reduce_mean(tf.reshape(use, [rows, _UNLABELLED]), axis=1))
            mean = tf.reduce_mean(loss)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(mean, variables), variables)
        self.loss_mean.update_state(loss)
        self.accuracy.update_state(labels, own)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> dict[str, Any]:
        numbers, labels = data
        probabilities = self(numbers)
        self.loss_mean.update_state(keras.losses.sparse_categorical_crossentropy(labels, probabilities))
        self.accuracy.update_state(labels, probabilities)
        return {metric.name: metric.result() for metric in (self.loss_mean, self.accuracy)}

    def learn(
        self,
        labels: np.ndarray,
        use: np.ndarray,
        held: np.ndarray,
        steps: int,
        batch: int,
        epochs: int,
        seed: int,
        callbacks: Sequence[Any] = (),
        rate: float = RATE,
        first_epoch: int = 0,
    ) -> None:
        """Train for so many steps, in epochs.

        Args:
            labels: of each image, -1 without.
            use, held: the numbers of images with labels to learn from, and to measure with.
            first_epoch: the number of the first one, for callbacks.
        """
        self.rate.rate.assign(rate)
        self.rate.steps.assign(steps)
        if self._begin:
            self.compile(optimizer=keras.optimizers.Adam(self.rate))
            self._begin = False
        else:
            self.optimizer.iterations.assign(0)  # the schedule begins anew
        each = max(1, steps // epochs)
        numbers, answers = batches(labels, use, each * epochs, batch, seed)
        self.fit(
            numbers,
            answers,
            batch_size=batch,
            steps_per_epoch=each,
            epochs=first_epoch + epochs,
            initial_epoch=first_epoch,
            validation_data=(held[:, None].astype(np.int32), labels[held].astype(np.int32)) if len(held) else None,
            callbacks=[*callbacks, *([_Weigh()] if self.semi else [])],
            shuffle=False,
            verbose=0,
        )

    def look(self, augmented: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """What it says of all images, or of augmented ones: probabilities (images, classes), and features
        (images, FEATURES)."""
        self.augmented.assign(augmented)
        numbers = np.arange(len(self.images), dtype=np.int32)[:, None]
        said, features = self.predict(numbers, batch_size=500, verbose=0)
        return said, features

    def answers(self) -> tuple[np.ndarray, np.ndarray]:
        """What it says of all images, and of augmented ones: probabilities (1 + _VIEWS, images, classes); and their
        features, (images, FEATURES)."""
        said, features = self.look()
        return np.stack([said, *(self.look(augmented=True)[0] for _ in range(_VIEWS))]), features


class _Weigh(keras.callbacks.Callback):
    """Lets images without a label weigh as much as the network was sure of them. Every rank has the same logs."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.weight.assign(logs["used"])


def batches(labels: np.ndarray, use: np.ndarray, steps: int, batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of an epoch of so many steps: numbers of images (rows, 1 + _UNLABELLED), and labels (rows,).

    Args:
        labels: of each image, -1 without.
        use: the numbers of the images with labels to learn from.

    Classes have the same share each, however many labels they have: a queue of boundary samples is lopsided.
    """
    random = np.random.default_rng(seed)
    rows = steps * batch
    classes = [use[labels[use] == label] for label in np.unique(labels[use])]
    turns = [members[_turns(len(members), -(-rows // len(classes)), random)] for members in classes]
    own = np.stack(turns, axis=1).reshape(-1)[:rows]
    others = _turns(len(labels), rows * _UNLABELLED, random).reshape(rows, _UNLABELLED)
    numbers = np.concatenate([own[:, None], others], axis=1).astype(np.int32)
    return numbers, labels[own].astype(np.int32)


def _turns(count: int, wanted: int, random: np.random.Generator) -> np.ndarray:
    """So many numbers below `count`, each in its turn, in a new order each time."""
    return np.concatenate([random.permutation(count) for _ in range(-(-wanted // count))])[:wanted]
