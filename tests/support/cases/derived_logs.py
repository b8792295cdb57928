"""Steps that compute with results of metrics: what one rank has at that point of the step, on every rank."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from tests.support.cases.batch_logs import Seen
from tests.support.cases.common import compiled, momentum, numbers, result_of, table


class Twice(keras.Sequential):
    """Numbers that are made of a metric's result, of two, of one and of rows, and results as they are."""

    def _more(self, logs, data):
        column = tf.reduce_mean(data[0][:, 0])
        made = {"twice": 2 * logs["loss"], "squared": logs["loss"] ** 2, "both": logs["loss"] / (1 + logs["accuracy"])}
        return {**logs, **made, "with rows": column - logs["loss"], "column": column}

    def train_step(self, data):
        return self._more(super().train_step(data), data)

    def test_step(self, data):
        return self._more(super().test_step(data), data)


class Weighted(keras.Sequential):
    """A step whose loss counts by a metric's result; its weights follow from that."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            self.metrics[0].update_state(loss)
            weighed = loss / (0.5 + self.metrics[0].result())
        self.optimizer.apply(tape.gradient(weighed, self.trainable_variables), self.trainable_variables)
        return self.compute_metrics(x, y, self(x), None)


class Compiled(keras.Sequential):
    """A step in a tf.function of its own."""

    @tf.function
    def train_step(self, data):
        return super().train_step(data)


class Whole(keras.Model):
    """A step of the script's own around a model, with a metric whose result it divides by."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.errors = keras.metrics.Mean(name="errors")

    @property
    def metrics(self):
        return [self.errors]

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            each = keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True)
            loss = tf.reduce_mean(each)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.errors.update_state(each)
        return {"perplexity": tf.exp(self.errors.result()), "errors": self.errors.result()}


class Ratio(keras.metrics.Metric):
    """A metric of two others."""

    def __init__(self):
        super().__init__(name="ratio")
        self.error = keras.metrics.Mean(name="error")
        self.size = keras.metrics.Mean(name="size")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.update_state(tf.abs(tf.cast(y_true, tf.float32)[:, None] - y_pred))
        self.size.update_state(tf.abs(y_pred))

    def result(self):
        return self.error.result() / (self.size.result() + 1e-3)


def _inner(kind=keras.Sequential):
    keras.utils.set_random_seed(7)
    return kind([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)])


def _own():
    model = Whole(_inner())
    model.build((None, 6))
    model.compile(momentum(0.05))
    return model


FORMS = {
    "derived": lambda: compiled(_inner(Twice), momentum(0.05)),
    "eager": lambda: compiled(_inner(Twice), momentum(0.05), run_eagerly=True),
    "made late": lambda: compiled(_inner(Twice), momentum(0.05), lazily=True),
    "several steps": lambda: compiled(_inner(Twice), momentum(0.05), steps_per_execution=2),
    "weight": lambda: compiled(_inner(Weighted), momentum(0.05)),
    "compiled": lambda: compiled(_inner(Compiled), momentum(0.05)),
    "of its own": _own,
    "metric of metrics": lambda: compiled(_inner(), momentum(0.05), metrics=[Ratio()]),
}


def derived(form):
    """Sparse columns, uneven classes, and a last batch of one row, of which most ranks have none."""
    model, callback, (x, y) = FORMS[form](), Seen(), table(101)
    x = np.where(np.random.RandomState(1).rand(*x.shape) < 0.7, 0, 3 * x).astype("float32")
    history = model.fit(x, y, batch_size=25, epochs=2, callbacks=[callback], verbose=0)
    found = {**result_of(model, history), "train": callback.train}
    if form in ("derived", "eager"):
        found["evaluate"] = numbers(model.evaluate(x, y, batch_size=30, verbose=0, return_dict=True))
        found["alone"] = [numbers(model.train_on_batch(x[:n], y[:n], return_dict=True)) for n in (20, 1)]
    return found


def reproducible(form, count):
    """The same with --reproducible: the bits of one rank."""
    before = settings.use(dataclasses.replace(settings.current(), reproducible=count))
    try:
        return derived(form)
    finally:
        settings.use(before)
