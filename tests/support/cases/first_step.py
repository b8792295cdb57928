"""Steps of a script's own, right and wrong, that are held against one rank."""

from __future__ import annotations

import contextlib
import io

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import matex_tf
from matex_tf import settings
from matex_tf.patches.common import log_once
from matex_tf.state import run_state
from tests.support.cases.common import momentum, table

ROWS, BATCH = 53, 12  # batches of 12, and one of 5


def _each(y, out):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, out)


def _contrastive(out):
    unit = tf.math.l2_normalize(out, 1)
    scores = tf.matmul(unit, unit, transpose_b=True) / 0.3
    return tf.reduce_mean(_each(tf.range(tf.shape(scores)[0]), scores))


LOSSES = {
    "mean": lambda y, out: tf.reduce_mean(_each(y, out)),
    "sum": lambda y, out: 0.1 * tf.reduce_sum(_each(y, out)),
    "contrastive": lambda y, out: _contrastive(out),
    "all rows": lambda y, out: _contrastive(matex_tf.all_rows(out)),
}


def encoder(random=True, columns=6):
    """A model whose layers may draw, and one of which is normalized over the batch."""
    keras.utils.set_random_seed(7)
    drawn = [layers.GaussianNoise(0.1), layers.BatchNormalization(), layers.Dropout(0.3)] if random else []
    return keras.Sequential([keras.Input((columns,)), layers.Dense(8, activation="tanh"), *drawn, layers.Dense(3)])


def _embedding():
    """A model with sparse gradients."""
    keras.utils.set_random_seed(7)
    seen = [layers.Rescaling(2.0, 9.0), layers.Embedding(20, 4), layers.Flatten(), layers.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *seen])


