"""Trainings in which rows are left out, and what each of them knows of its rows."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf.core import world
from matex_tf.features.samples import score_files
from matex_tf.features.samples.options import Scored
from matex_tf.features.samples.scoring import uniform
from matex_tf.readers import DataSet
from matex_tf.state import run_state
from tests.support.cases.common import classifier, compiled, crossentropy, momentum, result_of, table
from tests.support.cases.pipe import chosen

ROWS, BATCH, EPOCHS = 203, 20, 6


class Own(keras.Model):
    """A `train_step` of its own, which calls `compute_loss`."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), sample_weight)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


class Batches(keras.utils.PyDataset):
    """Batches of arrays."""

    def __init__(self, x, y, **options):
        super().__init__(**options)
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // BATCH)

    def __getitem__(self, number):
        here = slice(number * BATCH, (number + 1) * BATCH)
        return self.x[here], self.y[here]


def data_of(form, x, y):
    """Arguments of `fit`."""
    if form == "weights":
        return (x, y), {"sample_weight": (np.arange(len(x)) % 5 / 2).astype("float32"), "batch_size": BATCH}
    if form == "class_weight":
        return (x, y), {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}, "batch_size": BATCH}
    if form == "split":
        return (x, y), {"validation_split": 0.25, "batch_size": BATCH}
    if form == "in order":
        return (x, y), {"shuffle": False, "batch_size": BATCH}
    if form == "batches":
        return (x[: BATCH * 10], y[: BATCH * 10]), {"shuffle": "batch", "batch_size": BATCH}
    if form == "tf.data":
        data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 1.0, y))
        return (data.shuffle(300).batch(BATCH).prefetch(2),), {}
    if form == "PyDataset":
        return (Batches(x, y),), {}
    if form == "workers":
        return (Batches(x, y, workers=2),), {"shuffle": False}
    return (x, y), {"batch_size": BATCH}


def trained(form="", rule="", by="loss", rate=0.6, rows=ROWS, epochs=EPOCHS, tmp="", model="", more=None, **changes):
    """A training that leaves out rows; which, and what it comes to."""
    x, y = table(rows=rows)
    y = np.where(np.arange(rows) % 11 == 0, (y + 1) % 3, y).astype("int32")  # some labels are wrong
    path = f"{tmp}/scores.csv"
    run_state.current().begin(Scored())  # as in a script of its own
    with chosen(prune_samples=rate, prune_samples_by=by, sample_scores=path, **changes):
        net = made(model)
        compiled(net, optimizer=optimizer_of(rule), **options_of(model))
        if model == "two outputs":
            y = {"a": y, "b": x[:, :1]}
        given, options = data_of(form, x, y)
        history = net.fit(*given, epochs=epochs, verbose=0, **options, **(more or {}))
        used, ranks = history.history["rows_used"], world.current()
        ranks.barrier("read the scores")
        with open(path) as file:
            scores = [(int(row), float(score or "nan"), int(count)) for row, score, count in list(csv.reader(file))[1:]]
        evaluated = net.evaluate(x, y, verbose=0)
    count = np.array([count for _, _, count in scores])
    return result_of(
        net, history, used=used, count=count, scores=np.array([score for _, score, _ in scores]), evaluated=evaluated
    )


def made(kind):
    """A model."""
    keras.utils.set_random_seed(4)
    if kind == "own step":
        inputs = keras.Input((6,))
        return Own(inputs, layers.Dense(3)(layers.Dense(8, activation="tanh")(inputs)))
    if kind == "two outputs":
        inputs = keras.Input((6,))
        hidden = layers.Dense(8, activation="tanh")(inputs)
        return keras.Model(inputs, {"a": layers.Dense(3, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)})
    if kind == "codec":  # little is sent as it is
        return keras.Sequential([keras.Input((6,)), layers.Dense(8000, activation="tanh"), layers.Dense(3)])
    if kind == "layers":
        parts = [layers.Dense(16), layers.BatchNormalization(), layers.Activation("relu"), layers.Dropout(0.3)]
        return keras.Sequential([keras.Input((6,)), *parts, layers.Dense(3)])
    return classifier()


