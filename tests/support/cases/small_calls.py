"""Many calls of `predict`, `predict_on_batch` and `test_on_batch` on a few rows."""

from __future__ import annotations

import unittest.mock

import keras
import numpy as np
from keras import layers

from matex_tf.core import world
from matex_tf.patches.common import model_state
from matex_tf.patches.fit import small_calls
from tests.support.cases.common import classifier, compiled, numbers, result_of, table

TIMES = 9  # after the first, second, fourth and eighth the ranks agree


def _without_clocks():
    """Let what can be computed by every rank be so, however busy the machine is."""
    return unittest.mock.patch.object(small_calls, "pays", lambda rows, computing, sharing: True)


def spread(y_true, y_pred):
    """A metric that looks across the rows."""
    return keras.ops.std(y_pred)


class Highest(keras.metrics.Metric):
    """A metric whose state is no sum."""

    def __init__(self):
        super().__init__(name="highest")
        self.value = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value + 0


def loop():
    """What a loop of small calls returns, between steps of training, and whether ranks have met in its last calls."""
    x, y = table()
    model = compiled(classifier(), metrics=["accuracy", spread, Highest()])
    found = {"predict": [], "batch": [], "test": [], "train": []}
    with _without_clocks():
        for time in range(TIMES):
            rows = slice(time, time + 5)
            found["predict"].append(model.predict(x[rows][:1], verbose=0))
            found["predict"].append(model.predict({"x": x[rows]}["x"], batch_size=2, verbose=0))
            found["batch"].append(model.predict_on_batch(x[rows]))
            found["test"].append(model.test_on_batch(x[rows], y[rows], sample_weight=np.arange(5.0), return_dict=True))
            found["train"].append(model.train_on_batch(x[:25], y[:25]))
        history = model.fit(x, y, batch_size=25, epochs=1, verbose=0)
        found["test"].append(model.test_on_batch(x[:5], y[:5], sample_weight=np.arange(5.0), return_dict=True))
        found["read"] = [metric.result() for metric in model.metrics if metric.name == "loss"]
        found["evaluate"] = model.evaluate(x, y, verbose=0)
    whole = [seen.whole for seen in model_state.of(model).small_calls.values()]
    assert all(whole) and len(whole) == (0 if world.current().is_single else 4), model_state.of(model).small_calls
    return result_of(model, history, found=numbers(found))


def of_own_rows(after):
    """Rows that are a rank's own from call `after` on; what is predicted for them, and what should be."""
    x, _ = table()
    model = classifier()
    with _without_clocks():
        for time in range(TIMES):
            first = time + (world.current().rank if time >= after else 0)
            predicted = model.predict(x[first : first + 2], verbose=0)
            assert np.allclose(predicted, model(x[first : first + 2]), atol=1e-6), time
    assert model_state.of(model).rows_apart
    return len(model_state.of(model).small_calls)


class Noisy(layers.Layer):
    """Noise also where a model predicts."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.generator)


def _random():
    keras.utils.set_random_seed(3)
    return keras.Sequential([layers.Input((6,)), Noisy(), layers.Dense(3)])


def apart(kind):
    """Models whose graph gives something else on each rank, or whose weights are not the same: they are shared out."""
    x, y = table()
    model = compiled(_random() if kind == "random" else classifier(), run_eagerly=kind == "eager")
    seen = []
    with _without_clocks():
        model.fit(x, y, batch_size=25, verbose=0)  # generators of ranks part ways
        for _ in range(5):
            seen.append((model.predict(x[:4], verbose=0), model.test_on_batch(x[:4], y[:4], return_dict=True)))
    assert not any(one.whole for one in model_state.of(model).small_calls.values())
    return numbers(seen)


def in_callbacks():
    """`predict_on_batch` between the batches of an epoch, where ranks have moving statistics of their own if the steps
    are not partitioned."""
    x, y = table()
    keras.utils.set_random_seed(3)
    model = compiled(keras.Sequential([layers.Input((6,)), layers.BatchNormalization(), layers.Dense(3)]))
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(model.predict_on_batch(x[:4]))
    )
    with _without_clocks():
        model.fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[look])
    assert model_state.of(model).whole or not any(one.whole for one in model_state.of(model).small_calls.values())
    return numbers(seen)
