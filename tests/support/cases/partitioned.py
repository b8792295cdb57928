"""Steps that look across rows, keep state or change gradients themselves, with `--partitioner on`."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import RanksDisagree
from matex_tf.patches.common import log_once, model_state
from matex_tf.patches.fit.step import partitioned_step
from matex_tf.patches.partition.labels import CannotPartition
from matex_tf.patches.partition.step import Partitioned
from matex_tf.state import run_state

ROWS, BATCH = 70, 23  # the last batch has one row, fewer than ranks


class Counting(layers.Layer):
    """Counts the rows that it has seen, and follows their largest entries."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, name="rows")
        self.largest = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="largest")

    def call(self, x, training=False):
        if training:
            self.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
            self.largest.assign(0.9 * self.largest + 0.1 * tf.reduce_max(x, 0))
        return x - self.largest


class Centralizing(keras.optimizers.Adam):
    """Takes its mean from each gradient."""

    def update_step(self, gradient, variable, learning_rate):
        axes = list(range(len(gradient.shape) - 1))
        centered = gradient - tf.reduce_mean(gradient, axes, keepdims=True) if axes else gradient
        super().update_step(centered, variable, learning_rate)


class Embedding(keras.Model):
    """A model with a loss of its own over all rows of a batch."""

    def __init__(self, loss):
        super().__init__()
        self.body, self.of = layers.Dense(8), loss

    def call(self, x):
        return self.body(x)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.of(self, x, y)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "twice": 2 * loss}


def _hard_triplets(model, x, y):
    rows = model(x)
    apart = tf.reduce_sum(tf.square(rows[:, None] - rows[None]), -1)
    alike = tf.cast(y[:, None] == y[None], tf.float32)
    far, near = tf.reduce_max(apart * alike, 1), tf.reduce_min(apart + 1e3 * alike, 1)
    of_one = tf.reduce_mean(tf.reduce_max(tf.squeeze(rows[:, None]), 0))  # a batch of one row loses that axis
    return tf.reduce_mean(tf.nn.relu(far - near + 1.0)) + 0.1 * of_one


def _contrast(model, x, y):
    both = tf.concat([model(x + 0.1), model(x - 0.1)], 0)
    both = tf.math.l2_normalize(both, 1)
    size = tf.shape(x)[0]
    alike = both @ tf.transpose(both) / 0.5 - 1e9 * tf.eye(2 * size)
    other = tf.concat([tf.range(size, 2 * size), tf.range(size)], 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(other, alike))


def _penalty(model, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        score = tf.reduce_sum(model(x) ** 2, 1)
    slope = tf.sqrt(tf.reduce_sum(tape.gradient(score, x) ** 2, 1) + 1e-6)
    return tf.reduce_mean(score) * 0.1 + tf.reduce_mean((slope - 1.0) ** 2)


_LOSSES = {"triplets": _hard_triplets, "contrast": _contrast, "penalty": _penalty}


def _model(form):
    if form in _LOSSES:
        model = Embedding(_LOSSES[form])
        model.build((None, 12))
        model.compile(keras.optimizers.SGD(0.05))
        return model
    dense = [layers.Dense(16, "relu"), layers.Dense(4)]
    body = {
        "state": [Counting(), *dense],
        "centralized": dense,
        "batch norm": [layers.Dense(16), layers.BatchNormalization(), layers.Dropout(0.3, seed=5), *dense],
        "images": [layers.Reshape((3, 4, 1)), layers.Conv2D(6, 2, activation="relu"), layers.Flatten(), *dense],
        "recurrent": [layers.Reshape((4, 3)), layers.LSTM(5), layers.Dense(4)],
        "accumulated": dense,
    }[form]
    model = keras.Sequential([keras.Input((12,)), *body])
    optimizer = {
        "centralized": Centralizing(0.01),
        "accumulated": keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    }.get(form, keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])
    return model


