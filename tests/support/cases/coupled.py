"""Losses and metrics that look across the rows of a batch."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf.patches.common import log_once
from matex_tf.state import run_state
from tests.support.cases.common import by_patches, momentum, numbers, ready, result_of, table, weights_for

ROWS, BATCH = 51, 12  # four batches of 12 and one of 3: fewer rows than ranks on four


def model_of(width=3, activation="sigmoid", masked=False):
    keras.utils.set_random_seed(7)
    return keras.Sequential([
        layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(width, activation=activation)
    ])  # fmt: skip


LOSSES = {
    "dice": lambda: keras.losses.Dice(),
    "dice_sum": lambda: keras.losses.Dice(reduction="sum"),
    "dice_by_class": lambda: keras.losses.Dice(axis=(0,), reduction="sum"),
    "dice_by_row": lambda: keras.losses.Dice(axis=(1,)),
    "dice_by_name": lambda: "dice",
    "dice_function": lambda: keras.losses.dice,
    "tversky": lambda: keras.losses.Tversky(alpha=0.3, beta=0.7),
    "tversky_by_name": lambda: "tversky",
    "circle": lambda: keras.losses.Circle(gamma=2.0),
    "cosine_over_rows": lambda: keras.losses.CosineSimilarity(axis=0),
    "hinge": lambda: keras.losses.Hinge(),
    "squared_hinge": lambda: keras.losses.SquaredHinge(),
}


def loss(kind, weighted=False, masked=False, eager=False):
    """A loss of Keras in `fit`, with sample weights, a mask, or run eagerly; it is a metric of `evaluate` as well."""
    x, y = table(ROWS)
    targets = np.eye(3, dtype="float32")[y]
    width, activation = (3, "sigmoid")
    if kind == "circle":
        targets, activation = y, None
    elif "hinge" in kind:
        targets = np.where(np.arange(ROWS)[:, None] == 7, -1, targets).astype(
            "float32"
        )  # one label of many is no 0 or 1
        activation = "tanh"
    keras.utils.set_random_seed(7)
    inputs = layers.Input((6,))
    hidden = layers.Dense(8, activation="tanh")(layers.Masking(-9.0)(inputs[:, None]) if masked else inputs)
    outputs = layers.Dense(width, activation=activation)(hidden)
    outputs = layers.UnitNormalization()(outputs) if kind == "circle" else outputs
    model = keras.Model(inputs, outputs)
    if masked:
        x = np.where(np.arange(ROWS)[:, None] % 5 == 0, -9, x).astype("float32")
        targets = targets[:, None]
    model.compile(momentum(0.05), LOSSES[kind](), run_eagerly=eager)
    ready(model)
    options = {"sample_weight": weights_for(ROWS)} if weighted else {}
    history = model.fit(x, targets, batch_size=BATCH, epochs=2, verbose=0, **options)
    return result_of(model, history, evaluate=numbers(model.evaluate(x, targets, batch_size=20, verbose=0)))


def contrastive(y_true, y_pred):
    """A value for each row, by all other rows."""
    y_pred = tf.math.l2_normalize(y_pred, 1)
    logits = tf.matmul(y_pred, y_pred, transpose_b=True)
    return tf.reduce_logsumexp(logits, 1) - tf.reduce_sum(y_true * y_pred, 1)


class Variance(keras.losses.Loss):
    """A loss of the whole batch, as a class."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.math.reduce_variance(y_true - y_pred, 0))


LOSSES.update(
    own_contrastive=lambda: contrastive,
    own_sum=lambda: lambda y_true, y_pred: 0.05 * tf.reduce_sum(tf.square(y_true - y_pred)),
    own_class=lambda: Variance(),
    own_mean=lambda: lambda y_true, y_pred: tf.reduce_mean(tf.square(y_true - y_pred)),
    own_rows=lambda: lambda y_true, y_pred: tf.reduce_sum(tf.square(y_true - y_pred), -1),
)


