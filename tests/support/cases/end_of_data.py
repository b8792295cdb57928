"""Data of unknown length, at whose end Keras begins one more step."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.support.cases.common import crossentropy, ready, result_of, table


def _batches(batches=5, rows=13):
    x, y = table(batches * rows)
    return ((x[low : low + rows], y[low : low + rows]) for low in range(0, batches * rows, rows))


def _pipeline(batches):
    specs = tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.int32)
    return tf.data.Dataset.from_generator(lambda: _batches(batches), output_signature=specs)


class TwoOptimizers(keras.Model):
    """A step with an optimizer of its own, which takes two updates."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.second = inner, keras.optimizers.SGD(0.01)

    def call(self, x, training=None):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        for optimizer in (self.optimizer, self.second, self.second):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class OwnMean(keras.Model):
    """A step that counts itself and means one loss for each batch, beside a metric of rows."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.mean = inner, keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.counter = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    @property
    def metrics(self):
        return [self.mean, self.accuracy]

    def call(self, x, training=None):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        self.counter.assign_add(1)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.mean.update_state(loss)
        self.accuracy.update_state(y, logits)
        return {"loss": self.mean.result(), "accuracy": self.accuracy.result()}

    def test_step(self, data):
        x, y = data
        logits = self(x, training=False)
        loss = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        self.mean.update_state(tf.reduce_mean(loss))
        self.accuracy.update_state(y, logits)
        return {"loss": self.mean.result(), "accuracy": self.accuracy.result()}


def logs(own, promised):
    """The logs of epochs and of an evaluation, and the count of a step of the script's own.

    Args:
        own: whether the model's steps are the script's own. promised: whether the pipeline promises the rows of a
            batch: "rows" without another size.
    """
    keras.utils.set_random_seed(7)
    is_open = promised == "rows"
    sizes = [keras.Input((None,)), layers.Reshape((6,))] if is_open else [keras.Input((6,))]
    model = keras.Sequential([*sizes, layers.Dense(8, activation="tanh"), layers.Dense(3)])
    model = OwnMean(model) if own else model
    model.compile(keras.optimizers.SGD(0.1), crossentropy(), metrics=["accuracy"])
    ready(model)
    data = _pipeline(5).unbatch().batch(13, drop_remainder=bool(promised))
    if is_open:
        data = data.map(lambda x, y: (tf.raw_ops.PlaceholderWithDefault(input=x, shape=[13, None]), y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that the data have ended
        history = model.fit(data, epochs=3, validation_data=data, verbose=0).history
        evaluated = model.evaluate(data, verbose=0)
    count = int(np.array(model.counter)) if own else 0
    return {"history": history, "evaluated": evaluated, "count": count}


def counted(form):
    """The counters and the weights after each epoch.

    Args:
        form: "schedule", "adam", "accumulating", "accumulating plainly", "accumulating adam", "scaled", "eager", "jit",
            "several" (steps_per_execution), "short" (one batch an epoch), "steps" (`steps_per_epoch` that do not divide
            the data), "two" (optimizers), "generator".
    """
    keras.utils.set_random_seed(7)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)
    optimizer = {
        "schedule": lambda: keras.optimizers.SGD(rate, momentum=0.9),
        "accumulating": lambda: keras.optimizers.SGD(rate, gradient_accumulation_steps=2),
        "accumulating plainly": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        "accumulating adam": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate)),
    }.get(form, lambda: keras.optimizers.Adam(0.01))()
    idle = layers.Dropout(1e-9)  # draws, and changes nothing
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), idle, layers.Dense(3)])
    if form == "two":
        model = TwoOptimizers(model)
    options = {"several": {"steps_per_execution": 2}, "eager": {"run_eagerly": True}, "jit": {"jit_compile": True}}.get(
        form, {}
    )
    model.compile(optimizer, crossentropy(), **options)
    ready(model)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([int(np.array(model.optimizer.iterations)), int(np.array(idle.seed_generator.state.value)[1])])

    data = _batches() if form == "generator" else _pipeline(1 if form == "short" else 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that the data have ended
        model.fit(
            data,
            epochs=1 if form == "generator" else 4,
            initial_epoch=0 if form == "generator" else 1,
            steps_per_epoch=4 if form == "steps" else None,
            callbacks=[Look()],
            verbose=0,
        )
    second = [int(np.array(model.second.iterations))] if form == "two" else []
    return {"counters": seen + second, "weights": result_of(model)["weights"]}
