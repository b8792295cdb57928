"""Trainings by gossip."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.features.gossip import ring_shuffle as rings
from matex_tf.patches.common import batch_share
from matex_tf.patches.data import local_batch
from matex_tf.patches.keras import weights
from matex_tf.state import notes
from tests.support.cases.common import classifier, compiled, momentum, numbers, table
from tests.support.cases.pipe import run_with

#: Settings of a run by gossip.
strategy = functools.partial(run_with, strategy="gossip")


class Watch(keras.callbacks.Callback):
    """The weights of this rank after each batch, and at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs, self.spreads, self.references = [], [], [], []

    def _weights(self):
        return np.concatenate([np.array(weight).reshape(-1) for weight in self.model.get_weights()])

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(self._weights())
        if batch == 0 and settings.current().codec != "none":
            held = strategies.current()._rounds[self.model].averager.reference
            self.references.append(np.concatenate([array.reshape(-1) for array in held]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self._weights())
        self.spreads.append(strategies.current().spreads[self.model])


def model_of(kind="plain"):
    """A small model: plain, or with state that is not trained."""
    if kind == "plain":
        return classifier()
    keras.utils.set_random_seed(7)
    frozen = keras.layers.Dense(8)
    model = keras.Sequential(
        [keras.layers.Input((6,)), frozen, keras.layers.BatchNormalization(), keras.layers.Dropout(0.1),
         keras.layers.Dense(3)]
    )  # fmt: skip
    frozen.trainable = False
    return model


def train(kind="plain", optimizer=None, rows=101, shard=False, fit=None, **chosen):
    """A training; what each rank saw of it."""
    ranks = world.current()
    x, y = table(rows)
    if shard:
        x, y = x[ranks.rank :: ranks.size], y[ranks.rank :: ranks.size]
    with strategy(**chosen):
        model = compiled(model_of(kind), momentum(**(optimizer or {})))
        watch, start = Watch(), [np.array(weight).reshape(-1) for weight in model.get_weights()]
        options = {"batch_size": 25, "epochs": 3, "verbose": 0, "validation_data": table(40, seed=1), **(fit or {})}
        history = model.fit(x, y, callbacks=[watch], **options)
        travelled = [variable.path for variable in sum(weights.trained_by_steps(model), [])]
        result = {
            "history": numbers(history.history), "weights": [np.array(weight) for weight in model.get_weights()],
            "slots": [np.array(v.numpy()) for v in model.optimizer.variables][2:],
            "batches": watch.batches, "epochs": watch.epochs, "spreads": watch.spreads,
            "evaluate": numbers(model.evaluate(*table(40, seed=1), verbose=0)), "travelled": travelled,
            "start": np.concatenate(start), "references": watch.references,
        }  # fmt: skip
    return result


def linear(rows=53, batch=8, epochs=2, **chosen):
    """A linear regression; the weights after each step."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 1))
    with strategy(**chosen):
        start = keras.initializers.Constant(0.5)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        watch = Watch()
        x, y = x.astype("float32"), y.astype("float32")
        model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=[watch])
    return np.array(watch.batches)


def goes_on(**chosen):
    """Two fits, `train_on_batch`, a frozen half and a fit on other data, with one model."""
    x, y = table()
    with strategy(**chosen):
        model = compiled(classifier())
        model.fit(x, y, batch_size=25, epochs=1, verbose=0)
        model.fit(x, y, batch_size=10, epochs=1, verbose=0)
        logs = [numbers(model.train_on_batch(x[:30], y[:30])) for _ in range(3)]
        evaluated = numbers(model.evaluate(x, y, verbose=0))
        other = compiled(keras.Sequential([model.layers[0], keras.layers.Dense(3)]))
        other.fit(x, y, batch_size=25, epochs=1, verbose=0)
        return {
            "logs": logs,
            "evaluated": evaluated,
            "weights": [np.array(w) for w in (*model.weights, *other.weights)],
        }


def two_optimizers():
    """A `train_step` of the script's own, with two optimizers: both parts of the model gossip."""

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            keras.utils.set_random_seed(3)
            self.first, self.second = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)

        def compile(self, **options):
            super().compile(**options)
            self.other = momentum(0.05)

        def call(self, x):
            return self.second(self.first(x))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            for optimizer, layer in ((self.optimizer, self.first), (self.other, self.second)):
                own = layer.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))
            return {"loss": loss}

    with strategy():
        model = compiled(Pair(), metrics=None)
        model.fit(*table(), batch_size=25, epochs=2, verbose=0)
        return [np.array(weight) for weight in model.get_weights()]