def fitted(form):
    """What `fit`, `train_on_batch`, `evaluate` and `predict` leave behind."""
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    try:
        keras.utils.set_random_seed(1)
        model, random = _model(form), np.random.RandomState(0)
        x, y = random.rand(ROWS, 12).astype("float32"), random.randint(0, 4, ROWS)
        own = form in _LOSSES
        validation = None if own else (x, y)
        history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, validation_data=validation).history
        on_batch = model.train_on_batch(x[:7], y[:7], return_dict=True)
        logs = {} if own else model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
        return {
            "history": history,
            "on batch": {name: float(value) for name, value in on_batch.items()},
            "logs": logs,
            "predictions": np.asarray(model.predict(x[:30], verbose=0)),
            "weights": [np.asarray(weight) for weight in model.weights],
            "counted": int(model.optimizer.iterations.numpy()),
        }, model_state.of(model).whole
    finally:
        settings.use(before)


class Numbered(keras.Model):
    """Computes with the number of rows that one rank would see, beside constants of as many rows; keeps a state."""

    def __init__(self):
        super().__init__()
        self.body, self.end = layers.Dense(4), layers.Dense(1)

    def call(self, x):
        rows = tf.reshape(self.body(x), [x.shape[0], 2, 2]) + tf.ones((8, 2, 2))
        return self.end(tf.reshape(rows, [x.shape[0], 4])) / (x.shape[0] / 8)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(x, training=True) - y) ** 2) / x.shape[0]
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "rows": tf.constant(float(x.shape[0]))}


def numbered(kind):
    """What `fit` and its kin leave behind if every batch has 8 rows.

    Args:
        kind: "stateful": layers that keep a state for each row; "number": a step that needs the number of rows.
    """
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    try:
        keras.utils.set_random_seed(3)
        x = np.random.RandomState(0).rand(24, 6).astype("float32")
        y, model = x.sum(1)[:, None], Numbered()
        if kind == "stateful":
            body = [layers.Reshape((3, 2)), layers.LSTM(4, stateful=True, return_sequences=True)]
            body += [layers.GRU(4, stateful=True), layers.Dense(1)]
            model = keras.Sequential([keras.Input(batch_shape=(8, 6)), *body])
        model.compile(keras.optimizers.SGD(0.02), "mse", metrics=["mae"] if kind == "stateful" else None)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
        history = model.fit(data, epochs=2, verbose=0).history
        history["arrays"] = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, validation_data=data).history
        history["on batch"] = np.asarray(model.train_on_batch(x[:8], y[:8])).tolist()
        found = [model.predict(data, verbose=0), model.predict_on_batch(x[:8])]
        return history, tf.nest.map_structure(np.asarray, found), [np.asarray(weight) for weight in model.weights]
    finally:
        settings.use(before)


class Drawn(keras.Model):
    """Computes of as many random rows as it knows that a batch has, as the steps of many GANs do."""

    def __init__(self):
        super().__init__()
        self.body, self.end = layers.Dense(6), keras.Sequential([layers.Dense(8, "relu"), layers.Dense(1)])

    def train_step(self, x):
        with tf.GradientTape() as tape:
            drawn = self.body(tf.random.normal([16, 3]))
            labels = tf.concat([tf.ones([16, 1]), tf.zeros([16, 1])], 0)
            loss = tf.reduce_mean((self.end(tf.concat([drawn, x], 0)) - labels) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"step_loss": loss}


def drawn():
    """What `fit` leaves behind, and for how many rows the step was traced."""
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    try:
        keras.utils.set_random_seed(3)
        x, model = np.random.RandomState(0).rand(48, 6).astype("float32"), Drawn()
        model.compile(keras.optimizers.SGD(0.02))
        history = model.fit(tf.data.Dataset.from_tensor_slices(x).batch(16, drop_remainder=True), epochs=2, verbose=0)
        own = getattr(model.train_function, "step", None)  # one rank has Keras' function
        traced = [rows for step in own.graphs.partitioned.values() for rows in step._traced] if own else [0]
        weights = [np.asarray(weight) for weight in model.weights]
        return {"history": history.history, "weights": weights}, traced[-1]
    finally:
        settings.use(before)


class Bags(keras.Model):
    """Sums of embeddings over rows of any length."""

    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(9, 4), name="table")
        self.dense = layers.Dense(1)

    def call(self, x):
        found = tf.gather(self.table, tf.cast(x, tf.int32))
        return self.dense(tf.reduce_mean(found, 1) if isinstance(x, tf.RaggedTensor) else found[:, 0])