def _at_kinks():
    """A model with units whose inputs are as good as 0 for some rows of `_with_means`."""
    keras.utils.set_random_seed(7)
    kinks = [layers.Dense(16), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([keras.Input((6,)), *kinks, layers.Dense(3)])


def _with_means(x):
    """Batches of which a third of the rows are the mean of the others."""
    x = x.copy()
    for low in range(0, len(x), BATCH):
        batch = x[low : low + BATCH]
        kept = len(batch) * 2 // 3
        batch[kept:] = batch[:kept].mean(0)
    return x


class Trained(keras.Model):
    """A `train_step` that counts how often Python runs it."""

    def __init__(self, inner, loss, effect=""):
        super().__init__()
        self.inner, self.kind, self.effect, self.called = inner, loss, effect, 0
        self.tracker = keras.metrics.Mean(name="tracked")
        if effect in ("table", "counts"):
            self.words = layers.StringLookup(vocabulary=["0", "1"])
            self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def train_step(self, data):
        x, y = data
        self.called += 1
        with tf.GradientTape() as tape:
            value = LOSSES[self.kind](y, self.inner(x, training=True))
        weights = self.inner.trainable_variables
        if self.effect == "print":
            tf.print("a step", output_stream="file:///dev/null")
        if self.effect in ("table", "counts"):
            words = tf.strings.as_string(tf.cast(x[:, 0] > 0, tf.int32))
            x = x + tf.cast(self.words(words), tf.float32)[:, None] + tf.cast(self.table.size(), tf.float32)
        if self.effect == "counts":
            self.table.insert(tf.constant(1, tf.int64), tf.constant(1, tf.int64))
        if self.effect == "python":
            tf.py_function(lambda: None, [], [])
        self.optimizer.apply(tape.gradient(value, weights), weights)
        self.tracker.update_state(value)
        return {"loss": value, "tracked": self.tracker.result()}


class Computed(keras.Model):
    """A `compute_loss` of the script's own."""

    def __init__(self, inner, loss):
        super().__init__()
        self.inner, self.kind = inner, loss

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return LOSSES[self.kind](y, y_pred)


class Pair(keras.Model):
    """Two optimizers, each with a loss of its own, as a GAN has them; the second sees what the first has changed."""

    def __init__(self, loss):
        super().__init__()
        self.first, self.second, self.kind = encoder(False, 3), encoder(False), loss
        self.optimizers = [momentum(0.05), momentum(0.02)]

    def train_step(self, data):
        x, y = data
        for model, optimizer in zip((self.first, self.second), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                value = LOSSES[self.kind](y, self.first(self.second(x)) if model is self.first else model(x))
            optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return {"loss": value}


MODELS = {
    "step": lambda loss, random: Trained(encoder(random), loss),
    "print": lambda loss, random: Trained(encoder(random), loss, "print"),
    "python": lambda loss, random: Trained(encoder(random), loss, "python"),
    "table": lambda loss, random: Trained(encoder(random), loss, "table"),
    "counts": lambda loss, random: Trained(encoder(random), loss, "counts"),
    "compute_loss": lambda loss, random: Computed(encoder(random), loss),
    "pair": lambda loss, random: Pair(loss),
    "kinks": lambda loss, random: Trained(_at_kinks(), loss),
    "embedding": lambda loss, random: Trained(_embedding(), loss),
}


@contextlib.contextmanager
def _said(lines, **options):
    """With these settings, and steps that are not partitioned; the lines of this package are added to `lines`."""
    out = io.StringIO()
    run_state.part(log_once.Said).clear()
    before = settings.use(settings.current().changed(partitioner=False, **options))
    try:
        with contextlib.redirect_stderr(out):
            yield
    finally:
        settings.use(before)
    words = ("one rank", "--check")
    lines += [line for line in out.getvalue().splitlines() if any(word in line for word in words)]


def fitted(
    kind="step", loss="mean", options=None, optimizer=None, compiling=None, pipeline=False, own=False, random=False
):
    """A `fit`; its weights, logs and the lines on the check.

    Args:
        kind: of `MODELS`; loss: of `LOSSES`.
        options: settings; `optimizer`: its arguments; `compiling`: those of `compile`.
        pipeline: whether the data are one of tf.data.
        own: whether each rank has rows of its own.
        random: whether layers draw, and one is normalized over the batch.
    """
    x, y = table(ROWS)
    if own:
        mine = slice(matex_tf.rank(), None, matex_tf.size())
        x, y = x[mine], y[mine]
    x = _with_means(x) if kind == "kinks" else x
    lines = []
    with _said(lines, **(options or {})):
        model = MODELS[kind](loss, random)
        rule = momentum(0.05, **(optimizer or {}))
        model.compile(rule, **(compiling or {}))
        data = (tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH),) if pipeline else (x, y)
        size = {} if pipeline else {"batch_size": BATCH}
        history = model.fit(*data, **size, epochs=2, verbose=0, shuffle=False)
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "logs": {key: [float(value) for value in values] for key, values in history.history.items()},
        "traced": getattr(model, "called", 0),
        "lines": lines,
    }


def looped(
    loss="mean", options=None, signature=False, eager=False, changed=False, effect=False, inside=False, random=False
):
    """A loop of the script's own; its weights, what it prints, and the lines on the check.

    Args:
        signature: the step is traced once, for any number of rows.
        eager: the step is not compiled.
        changed: the step is given something else than the batch.
        effect: the step prints.
        inside: the loop runs inside of a tf.function.
        random: as for `fitted`.
    """
    x, y = table(ROWS)
    lines, losses = [], []
    model, rule, seen = encoder(random), momentum(0.05), keras.metrics.Mean()
    specs = [tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32)]

    def step(x, y):
        with tf.GradientTape() as tape:
            value = LOSSES[loss](y, model(x, training=True))
        if effect:
            tf.print("a step", output_stream="file:///dev/null")
        rule.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        seen.update_state(value)
        return value

    run = step if eager else tf.function(step, input_signature=specs if signature else None)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    @tf.function
    def epoch():
        for x, y in data:
            step(x, y)

    with _said(lines, **(options or {})):
        for _ in range(2):
            if inside:
                epoch()
                continue
            for x, y in data:
                losses.append(float(run(x + 0 if changed else x, y)))
    return {"weights": model.get_weights(), "losses": losses, "mean": float(seen.result()), "lines": lines}


def several(variants):
    """Several trainings, by name: each is arguments of `fitted`, or of `looped` where it says `loop`."""
    found = {}
    for name, given in variants.items():
        given = dict(given)
        found[name] = (looped if given.pop("loop", False) else fitted)(**given)
    return found
