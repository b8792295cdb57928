"""Loops of a script's own that print the loss of a step: what they print."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.support.cases.common import classifier, crossentropy, momentum, table

ROWS, BATCH = 53, 13  # batches of 13, and one of a single row, which leaves ranks without any


def _batches():
    return tf.data.Dataset.from_tensor_slices(table(ROWS)).batch(BATCH)


class Trained:
    """A model, its optimizer, and the gradients of a loss of it."""

    def __init__(self, persistent=False):
        self.model, self.optimizer, self.loss_fn = classifier(), momentum(), crossentropy()
        self.persistent = persistent

    def loss(self, x, y):
        return self.loss_fn(y, self.model(x, training=True))

    def step(self, x, y):
        with tf.GradientTape(persistent=self.persistent) as tape:
            loss = self.loss(x, y)
        self.apply(tape, loss)
        return loss

    def apply(self, tape, loss):
        gradients = tape.gradient(loss, self.model.trainable_weights)
        self.optimizer.apply(gradients, self.model.trainable_weights)


def guide(compiled):
    """The loop of Keras' guide on training loops: what it prints of the loss of each step."""
    trained, lines = Trained(), []
    step = tf.function(trained.step) if compiled else trained.step
    for epoch in range(2):
        for number, (x, y) in enumerate(_batches()):
            loss = step(x, y)
            lines.append([epoch, number, float(loss)])
    return {"weights": trained.model.get_weights(), "lines": lines}


def read(how):
    """An eager loss, read in a way that scripts have."""
    trained, found, total = Trained(), [], 0.0
    mean = keras.metrics.Mean()
    for x, y in _twice():
        loss = trained.step(x, y)
        if how == "ops":
            found += [float(tf.math.log(loss)), float(tf.reduce_mean([loss, 1.0])), float(np.asarray(loss))]
            found += [float(np.mean(loss)), float(np.array([loss, loss]).sum()), float(tf.function(tf.exp)(loss))]
        elif how == "numpy":
            found.append(loss.numpy())
        elif how == "format":
            found.append(float(f"{loss:.9g}"))
        elif how == "print":
            found += [float(str(loss).split("(")[1].split(",")[0]), float(repr(loss).split("numpy=")[1].strip(">)"))]
        elif how == "sum":
            total += loss
            found += [float(total), float(loss + total), float(2 * loss), float(loss / 3.0), float(-loss), loss.dtype]
        elif how == "compare":
            found += [bool(loss < 1.0), bool(loss > 1.0), int(100 * loss) // 10]
        elif how == "list":
            found.append(loss)
        elif how == "convert":
            found.append(float(tf.convert_to_tensor(loss)))
        else:
            mean.update_state(loss)
            found.append(float(mean.result()))
    if how == "list":
        found = [float(np.mean(found)), float(sum(found)), float(max(found))]
    return [one.name if isinstance(one, tf.DType) else one for one in found]


def _twice():
    data = _batches()
    for _ in range(2):
        yield from data


def made_of(form):
    """What a compiled step returns beside the loss itself, or of it."""
    trained = Trained(persistent=form == "persistent")

    def step(x, y):
        with tf.GradientTape(persistent=form == "persistent") as tape:
            error = trained.loss(x, y)
            decay = 0.01 * tf.reduce_mean(tf.square(trained.model(x)))
            loss = error + decay
        early = loss / int(x.shape[1])  # as a known tutorial on translation has it
        trained.apply(tape, loss)
        if form == "parts":
            return {"loss": loss, "parts": [error, decay], "rows": None}
        if form == "persistent":
            trained.apply(tape, error)
            return loss, error
        if form == "cast":
            return tf.cast(tf.identity(loss), tf.float64), tf.exp(loss)
        if form == "branch":
            return loss if tf.reduce_sum(trained.model.trainable_weights[0]) > -100.0 else loss * 2.0
        return early

    run, inner = tf.function(step), tf.function(step)
    if form == "nested":
        run = tf.function(lambda x, y: inner(x, y) * 1.0)
    return [float(one) for x, y in _twice() for one in tf.nest.flatten(run(x, y)) if one is not None]


def whole_epoch():
    """A loop inside of a tf.function."""
    trained, data = Trained(), _batches()

    @tf.function
    def epoch():
        last = tf.constant(0.0)
        for x, y in data:
            last = trained.step(x, y)
        return last

    return [float(epoch()) for _ in range(2)]


def asked_again():
    """What tapes say that still know a loss whose average is known by then: the same as before."""
    w, right = tf.Variable([0.3, -0.2, 0.1, 0.4, 0.2, -0.5]), []

    def tapes(x):
        with tf.GradientTape(persistent=True) as tape, tf.GradientTape() as other:
            error = tf.sqrt(tf.reduce_mean(tf.square(x @ w[:, None] - 1.0)))
            more = tf.exp(error) * error
        return tape, other, error, more

    for x, _ in _twice():
        tape, other, error, more = tapes(x)
        first, again, after = tape.gradient(error, w), tape.gradient(error, w), other.gradient(more, w)
        _, fresh, _, same = tapes(x)
        right += [np.allclose(first, again, rtol=1e-6), np.allclose(after, fresh.gradient(same, w), rtol=1e-6)]
    return right


def messages():
    """A few steps; how often the ranks meet in them is what the test looks at."""
    trained = Trained()
    return [float(trained.step(x, y)) for x, y in _batches()]


def vectors():
    """A target that is no scalar stays that of the rank's rows."""
    w, seen = tf.Variable(1.0), []
    for x, _ in _twice():
        with tf.GradientTape() as tape:
            loss = w * x[:, 0]
        tape.gradient(loss, w)
        seen.append(loss.shape[0] == x.shape[0] and np.allclose(loss.numpy(), x[:, 0]))
    return seen