class Pairs(keras.Model):
    """A step that compares the halves of a second tensor, which has rows of its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def train_step(self, data):
        x, others = data
        with tf.GradientTape() as tape:
            both = self.dense(tf.concat([x, others, others], 0))
            both += tf.random.uniform(tf.shape(both))  # of one op, whatever the sizes are
            rest, many = both[tf.shape(x)[0] :], tf.shape(others)[0]
            loss = tf.reduce_mean(rest[:many] * rest[many:]) + tf.reduce_mean(both[: tf.shape(x)[0]])
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"step_loss": loss}


def two_sizes(most):
    """What `fit` leaves behind where a batch joins 4 rows and 12 others, and the last one 4 rows and 6 others.

    Args: most: shapes for which a step is rebuilt.
    """
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    most_before, partitioned_step.MOST_SHAPES = partitioned_step.MOST_SHAPES, most
    try:
        keras.utils.set_random_seed(5)
        random, model = np.random.RandomState(0), Pairs()
        model.dense.build((None, 3))
        model.compile(keras.optimizers.SGD(0.1))
        history = []
        for drops in (False, True):  # the second promises one size, which the first trace of one rank does as well for
            rows, others = (
                tf.data.Dataset.from_tensor_slices(random.rand(count, 3).astype("float32")).batch(size, drops)
                for count, size in ((12, 4), (30, 12))
            )
            history += model.fit(tf.data.Dataset.zip((rows, others)), epochs=2, verbose=0).history["step_loss"]
        return history, [np.asarray(weight) for weight in model.weights]
    finally:
        partitioned_step.MOST_SHAPES = most_before
        settings.use(before)


def built_before_it_is_traced():
    """Names of variables, and what `fit` gives, of a model with no slots yet; and how often each update was traced."""
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    update, updates = keras.optimizers.Adafactor.update_step, []

    def counted(optimizer, gradient, variable, learning_rate):
        updates.append(variable.name)
        return update(optimizer, gradient, variable, learning_rate)

    try:
        keras.optimizers.Adafactor.update_step = counted
        keras.utils.set_random_seed(3)
        random = np.random.RandomState(0)
        body = [layers.Dense(2, activation="softmax"), layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((3,)), *body])
        model.compile(keras.optimizers.Adafactor(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
        data = random.rand(ROWS, 3).astype("float32"), np.arange(ROWS) % 2
        history = model.fit(*data, batch_size=BATCH, epochs=2, verbose=0).history
        names = [variable.path for variable in [*model.optimizer.variables, *model.metrics_variables]]
        return (names, history), len(updates) / len(set(updates))
    finally:
        keras.optimizers.Adafactor.update_step = update
        settings.use(before)


def _batches(kind, x, y):
    """Batches of rows, ragged and sparse ones and of several lengths among them."""
    if kind == "ragged":
        lengths = 1 + np.arange(ROWS) % 5
        rows = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()) % 9, lengths)
        return tf.data.Dataset.from_tensor_slices((rows, y)).batch(BATCH)
    if kind == "lengths":
        parts = [tf.data.Dataset.from_tensor_slices((x[:, :n, None], y)).batch(BATCH) for n in (5, 7, 12)]
        return parts[0].concatenate(parts[1]).concatenate(parts[2])
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


class _Refused(Partitioned):
    def __init__(self, *_, **__):
        raise CannotPartition("a test says so")


class _Failing(Partitioned):
    def __init__(self, *_, **__):
        [][0]


def computed_whole(kind, shards=False):
    """What `fit` leaves behind where a step cannot be rebuilt for rows, or for each of several lengths; and lines.

    Args:
        kind: "ragged"; "lengths"; "cannot": the rebuild says so; "fails": it has an error.
        shards: whether each rank has rows of its own.
    """
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    original = partitioned_step.Partitioned
    said = set(run_state.part(log_once.Said))
    try:
        if kind in ("cannot", "fails"):
            partitioned_step.Partitioned = _Refused if kind == "cannot" else _Failing
        keras.utils.set_random_seed(1)
        random, ranks = np.random.RandomState(0), world.current()
        x, y = random.rand(ROWS, 12).astype("float32"), random.rand(ROWS, 1).astype("float32")
        if kind == "ragged":
            model = Bags()
        elif kind == "lengths":
            body = [layers.Conv1D(4, 3, padding="same"), layers.GlobalAveragePooling1D(), layers.Dense(1)]
            model = keras.Sequential([keras.Input((None, 1)), *body])
        else:
            body = [layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)]
            model = keras.Sequential([keras.Input((12,)), *body])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
        if shards and not ranks.is_single:
            x, y = x[ranks.rank :: ranks.size], y[ranks.rank :: ranks.size]
        if shards:
            history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        else:
            data = _batches(kind, x, y)
            history = model.fit(data, epochs=2, verbose=0, validation_data=data).history
        lines = [line for line in run_state.part(log_once.Said) - said if "computed whole" in line]
        return {"history": history, "weights": [np.asarray(weight) for weight in model.weights]}, lines
    finally:
        told = run_state.part(log_once.Said)
        told.difference_update([line for line in told if "computed whole" in line])
        partitioned_step.Partitioned = original
        settings.use(before)


def rebuilt_by_some():
    """What the ranks say if the step cannot be rebuilt on the last one alone."""
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    original = partitioned_step.Partitioned
    try:
        if world.rank() == world.size() - 1:
            partitioned_step.Partitioned = _Refused
        model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
        return ""
    except RanksDisagree as error:
        return str(error)
    finally:
        partitioned_step.Partitioned = original
        settings.use(before)


def coded(codec):
    """Metrics after one step of a wide model, and its weights, on hosts of one rank each."""
    from tests.support.cases import pipe

    with pipe.chosen("abc", codec=codec, partitioner=True):
        keras.utils.set_random_seed(5)
        random = np.random.RandomState(0)
        x, y = random.rand(30, 6).astype("float32"), random.rand(30, 3).astype("float32")
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3000), layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
        logs = [model.train_on_batch(x, y, return_dict=True) for _ in range(2)]
        return {
            "logs": {name: float(value) for name, value in logs[0].items()},
            "weights": [np.asarray(weight) for weight in model.trainable_variables],
        }, model_state.of(model).whole


class Ranking(keras.Model):
    """Compares each row with the others of its batch, also when it predicts; counts its batches, and draws."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
        self.noise = keras.random.SeedGenerator(4)
        self.seen = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        self.seen.assign_add(1)
        rows = self.dense(x)
        noise = keras.random.normal(tf.shape(rows), seed=self.noise)
        return {"ranks": tf.argsort(rows, 0), "centered": rows - tf.reduce_mean(rows, 0) + 0.1 * noise}


