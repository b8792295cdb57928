"""Trainings whose network changes while they run."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from matex_tf.features.samples.options import Scored
from matex_tf.state import run_state
from tests.support.cases.common import result_of
from tests.support.cases.pipe import chosen, rules


def teacher(rows, inputs=10, seed=3):
    """Rows with labels of two classes that a small network gives, and noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs)).astype("float32")
    first, second = rng.normal(size=(inputs, 6)), rng.normal(size=6)
    score = np.tanh(x @ first) @ second
    return x, (score + rng.normal(size=rows) > 0).astype("float32")


def dense():
    hidden = [layers.Dense(40, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((10,)), *hidden, layers.Dense(1, activation="sigmoid")])


def convolutions():
    return keras.Sequential(
        [
            keras.Input((10,)),
            layers.Reshape((5, 2)),
            layers.Conv1D(16, 3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.1),
            layers.Dense(1, activation="sigmoid"),
        ]
    )


def recurrent():
    inputs = keras.Input((10,))
    x = layers.LSTM(24)(layers.Reshape((5, 2))(inputs))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def attention():
    inputs = keras.Input((10,))
    x = layers.Dense(16)(layers.Reshape((5, 2))(inputs))
    x = x + layers.MultiHeadAttention(4, 4)(x, x)
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(64, activation="relu")(x)))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.GlobalAveragePooling1D()(x)))


def blocks():
    inputs = keras.Input((10,))
    x = layers.Dense(16, activation="relu")(inputs)
    for _ in range(3):
        x = layers.Add()([x, layers.Dense(16)(layers.Dense(24, activation="relu")(x))])
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


MODELS = {one.__name__: one for one in (dense, convolutions, recurrent, attention, blocks)}


def changed(model="dense", rule="", validation=True, rows=1021, batch=24, epochs=3, jit=False, rate=0.05, **changes):
    """A training that changes its network; how wide its layers are in the end, and what it comes to."""
    keras.utils.set_random_seed(5)
    run_state.current().begin(Scored())  # as in a script of its own: what rows wait depends on the number of the fit
    x, y = teacher(rows + 400)
    settings = {"apoptosis": True, "apoptosis_tolerance": 0.02, **changes}
    with chosen(**settings):
        net = MODELS[model]()
        before = net.count_params()
        # Not Adam: it makes as much of a gradient that is nothing but rounding as of any other.
        optimizer = rules()[rule]() if rule else keras.optimizers.SGD(rate, momentum=0.9)
        net.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], jit_compile=jit)
        given = {"validation_data": (x[rows:], y[rows:])} if validation else {}
        history = net.fit(x[:rows], y[:rows], batch_size=batch, epochs=epochs, verbose=0, **given)
        predictions, evaluated = net.predict(x[:50], verbose=0), net.evaluate(x[rows:], y[rows:], verbose=0)
    shapes = [tuple(weight.shape) for weight in net.weights]
    return result_of(
        net,
        history,
        shapes=shapes,
        before=before,
        after=net.count_params(),
        predictions=predictions,
        evaluated=evaluated,
    )


class Widths(keras.callbacks.Callback):
    """The parameters at the end of each epoch; the training ends after `last` of these."""

    def __init__(self, last):
        super().__init__()
        self.last, self.seen = last, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(self.model.count_params())
        self.model.stop_training = epoch + 1 == self.last


def several_fits(depth=False):
    """A training in several calls of `fit`, the first of which ends early; and one of a model that has been trained."""
    keras.utils.set_random_seed(5)
    x, y = teacher(1000)
    seen, losses = [], []
    with chosen(grow=True, grow_depth=depth):
        net = blocks()
        whole = net.count_params()
        net.compile(keras.optimizers.SGD(0.05, momentum=0.9), "binary_crossentropy")
        for epochs, last in ((8, 2), (4, 4), (1, 1)):
            widths = Widths(last)
            net.fit(x, y, batch_size=50, epochs=epochs, verbose=0, callbacks=[widths])
            seen.append(widths.seen)
            losses.append(net.evaluate(x, y, verbose=0))
        trained = blocks()
        trained.compile(keras.optimizers.SGD(0.05, momentum=0.9), "binary_crossentropy")
        trained.train_on_batch(x[:50], y[:50])
        trained.fit(x, y, batch_size=50, verbose=0)
    weights = [weight for model in (net, trained) for weight in model.get_weights()]
    return {"weights": weights, "seen": seen, "losses": losses, "whole": whole, "trained": trained.count_params()}
