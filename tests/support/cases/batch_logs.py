"""What callbacks see of each batch."""

from __future__ import annotations

import keras
from keras import layers

from tests.support.cases.common import compiled, momentum, numbers, result_of, table


class Seen(keras.callbacks.Callback):
    """The logs of every batch."""

    def __init__(self):
        super().__init__()
        self.train, self.test = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.train.append((batch, numbers(logs)))

    def on_test_batch_end(self, batch, logs=None):
        self.test.append((batch, numbers(logs)))


def _model(metrics=("accuracy",), **options):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)])
    return compiled(model, optimizer=momentum(0.05), metrics=list(metrics), **options)


class Largest(keras.metrics.Metric):
    """No sum over rows."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y, predicted, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(predicted)))

    def result(self):
        return self.value


class Stepped(keras.Model):
    """A step whose logs are a metric, and a number that it has computed of its rows."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(3)
        self.kept = keras.metrics.Mean(name="kept")

    @property
    def metrics(self):
        return [self.kept]

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.kept.update_state(loss)
        return {"plain": loss, "kept": self.kept.result()}


FORMS = {
    "metrics": lambda: _model(["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")]),
    "not a sum": lambda: _model([Largest()]),
    "eager": lambda: _model(run_eagerly=True),
    "several steps": lambda: _model(steps_per_execution=3),
}


def seen(form):
    """Logs of batches of 25 rows, the last of one; of `fit` with validation, and of `evaluate`."""
    model, callback, (x, y) = FORMS[form](), Seen(), table()
    history = model.fit(
        x, y, batch_size=25, epochs=2, validation_data=table(40, seed=1), callbacks=[callback], verbose=0
    )
    result = model.evaluate(x, y, batch_size=30, callbacks=[callback], verbose=0, return_dict=True)
    return {**result_of(model, history), "train": callback.train, "test": callback.test, "evaluate": numbers(result)}


def of_an_own_step():
    """A `train_step` of the script's own, then evaluation by another step, then training again."""
    keras.utils.set_random_seed(7)
    model, callback, (x, y) = Stepped(), Seen(), table()
    model.compile(momentum(0.05))
    for _ in range(2):
        model.fit(x, y, batch_size=25, epochs=1, callbacks=[callback], verbose=0)
    return {"train": callback.train, "weights": model.get_weights()}


def bar():
    """A progress bar is shown, and nobody else reads logs of batches."""
    model, (x, y) = _model(), table()
    return result_of(model, model.fit(x, y, batch_size=25, epochs=1, verbose=1))


def read():
    """A callback reads logs of batches, and a script those of `train_on_batch`; one batch is of a single row."""
    model, callback, (x, y) = _model(), Seen(), table()
    model.fit(x, y, batch_size=25, epochs=2, callbacks=[callback], verbose=0)
    alone = [numbers(model.train_on_batch(x[:rows], y[:rows], return_dict=True)) for rows in (20, 1, 20)]
    return {"train": callback.train, "alone": alone, "weights": model.get_weights()}


def unread():
    """Nobody reads logs of batches."""
    model, (x, y) = _model(), table()
    return result_of(model, model.fit(x, y, batch_size=25, epochs=2, verbose=0))