def own_loop():
    """A loop of the script's own: gradients are averaged, as without gossip."""
    with strategy():
        x, y = table()
        model, optimizer = classifier(), momentum()
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return [np.array(weight) for weight in model.get_weights()]


def ring(rows=101, epochs=4, shard=True, batch=25, uneven=False, fit=None, **chosen):
    """A run in which each row carries its number: what each rank trained on and held, epoch by epoch."""
    ranks = world.current()
    x = np.arange(rows, dtype="float32")[:, None] * [1.0, 0.5]
    y = np.arange(rows, dtype="int64")
    if shard:
        mine = slice(ranks.rank, None, ranks.size)
        if uneven:
            mine = slice(0, rows // 5) if ranks.rank == 0 else slice(rows // 5, None)
            mine = mine if ranks.rank == 0 else slice(rows // 5 + ranks.rank - 1, None, ranks.size - 1)
        x, y = x[mine], y[mine]
    given = x.copy()

    class Trace(keras.Model):
        def train_step(self, data):
            x, y = data
            if int(
                batch_share.current().rows
            ):  # a rank with no row of a batch takes one all the same, which counts nothing
                trained[-1].append(y.numpy().tolist())
            assert (x.numpy()[:, 0] == y.numpy()).all() and (x.numpy()[:, 1] == y.numpy() / 2).all()
            return super().train_step(data)

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            trained.append([])
            for ring in there() - before:
                ring.rest()
                held.append(ring.columns[1].tolist())

    def there():
        return {one for one in notes.having(local_batch._Number) if isinstance(one, rings.Ring)}

    before, trained, held = there(), [], []
    with strategy(**chosen):
        inputs = keras.Input((2,))
        model = Trace(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", run_eagerly=True)
        model.optimizer.learning_rate = 1e-9
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, callbacks=[Epochs()], **(fit or {}))
    assert (given == x).all()
    return {"trained": trained, "held": held, "memory": sorted({len(rows) for rows in held})}


def digits(name="gossip", epochs=6, **chosen):
    """Accuracy of a small convnet on scikit-learn's digits, on rows that it was not trained on; how far apart weights
    were before they were averaged last."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    with strategy(strategy=name, **chosen):
        keras.utils.set_random_seed(7)
        body = [keras.layers.Conv2D(16, 3, activation="tanh"), keras.layers.AveragePooling2D(2), keras.layers.Flatten()]
        model = compiled(keras.Sequential([keras.Input((8, 8, 1)), *body, keras.layers.Dense(10)]), momentum(0.05))
        model.fit(images[:1400], labels[:1400], batch_size=64, epochs=epochs, verbose=0)
        spread = getattr(strategies.current(), "spreads", {}).get(model, 0.0)
        return numbers(model.evaluate(images[1400:], labels[1400:], verbose=0))[1], spread


class Enough(Exception):
    """One rank has seen enough."""


class Early(keras.callbacks.Callback):
    """Ends the training of one rank, and not of the others."""

    def on_train_batch_end(self, batch, logs=None):
        if world.current().rank == 1 and batch == 1:
            raise Enough


def leaves_early():
    """One rank goes to `evaluate` while the others train."""
    x, y = table()
    with strategy():
        model = compiled(classifier())
        try:
            model.fit(x, y, batch_size=10, verbose=0, callbacks=[Early()])
        except Enough:
            model.evaluate(x, y, verbose=0)