def predicted():
    """What `predict` and `predict_on_batch` give, before and after the model is compiled to run eagerly."""
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    try:
        keras.utils.set_random_seed(2)
        random = np.random.RandomState(0)
        x, model = random.rand(ROWS, 5).astype("float32"), Ranking()
        found = [model.predict(x, batch_size=BATCH, verbose=0), model.predict_on_batch(x[:40])]
        found.append(model.predict(tf.data.Dataset.from_tensor_slices(x).batch(BATCH), verbose=0))
        found.append([model.predict_on_batch(x[:n]) for n in (1, 2, 9, 9, 9, 9)])
        return tf.nest.map_structure(np.asarray, found), int(model.seen.numpy())
    finally:
        settings.use(before)


def compiled_anew():
    """Whether a model that is compiled to run eagerly does so, and whether its steps were partitioned before."""
    before = settings.use(dataclasses.replace(settings.current(), partitioner=True))
    try:
        keras.utils.set_random_seed(2)
        eagerly = []

        class Watched(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(1)

            def call(self, x):
                eagerly.append(tf.executing_eagerly())
                return self.dense(x)

        model, x = Watched(), np.ones((8, 3), "float32")
        history = []
        for eager in (False, True):
            model.compile("sgd", "mse", run_eagerly=eager)
            eagerly.clear()
            history += model.fit(x, x[:, :1], epochs=2, verbose=0).history["loss"]
        return history, eagerly[-1]
    finally:
        settings.use(before)