def options_of(kind):
    if kind == "own step":
        return {"metrics": None}
    if kind == "two outputs":
        return {"loss": {"a": crossentropy(), "b": "mse"}, "loss_weights": {"a": 1.0, "b": 0.5}, "metrics": None}
    return {"jit_compile": True} if kind == "xla" else {"run_eagerly": True} if kind == "eager" else {}


def optimizer_of(rule):
    from keras import optimizers

    if rule == "schedule":
        return optimizers.SGD(optimizers.schedules.CosineDecay(0.2, EPOCHS * -(-ROWS // BATCH)), momentum=0.5)
    if rule == "accumulation":
        return momentum(0.05, gradient_accumulation_steps=3)
    if rule == "scaled":
        return optimizers.LossScaleOptimizer(momentum(0.05), initial_scale=64.0)
    return momentum(0.05)


def linear(rate, rows=90, batch=8, epochs=5):
    """A linear model on rows in order; the weights, and what InfoBatch comes to in NumPy."""
    random = np.random.RandomState(1)
    x = random.normal(size=(rows, 4)).astype("float32")
    y = (x @ random.normal(size=(4, 1)) + 0.3 * random.normal(size=(rows, 1)) ** 3).astype("float32")
    keras.utils.set_random_seed(11)
    run_state.current().begin(Scored())
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    with chosen(prune_samples=rate):
        history = model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    weights, scores, used, logged = np.zeros((4, 1)), np.full(rows, np.nan), [], []
    for epoch in range(epochs):
        factor = np.ones(rows)
        if 0 < epoch < int(0.875 * epochs):
            below = scores < scores.mean()
            factor[below] = 1 / (1 - rate)
            factor[below & (uniform(np.arange(rows, dtype=np.uint64), 12, epoch) < rate)] = 0
        there, losses = np.flatnonzero(factor), np.zeros(rows)
        for low in range(0, len(there), batch):
            here = there[low : low + batch]
            off = x[here] @ weights - y[here]
            losses[here] = scores[here] = off[:, 0] ** 2
            weights = weights - 0.05 * 2 * (x[here] * factor[here, None]).T @ off / len(here)
        used.append(len(there))
        logged.append((losses * factor).sum() / factor.sum())
    expected = {"weights": weights.astype("float32"), "used": used, "loss": logged}
    found = {"weights": model.get_weights()[0], "used": history.history["rows_used"], "loss": history.history["loss"]}
    return found, expected


def sharded(tmp, **changes):
    """Each rank holds rows of its own; how often each was used, and how many an epoch had."""
    ranks = world.current()
    rows = 60 + 20 * ranks.rank
    x, y = table(rows=rows, seed=ranks.rank)
    run_state.current().begin(Scored())
    with chosen(prune_samples=0.6, sample_scores=f"{tmp}/scores.csv", **changes):
        net = compiled(made(""), optimizer=momentum(0.05))
        history = net.fit(x, y, epochs=5, batch_size=16, verbose=0)
        ranks.barrier("read the scores")
    with open(f"{tmp}/scores.csv") as file:
        count = [int(count) for _, _, count in list(csv.reader(file))[1:]]
    return {"used": history.history["rows_used"], "count": count, "weights": net.get_weights()}


class Heard(keras.callbacks.Callback):
    """What callbacks are told of an epoch, and how many steps they see in it."""

    def on_train_begin(self, logs=None):
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([self.params["steps"], 0, float(self.model.optimizer.learning_rate)])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1][1] += 1


def heard(by_step=False):
    """With a schedule by the epoch or by the step, and the progress bar: of each epoch the steps that callbacks are
    told, those that they see, and the learning rate as it begins; what the bar has printed; the rows that were used;
    the updates; the learning rate in the end."""
    x, y = table(rows=ROWS)
    run_state.current().begin(Scored())
    net, callbacks = compiled(made(""), optimizer=optimizer_of("schedule" if by_step else "")), [Heard()]
    if not by_step:
        callbacks.insert(0, keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 / (1 + epoch)))
    printed = io.StringIO()
    with chosen(prune_samples=0.6), contextlib.redirect_stdout(printed):
        history = net.fit(x, y, epochs=EPOCHS, batch_size=BATCH, verbose=1, callbacks=callbacks)
    return {
        "heard": callbacks[-1].epochs,
        "printed": printed.getvalue(),
        "used": [int(rows) for rows in history.history["rows_used"]],  # Keras makes floats of logs
        "updates": int(net.optimizer.iterations),
        "rate": float(net.optimizer.learning_rate),
    }


def pictured(tmp, shards):
    """The rows that a picture shows, and whether each is the image of that row; the files."""
    ranks = world.current()
    images = np.random.RandomState(3).uniform(size=(60, 8, 8, 1)).astype("float32")
    labels = (images.mean((1, 2, 3)) > 0.5).astype("int32")
    x, y = (images[ranks.rank :: ranks.size], labels[ranks.rank :: ranks.size]) if shards else (images, labels)
    if shards:
        images = np.concatenate([images[rank :: ranks.size] for rank in range(ranks.size)])
    run_state.current().begin(Scored())
    parts = [keras.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(2)]
    with (
        chosen(sample_scores=f"{tmp}/deep/scores.csv"),
        unittest.mock.patch.object(score_files, "draw", wraps=score_files.draw) as draw,
    ):
        compiled(keras.Sequential(parts), optimizer=momentum(0.05)).fit(x, y, epochs=2, batch_size=16, verbose=0)
        ranks.barrier("look at the files")
    shown = [*draw.call_args[0][1]] if draw.called else []
    drawn = draw.call_args[0][3] if draw.called else {}
    return {
        "shown": [rows.tolist() for rows in shown],
        "right": [bool((image == images[row]).all()) for row, image in drawn.items()],
        "drawn": sorted(map(int, drawn)),
        "files": sorted(os.listdir(f"{tmp}/deep")),
    }


def from_file(tmp):
    """Each rank trains on its part of a file, by `DataSet`: how often each row was used, and how many an epoch had."""
    ranks, path = world.current(), f"{tmp}/rows.csv"
    x, y = table(rows=101)
    if ranks.rank == 0:
        np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,c,d,e,f,y", comments="")
    ranks.barrier("write a file")
    run_state.current().begin(Scored())
    with chosen(prune_samples=0.6, sample_scores=f"{tmp}/scores.csv"):
        data = DataSet.open(path, y="y", one_hot=False)
        net = compiled(made(""), optimizer=momentum(0.05))
        history = net.fit(data.data, data.labels, epochs=5, batch_size=16, verbose=0)
        ranks.barrier("read the scores")
    with open(f"{tmp}/scores.csv") as file:
        count = [int(count) for _, _, count in list(csv.reader(file))[1:]]
    return {"own": len(data.labels), "used": history.history["rows_used"], "count": count, "weights": net.get_weights()}


def mean_of_batch(y_true, y_pred):
    return tf.reduce_mean(tf.square(tf.cast(y_true, tf.float32)[:, None] - y_pred))


class Alone(Own):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(reduction=None)(y, self(x, training=True)))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def refused(what):
    """Trainings in which nobody knows the loss, or the number, of a row."""
    x, y = table()
    model, options, by = classifier(), {}, "loss"
    compiled(model)
    data = (x, y)
    if what == "mean":
        model.compile("sgd", mean_of_batch)
    elif what == "step":
        inputs = keras.Input((6,))
        model = compiled(Alone(inputs, layers.Dense(3)(inputs)), metrics=None)
    elif what == "steps":
        options = {"steps_per_epoch": 2}
    elif what == "generator":
        data = (((x[low : low + 5], y[low : low + 5]) for low in range(0, 100, 5)),)
    elif what == "measure":
        model.compile("sgd", "mse")
        by = "uncertainty"
    with chosen(prune_samples=0.5, prune_samples_by=by):
        model.fit(*data, epochs=3, verbose=0, **options)