def several_outputs():
    """Two outputs with losses across rows, and class weights on neither."""
    x, y = table(ROWS)
    keras.utils.set_random_seed(7)
    inputs = layers.Input((6,))
    hidden = layers.Dense(8, activation="tanh")(inputs)
    outputs = {name: layers.Dense(3, activation="sigmoid", name=name)(hidden) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    model.compile(momentum(0.05), {"a": "dice", "b": "tversky"}, loss_weights={"a": 1.0, "b": 0.3})
    ready(model)
    targets = np.eye(3, dtype="float32")[y]
    history = model.fit(x, {"a": targets, "b": targets[::-1]}, batch_size=BATCH, epochs=2, verbose=0)
    return result_of(model, history)


def loop(compiled):
    """Dice, and a metric across rows, in a loop of the script's own."""
    x, y = table(ROWS)
    model, optimizer, dice = model_of(), momentum(0.05), keras.losses.Dice()
    f1, biggest = keras.metrics.MeanMetricWrapper(f1_score, name="f1"), Biggest()
    data = tf.data.Dataset.from_tensor_slices((x, np.eye(3, dtype="float32")[y])).batch(BATCH)

    def step(x, y):
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            value = dice(y, out)
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        f1.update_state(y, out)
        biggest.update_state(y, out)

    run = tf.function(step, reduce_retracing=True) if compiled else step
    said = []
    for _ in range(2):
        for batch in data:
            run(*batch)
        said.append([float(f1.result()), float(biggest.result())])
        f1.reset_state()
        biggest.reset_state()
    return {"weights": [np.array(weight) for weight in model.get_weights()], "said": said}


def f1_score(y_true, y_pred):
    """One number for a batch."""
    hits = tf.reduce_sum(y_true * y_pred)
    return 2 * hits / (tf.reduce_sum(y_true) + tf.reduce_sum(y_pred))


def by_class(y_true, y_pred):
    """One number for each class."""
    hits = tf.reduce_sum(y_true * y_pred, 0)
    return 2 * hits / (tf.reduce_sum(y_true, 0) + tf.reduce_sum(y_pred, 0) + 1e-3)


def by_row(y_true, y_pred):
    """One number for each row."""
    return tf.reduce_max(tf.abs(y_true - y_pred), -1)


class Biggest(keras.metrics.Metric):
    """A running maximum."""

    def __init__(self, name="biggest"):
        super().__init__(name=name)
        self.most = self.add_weight(shape=(), initializer="zeros", name="most")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.most.assign(tf.maximum(self.most, tf.reduce_max(tf.abs(y_true - y_pred))))

    def result(self):
        return self.most


class MeanF1(keras.metrics.Metric):
    """A mean over batches of something that is no mean over rows: its state is only ever added to."""

    def __init__(self, name="mean_f1"):
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.batches = self.add_weight(shape=(), initializer="zeros", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(f1_score(y_true, y_pred))
        self.batches.assign_add(1.0)

    def result(self):
        return self.total / self.batches


class Inside(keras.metrics.Metric):
    """The same by a metric inside."""

    def __init__(self, name="inside"):
        super().__init__(name=name)
        self.mean = keras.metrics.Mean()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.mean.update_state(f1_score(y_true, y_pred))

    def result(self):
        return self.mean.result()

    def reset_state(self):
        self.mean.reset_state()


class Hits(keras.metrics.Metric):
    """Counts, which add up over rows."""

    def __init__(self, name="hits"):
        super().__init__(name=name)
        self.hits = self.add_weight(shape=(), initializer="zeros", name="hits")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.hits.assign_add(tf.reduce_sum(tf.cast(tf.argmax(y_true, -1) == tf.argmax(y_pred, -1), tf.float32)))

    def result(self):
        return self.hits


class Kept(Hits):
    """The same, never reset."""

    def reset_state(self):
        pass


class Overlap(keras.metrics.MeanIoU):
    """A metric of Keras that is given something else."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(tf.argmax(y_true, -1), tf.argmax(y_pred, -1), sample_weight)


class Step(keras.Model):
    """A `train_step` with logs of its own, in an order of its own, and a metric that is fed numbers."""

    def __init__(self):
        super().__init__()
        self.net = model_of()
        self.fed = MeanF1Fed()
        self.summed = keras.metrics.Sum(name="summed")

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.fed.update_state(loss)
        self.summed.update_state(loss)
        return {"z": loss, "summed": self.summed.result(), "fed": self.fed.result(), "a": 2 * loss}


class MeanF1Fed(keras.metrics.Metric):
    """A metric that is fed a mean over the batch."""

    def __init__(self):
        super().__init__(name="fed")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.batches = self.add_weight(shape=(), initializer="zeros", name="batches")

    def update_state(self, value):
        self.total.assign_add(value)
        self.batches.assign_add(1.0)

    def result(self):
        return self.total / self.batches


def own_step(eager=False):
    """Logs of a custom `train_step`: values and order."""
    x, y = table(ROWS)
    model = Step()
    model.compile(momentum(0.05), run_eagerly=eager)
    history = model.fit(x, np.eye(3, dtype="float32")[y], batch_size=BATCH, epochs=2, verbose=0).history
    return {"history": numbers(history), "order": list(history)}


def metrics(eager=False):
    """Metrics of one's own of every sort, in `fit`, validation and `evaluate`."""
    x, y = table(ROWS)
    targets = np.eye(3, dtype="float32")[y]
    model = model_of()
    chosen = [f1_score, by_class, by_row, keras.losses.dice, Biggest(), MeanF1(), Inside(), Hits(), Kept("kept")]
    chosen.append(Overlap(3, name="overlap"))
    model.compile(
        momentum(0.05), "mse", metrics=chosen,
        run_eagerly=eager,
    )  # fmt: skip
    ready(model)
    weights = weights_for(ROWS)
    history = model.fit(
        x, targets, sample_weight=weights, batch_size=BATCH, epochs=2, verbose=0,
        validation_data=(x[:20], targets[:20], weights[:20]),
    )  # fmt: skip
    evaluated = model.evaluate(x, targets, sample_weight=weights, batch_size=20, return_dict=True, verbose=0)
    on_batch = model.test_on_batch(x[:20], targets[:20], return_dict=True)
    return {"history": numbers(history.history), "evaluate": numbers(evaluated), "on_batch": numbers(on_batch)}


def ragged():
    """A metric that is given ragged rows, and does more than add: its results are averaged, with a warning."""

    class Longest(Biggest):
        def update_state(self, rows):
            self.most.assign(tf.maximum(self.most, tf.reduce_max(tf.cast(rows.row_lengths(), tf.float32))))

    longest = Longest("longest")
    lengths = tf.ragged.range(np.arange(1, 13))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in tf.data.Dataset.from_tensor_slices(lengths).batch(4):
            longest.update_state(rows)
        value = float(longest.result())
    return {"value": value, "warned": [str(one.message) for one in caught if "longest" in str(one.message)]}


class Own(keras.Model):
    """A model whose rows depend on one another, or do not."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.left, self.right = layers.Dense(4), layers.Dense(4)
        self.dropout = layers.Dropout(0.5)

    def call(self, x, training=True):
        left, right = self.left(x), self.right(x)
        if self.kind == "tensordot":
            return keras.ops.sum(left, axis=1, keepdims=True) + tf.tensordot(left, right, 2)
        if self.kind == "random":
            left = self.dropout(left, training=True)
        return keras.ops.sum(left * right, axis=1, keepdims=True)


@by_patches
def own_model(kind):
    """Whether `fit` says that a model looks across rows if its steps are not partitioned."""
    x, _ = table(12)
    keras.utils.set_random_seed(7)
    if kind == "functional":
        inputs = layers.Input((6,))
        hidden = layers.Dense(3)(inputs)
        model = keras.Model(inputs, hidden - keras.ops.mean(hidden, axis=0, keepdims=True))
    elif kind == "layers":
        model = keras.Sequential([layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)])
    else:
        model = Own(kind)
    run_state.part(log_once.Said).clear()
    model.compile(momentum(0.01), "mse")
    model.fit(x, x[:, :1], batch_size=6, epochs=1, verbose=0)
    return {"told": [line for line in run_state.part(log_once.Said) if "looks across the rows" in line]}
