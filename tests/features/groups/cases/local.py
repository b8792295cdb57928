"""Trainings in which ranks meet once in several steps."""

from __future__ import annotations

import functools
import zlib

import keras
import numpy as np

from matex_tf import strategies
from matex_tf.core import world
from tests.support.cases.common import classifier, compiled, momentum, numbers, table
from tests.support.cases.exchange import on_hosts
from tests.support.cases.models import train
from tests.support.cases.pipe import run_with

#: Settings of a run by local SGD, if no other strategy is chosen.
strategy = functools.partial(run_with, strategy="local")


class Watch(keras.callbacks.Callback):
    """The weights of this rank after each batch, and what ranks had met for by then."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(np.concatenate([np.array(weight).reshape(-1) for weight in self.model.get_weights()]))


def regression(rows):
    """Rows of three columns, a target of each, and a linear model that starts at 0.5."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)).astype("float32"), random.normal(size=(rows, 1)).astype("float32")
    start = keras.initializers.Constant(0.5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return x, y, model


def linear(rows=56, batch=8, epochs=2, verbose=0, **chosen):
    """A linear regression; the weights after each step."""
    with strategy(**chosen):
        x, y, model = regression(rows)
        watch = Watch()
        model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=verbose, callbacks=[watch])
        return {"batches": np.array(watch.batches), "end": model.get_weights()[0][:, 0]}


def deep(rows=56, batch=8, epochs=2, **chosen):
    """Two linear layers; the weights after each step, those of the first layer before those of the second."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)).astype("float32"), random.normal(size=(rows, 1)).astype("float32")
    with strategy(**chosen):
        start = {"use_bias": False, "kernel_initializer": keras.initializers.Constant(0.5)}
        layers = [keras.Input((3,)), keras.layers.Dense(2, **start), keras.layers.Dense(1, **start)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        watch = Watch()
        model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=[watch])
        return {"batches": np.array(watch.batches), "end": np.concatenate([w.reshape(-1) for w in model.get_weights()])}


def plain():
    """A meeting in each step, and nothing else: sync."""
    x, y = table()
    with strategy(local_every=1):
        return train(compiled(classifier(), momentum()), x, y)


def goes_on(codec="none"):
    """A model that is trained twice, whose weights are set, and that is given single batches."""
    x, y = table()
    with strategy(local_every=3, codec=codec):
        model = compiled(classifier(), momentum())
        start = model.get_weights()
        losses = model.fit(x, y, batch_size=25, epochs=8, verbose=0, validation_data=(x, y)).history["val_loss"]
        model.set_weights(start)
        single = [numbers(model.train_on_batch(x[:30], y[:30])) for _ in range(2)]
        again = model.fit(x, y, batch_size=25, epochs=8, verbose=0).history["loss"]
        evaluated = numbers(model.evaluate(x, y, verbose=0))
    weights = [np.array(weight) for weight in model.weights]
    return {"losses": losses, "single": single, "again": again, "evaluated": evaluated, "weights": weights}


def coded(codec, size=100_000, rounds=3):
    """Outer steps that are plain means, of ranks on hosts of their own: how far the weights are from the exact ones, in
    parts of the largest move, and a checksum of their bits."""
    here = on_hosts("abcdefgh")
    options = {"codec": codec, "local_every": 2, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
    with strategy(**options), world.use(here):
        weights = keras.Variable(np.zeros(size, "float32"), name="weights")
        meetings = strategies.create().rounds(None, [weights])
        moves = np.random.default_rng(5).normal(size=(rounds, 2, here.size, size)).astype("float32")
        for both in moves:
            for move in both:
                meetings.before_step()
                weights.assign_add(move[here.rank])
                meetings.after_step()
    here.free()
    off = np.abs(weights.numpy() - moves.mean(axis=2).sum(axis=(0, 1))).max() / np.abs(moves.sum(axis=1)).max()
    return float(off), zlib.crc32(weights.numpy().tobytes())


def short_job(epochs=6, **chosen):
    """A few hundred steps on the digits: accuracy on rows that it was not trained on, and the loss of each epoch."""
    from sklearn import datasets

    found = datasets.load_digits()
    order = np.random.RandomState(0).permutation(len(found.data))
    x, y = (found.data[order] / 16).astype("float32"), found.target[order].astype("int32")
    with strategy(**{**chosen, "notes": True}):
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(units, activation="relu") for units in (64, 32)]
        model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
        history = model.fit(x[:1400], y[:1400], batch_size=56, epochs=epochs, verbose=0).history
        accuracy = float(model.evaluate(x[1400:], y[1400:], verbose=0)[1])
    return {"accuracy": accuracy, "losses": [float(one) for one in history["loss"]]}
