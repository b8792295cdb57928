"""The built-in networks, and how they learn from a few labels: FixMatch (arXiv 2001.07685).

A row of a batch is one image with a label and `_UNLABELLED` without. Of these the network first says what they are,
slightly augmented. Where it is sure, it learns to say the same of them strongly augmented (section 2.2). Rows are
shared out among ranks as in any other script, and the numbers that augmentation draws belong to rows.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

#: What may be done to an image without changing what it shows.
AUGMENTS = ("none", "shift", "flip", "rotate")
RATE = 3e-3  # of learning, at its highest
FEATURES = 64  # numbers that stand for an image, from which its group follows
_UNLABELLED = 2  # images without a label for each that has one; 7 in the paper
_VIEWS = 2  # of an image, augmented, that are looked at beside it
_DRAWS = 12  # numbers between 0 and 1 that augment one image


def network(shape: tuple[int, ...], classes: int, backbone: str, weights: str) -> tuple[Any, Any]:
    """A network for images of a shape, or for rows of numbers.

    Args:
        shape: of an image, (height, width, channels); or of a row, (numbers,).
        backbone: `small`, or a class of keras.applications.
        weights: a file of weights of the backbone without its top; "" for none.

    Returns:
        What makes (rows, FEATURES) of images, and what makes (rows, classes) of that: logits.
    """
    inputs = keras.Input(shape)
    if len(shape) == 1:
        x = inputs
        for width in (128, 128):
            x = keras.layers.Dense(width, "gelu")(x)
            x = keras.layers.Dropout(0.1)(x)
    elif backbone == "small":
        x = _small(inputs, min(shape[:2]))
    else:
        x = inputs if shape[2] == 3 else keras.layers.Concatenate()([inputs] * 3)
        made = getattr(keras.applications, backbone)(
            include_top=False, weights=None, input_shape=(*shape[:2], 3), pooling="avg"
        )
        if weights:
            made.load_weights(weights)
        x = made(x)
    body = keras.Model(inputs, keras.layers.Dense(FEATURES, "gelu")(x), name="body")
    return body, keras.layers.Dense(classes, name="head")


def _small(x: Any, size: int) -> Any:
    """Convolutions until about 4 pixels are left of the shorter side: a second on 4,000 images of 64 x 64."""
    width = 16
    if size >= 48:
        x = _convolution(x, width, 2)
        size //= 2
    else:
        x = _convolution(x, width, 1)
    while size >= 8:
        width = min(2 * width, 64)
        x = _convolution(x, width, 2)
        size //= 2
    x = _convolution(x, width, 1)
    return keras.layers.GlobalAveragePooling2D()(x)


def _convolution(x: Any, width: int, stride: int) -> Any:
    x = keras.layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))


class Augment:
    """Changes images, or rows of numbers, in ways that do not change what they show.

    Args:
        kind: one of AUGMENTS. Any but `none` moves images by up to an eighth; `flip` mirrors them, `rotate`
            turns them too.
    """

    def __init__(self, kind: str):
        self.kind = kind

    def __call__(self, images: Any, draws: Any, strong: bool) -> Any:
        """Images, float32 (rows, height, width, channels), changed as `draws`, (rows, _DRAWS) between 0 and 1, say."""
        if len(images.shape) == 2:
            return self._row(images, draws, strong)
        if self.kind != "none" or strong:
            images = self._moved(images, draws, strong)
        return self._recoloured(images, draws) if strong else images

    def _row(self, rows: Any, draws: Any, strong: bool) -> Any:
        """Numbers, each moved a little, by waves of which the draws are the phases; strong: a sixth of them is gone."""
        width = rows.shape[1]
        places = tf.range(width, dtype=tf.float32)[None] * (1.0 + draws[:, :1])
        waves = tf.sin(2 * math.pi * (draws[:, 1:2] + 7.13 * places)) + tf.sin(
            2 * math.pi * (draws[:, 2:3] + 3.71 * places)
        )
        changed = rows + (0.15 if strong else 0.05) * waves
        if strong:
            gone = tf.math.floormod(draws[:, 3:4] + 0.618034 * places, 1.0) < 1 / 6
            changed = tf.where(gone, 0.0, changed)
        return changed

    def _moved(self, images: Any, draws: Any, strong: bool) -> Any:
        height, width = images.shape[1:3]
        around = lambda column: 2 * draws[:, column] - 1  # noqa: E731
        turn = 0.35 if strong else 0.0
        angle = around(0) * (math.pi if self.kind == "rotate" else turn)
        scale = tf.exp(around(1) * (0.25 if strong else 0.0))
        mirror = tf.where(draws[:, 2] < 0.5, -1.0, 1.0) if self.kind in ("flip", "rotate") else tf.ones_like(angle)
        share = 0.0 if self.kind == "none" else 0.125
        across, down = around(3) * share * width, around(4) * share * height
        cos, sin = tf.cos(angle) * scale, tf.sin(angle) * scale
        middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
        a, b, c, d = cos * mirror, -sin, sin * mirror, cos
        zero = tf.zeros_like(a)
        transform = tf.stack(
            [a, b, middle_x + across - a * middle_x - b * middle_y,
             c, d, middle_y + down - c * middle_x - d * middle_y, zero, zero], axis=1
        )  # fmt: skip
        return keras.ops.image.affine_transform(images, transform, "bilinear", "reflect")

    def _recoloured(self, images: Any, draws: Any) -> Any:
        """Other brightness and contrast, and a square of it gone (Cutout, as in section 2.3)."""
        height, width = images.shape[1:3]
        each = lambda column: draws[:, column, None, None, None]  # noqa: E731
        images = images * tf.exp(0.8 * (each(5) - 0.5)) + 0.8 * (each(6) - 0.5)
        rows, columns = tf.range(height)[None, :, None, None], tf.range(width)[None, None, :, None]
        top, left = each(7) * height, each(8) * width
        half = 0.2 * max(height, width) * each(9)
        near = (tf.abs(tf.cast(rows, tf.float32) - top) < half) & (tf.abs(tf.cast(columns, tf.float32) - left) < half)
        return tf.where(near, 0.0, images)


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
        """Go on with other options: steps are compiled anew."""
        self.semi, self.threshold = semi, threshold
        self._begin = True

    def go_on_from(self, other: Learner) -> None:
        """Begin with what the body of another one has learned, for other classes."""
        self.body.set_weights(other.body.get_weights())

    def call(self, numbers: Any, training: bool = False) -> Any:
        """Probabilities (rows, classes) of images by their numbers, (rows, 1)."""
        return tf.nn.softmax(self.head(self.body(self.pixels(numbers[:, 0]), training=training)))

    def predict_step(self, data: Any) -> Any:
        """Probabilities (rows, 1 + _VIEWS, classes) of images and of slightly augmented ones, and features."""
        numbers = data[0] if isinstance(data, tuple) else data
        images = self.pixels(numbers[:, 0])
        rows = tf.shape(numbers)[0]
        draws = keras.random.uniform((rows, _VIEWS, _DRAWS), seed=self.draws)
        features = self.body(images, training=False)
        views = [self.augment(images, draws[:, view], strong=False) for view in range(_VIEWS)]
        said = [features, *(self.body(view, training=False) for view in views)]
        return tf.stack([tf.nn.softmax(self.head(each)) for each in said], axis=1), features

    def train_step(self, data: Any) -> dict[str, Any]:
        numbers, labels = data
        rows = tf.shape(numbers)[0]
        draws = keras.random.uniform((rows, 1 + 2 * _UNLABELLED, _DRAWS), seed=self.draws)
        labelled = self.augment(self.pixels(numbers[:, 0]), draws[:, 0], strong=False)
        if self.semi:
            flat = tf.reshape(numbers[:, 1:], [-1])
            others = self.pixels(flat)
            weak = self.augment(others, tf.reshape(draws[:, 1 : 1 + _UNLABELLED], [-1, _DRAWS]), strong=False)
            strong = self.augment(others, tf.reshape(draws[:, 1 + _UNLABELLED :], [-1, _DRAWS]), strong=True)
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
                loss += tf.reduce_mean(tf.reshape(use * wrong, [rows, _UNLABELLED]), axis=1)
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
        log: str,
    ) -> None:
        """Train for so many steps, in epochs of which `log`, a CSV file, gets a row each; "" for none.

        Args:
            labels: of each image, -1 without.
            use, held: the numbers of images with labels to learn from, and to measure with.
        """
        if self._begin:
            schedule = keras.optimizers.schedules.CosineDecay(RATE, steps, alpha=0.02)
            self.compile(optimizer=keras.optimizers.Adam(schedule))
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
            epochs=epochs,
            validation_data=(held[:, None].astype(np.int32), labels[held].astype(np.int32)) if len(held) else None,
            callbacks=[keras.callbacks.CSVLogger(log)] if log else [],
            shuffle=False,
            verbose=0,
        )

    def answers(self) -> tuple[np.ndarray, np.ndarray]:
        """What it says of all images, and of augmented ones: probabilities (1 + _VIEWS, images, classes); and their
        features, (images, FEATURES)."""
        numbers = np.arange(len(self.images), dtype=np.int32)[:, None]
        said, features = self.predict(numbers, batch_size=500, verbose=0)
        return np.moveaxis(said, 1, 0), features


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
