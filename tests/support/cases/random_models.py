"""Models for random jobs: stacked layers, several inputs and outputs, layers that keep state or look across rows."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers as L

from tests.support import partition_fuzz

COLUMNS, CLASSES = 12, 4


class Follower(L.Layer):
    """Follows the mean and the largest entry of what it sees, and counts rows."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="seen")
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="rows")

    def call(self, x, training=False):
        if training:
            self.seen.assign(0.8 * self.seen + 0.2 * tf.reduce_mean(x, 0) + 0.1 * tf.reduce_max(x, 0))
            self.rows.assign_add(tf.shape(x)[0])
        return x - self.seen / (1.0 + tf.cast(self.rows, x.dtype))


class Codebook(L.Layer):
    """The nearest of a few vectors, which follow the rows that are near them; a loss that it adds."""

    def build(self, shape):
        self.codes = self.add_weight(shape=(5, shape[-1]), initializer="random_normal", trainable=False, name="codes")
        self.counts = self.add_weight(shape=(5,), initializer="ones", trainable=False, name="counts")

    def call(self, x, training=False):
        far = tf.reduce_sum((x[:, None] - self.codes[None]) ** 2, -1)
        near = tf.one_hot(tf.argmin(far, 1), 5, dtype=x.dtype)
        found = near @ tf.convert_to_tensor(self.codes)
        if training:
            counts = 0.9 * self.counts + 0.1 * tf.reduce_sum(near, 0)
            self.codes.assign(0.9 * self.codes + 0.1 * tf.matmul(near, x, transpose_a=True) / counts[:, None])
            self.counts.assign(counts)
        self.add_loss(0.1 * tf.reduce_mean((x - tf.stop_gradient(found)) ** 2))
        return x + tf.stop_gradient(found - x)


class Batchwise(L.Layer):
    """Looks at all rows of a batch."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def call(self, x):
        if self.form == "centered":
            return x - tf.reduce_mean(x, 0, keepdims=True)
        if self.form == "deviation":
            deviation = tf.reduce_mean(tf.math.reduce_std(x, 0)) + tf.zeros_like(x[:, :1])
            return tf.concat([x, deviation], 1)
        return tf.nn.softmax(x @ tf.transpose(x) / 4.0) @ x


def functional(draw):
    """A model of several inputs or outputs; its names of outputs."""
    first, second = keras.Input((COLUMNS,), name="a"), keras.Input((COLUMNS,), name="b")
    hidden = L.Dense(6, draw.choice(["tanh", "gelu"]))(first)
    for layer in partition_fuzz.layers(draw)[:-1] if draw.random() < 0.5 else []:
        hidden = layer(hidden) if hidden.shape[-1] == COLUMNS or len(hidden.shape) == 2 and _narrow(layer) else hidden
    other = draw.choice([lambda x: L.Dense(5)(x), lambda x: L.Dense(5)(L.BatchNormalization()(x)), L.Dropout(0.2)])(
        second
    )
    joined = draw.choice([lambda a, b: L.Concatenate()([a, b]), lambda a, b: L.Dot(-1)([L.Dense(5)(a), L.Dense(5)(b)])])
    hidden = joined(hidden, other)
    if draw.random() < 0.5:
        extra = [Follower(), Codebook(), Batchwise("centered"), Batchwise("softmax"), L.GroupNormalization(1)]
        hidden = draw.choice(extra)(hidden)
    return keras.Model([first, second], {"y": L.Dense(CLASSES, name="y")(hidden), "z": L.Dense(2, name="z")(hidden)})


def _narrow(layer):
    return isinstance(layer, (L.Dense, L.BatchNormalization, L.LayerNormalization, L.Dropout, L.GaussianNoise))


def stacked(draw):
    """A Sequential model, perhaps with a layer that keeps state or looks across rows in it."""
    body = partition_fuzz.layers(draw)
    if draw.random() < 0.5:
        extra = [Follower, Codebook, lambda: Batchwise("centered"), lambda: Batchwise("deviation"),
                 lambda: Batchwise("softmax"), lambda: L.BatchNormalization(renorm=False, scale=False),
                 lambda: L.SpectralNormalization(L.Dense(5)), lambda: L.Lambda(lambda x: x / tf.norm(x)),
                 lambda: L.AlphaDropout(0.2), lambda: L.Normalization(mean=0.5, variance=2.0)]  # fmt: skip
        body[-1:-1] = [draw.choice(extra)()]
    if draw.random() < 0.2:
        recurrent = L.LSTM(5, dropout=0.2, recurrent_dropout=draw.choice([0, 0.2]))
        body[:0] = [L.Reshape((4, 3)), recurrent, L.Dense(COLUMNS)]
    return keras.Sequential([keras.Input((COLUMNS,)), *body])
