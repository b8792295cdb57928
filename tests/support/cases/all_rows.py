"""Losses of a script's own that compare rows: each with `matex_tf.all_rows`, in a `train_step` and in a loop."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import matex_tf
from tests.support.cases.common import momentum

ROWS, BATCH = 53, 12  # batches of 12, and one of 5


def simclr(model, x, y):
    """NT-Xent of two views of each row."""
    views = [tf.math.l2_normalize(model(view, training=True), 1) for view in (x, x[:, ::-1] * 0.9)]
    first, second = matex_tf.all_rows(views)
    both = tf.concat([first, second], 0)
    rows = tf.shape(first)[0]
    scores = tf.matmul(both, both, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * rows)
    partners = tf.concat([tf.range(rows, 2 * rows), tf.range(rows)], 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(partners, scores))


def clip(model, x, y):
    """Symmetric cross entropy of pairs, with the other rows of the batch as negatives."""
    pictures, texts = matex_tf.all_rows((model(x, training=True), model(tf.sin(x), training=True)))
    scores = tf.matmul(tf.math.l2_normalize(pictures, 1), tf.math.l2_normalize(texts, 1), transpose_b=True) / 0.3
    own = tf.range(tf.shape(scores)[0])
    each = [tf.nn.sparse_softmax_cross_entropy_with_logits(own, one) for one in (scores, tf.transpose(scores))]
    return tf.reduce_mean(each[0] + each[1]) / 2


def triplet(model, x, y):
    """A sum over the hardest pairs of the batch."""
    out, labels = matex_tf.all_rows(model(x, training=True)), matex_tf.all_rows(y)
    distances = tf.reduce_sum(tf.square(out[:, None] - out[None]), 2)
    alike = tf.cast(labels[:, None] == labels[None], tf.float32)
    farthest, nearest = tf.reduce_max(distances * alike, 1), tf.reduce_min(distances + 1e3 * alike, 1)
    return 0.1 * tf.reduce_sum(tf.maximum(farthest - nearest + 1.0, 0.0))


LOSSES = {"simclr": simclr, "clip": clip, "triplet": triplet}


def _data():
    random = np.random.RandomState(0)
    return random.normal(size=(ROWS, 6)).astype("float32"), random.randint(0, 3, ROWS).astype("int32")


def _encoder():
    keras.utils.set_random_seed(7)
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(4)])


def in_a_step(loss):
    """A `train_step`."""

    class Trained(keras.Model):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def train_step(self, data):
            with tf.GradientTape() as tape:
                value = LOSSES[loss](self.encoder, *data)
            weights = self.encoder.trainable_variables
            self.optimizer.apply(tape.gradient(value, weights), weights)
            return {"loss": value}

    model = Trained(_encoder())
    model.compile(momentum(0.05))
    history = model.fit(*_data(), batch_size=BATCH, epochs=2, verbose=0)
    return {"weights": model.encoder.get_weights(), "epochs": len(history.history["loss"])}


def in_a_loop(loss, compiled):
    """A loop of the script's own; what it prints."""
    model, optimizer, losses = _encoder(), momentum(0.05), []

    def step(x, y):
        with tf.GradientTape() as tape:
            value = LOSSES[loss](model, x, y)
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    run = tf.function(step) if compiled else step
    for _ in range(2):
        for x, y in tf.data.Dataset.from_tensor_slices(_data()).batch(BATCH):
            losses.append(float(run(x, y)))
    return {"weights": model.get_weights(), "losses": losses}


def outside():
    """What is no batch stays as it is."""
    found = matex_tf.all_rows({"a": np.arange(3.0), "b": tf.range(4)})
    return {name: np.array(value) for name, value in found.items()}
