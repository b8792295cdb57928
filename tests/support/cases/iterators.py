"""Compiled steps that take their batches by themselves: from an iterator of the script, or from a pipeline."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.row_partition import span
from tests.support.cases.common import table

TAKEN = 6  # batches


def pipeline(kind, rows=50, size=15):
    """Batches without end, the fourth of five rows.

    Args:
        kind: "plain", "map" (work that ranks divide), "own" (the rank's own rows, which together are the batch).
    """
    if kind == "own":
        rows, size = 48, 12
    x, y = table(rows)
    if kind == "own":
        rank, ranks = world.rank(), world.size()
        mine = np.concatenate(
            [np.arange(low, low + size)[slice(*span(size, rank, ranks))] for low in range(0, rows, size)]
        )
        x, y, size = x[mine], y[mine], size // ranks
    data = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "map":
        data = data.map(lambda a, b: (a * 1.5, b))
    return data.batch(size).repeat()


class Training:
    """A small network with dropout, and its step."""

    def __init__(self, rate):
        keras.utils.set_random_seed(7)
        dense = functools.partial(keras.layers.Dense, activation="tanh")
        self.model = keras.Sequential(
            [keras.layers.Input((6,)), dense(4), keras.layers.Dropout(rate, seed=5), dense(3)]
        )
        self.optimizer = keras.optimizers.SGD(0.05)
        self.metric = keras.metrics.Mean()
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def __call__(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self.model(x, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        self.metric.update_state(loss)
        return loss


def closure(step, data):
    it = iter(data)
    taken = tf.function(lambda: step(*next(it)))
    return [float(taken()) for _ in range(TAKEN)]


def inner_function(step, data):
    """The iterator is used in a function that the step calls."""
    it = iter(data)
    get = tf.function(lambda: next(it))
    taken = tf.function(lambda: step(*get()))
    return [float(taken()) for _ in range(TAKEN)]


def branches(step, data):
    a, b = iter(data), iter(data.skip(1))
    taken = tf.function(lambda i: step(*tf.cond(i % 2 == 0, lambda: next(a), lambda: next(b))))
    return [float(taken(tf.constant(i))) for i in range(TAKEN)]


def argument(step, data):
    it = iter(data)
    taken = tf.function(lambda it: step(*next(it)))
    return [float(taken(it)) for _ in range(TAKEN)]


def handed_on(step, data):
    """An argument of a function that hands it on to another, as Orbit's loops do."""
    its = {"train": iter(data)}
    one = tf.function(lambda it: tf.distribute.get_strategy().run(step, args=next(it)))

    @tf.function
    def several(its, count):
        for _ in tf.range(count):
            one(its["train"])

    several(its, tf.constant(TAKEN // 2))
    several(its, tf.constant(TAKEN // 2))


def in_range(step, data):
    it = iter(data)

    @tf.function
    def several(count):
        for _ in tf.range(count):
            step(*next(it))

    several(tf.constant(TAKEN // 2))
    several(tf.constant(TAKEN // 2))


def optional(step, data):
    it = iter(data)

    @tf.function
    def taken(it):
        batch, loss = it.get_next_as_optional(), 0.0
        if batch.has_value():
            loss = step(*batch.get_value())
        return loss

    return [float(taken(it)) for _ in range(TAKEN)]


def enumerated(step, data):
    """A pipeline that is made inside of the function."""
    data = data.take(TAKEN)

    @tf.function
    def all_of_it():
        for _, (x, y) in data.enumerate():
            step(x, y)

    all_of_it()


def inside(step, data):
    """An iterator that is made inside of the function."""

    @tf.function
    def several():
        it = iter(data)
        for _ in tf.range(TAKEN // 2):
            step(*next(it))

    several()
    several()


def loop(step, data):
    data = data.take(TAKEN)

    @tf.function
    def all_of_it():
        for x, y in data:
            step(x, y)

    all_of_it()


def compiled_inside_eager(step, data):
    """A compiled loop that only looks on, between the batches of an eager one and their steps."""
    other = data.take(2)

    @tf.function
    def look():
        total = 0.0
        for x, _ in other:
            total += tf.reduce_sum(x)
        return total

    compiled = tf.function(step)
    for x, y in data.take(TAKEN):
        look()
        compiled(x, y)


def form(name, kind="plain"):
    """Weights and losses of a form, a function of this module."""
    step = Training(rate=0.0 if kind == "own" else 0.3)
    losses = globals()[name](step, pipeline(kind))
    return {"losses": losses, "mean": float(step.metric.result()), "weights": step.model.get_weights()[:4]}


def signature():
    """An iterator for which the script says what its elements are: the error."""
    data = pipeline("map")
    step = tf.function(lambda it: next(it)[1], input_signature=[tf.data.IteratorSpec(data.element_spec)])
    return step(iter(data)).numpy()


def minimized(kind, how):
    """An optimizer of Keras 2, of a loss that takes the batch by itself; `tape`, the gradients of `tf.gradients`."""
    from tests.support.cases.keras2 import keras2

    sgd = {"new": keras2().optimizers.SGD, "legacy": keras2().optimizers.legacy.SGD}[kind](0.05)
    weights = tf.Variable(tf.zeros((6, 1)))
    it = iter(pipeline("plain"))

    def loss():
        x, y = next(it)
        return tf.reduce_mean((x @ weights - tf.cast(y, tf.float32)[:, None]) ** 2)

    def step():
        if how == "gradients":
            sgd.apply_gradients(zip(tf.gradients(loss(), [weights]), [weights], strict=True))
        else:
            sgd.minimize(loss, [weights])

    step = step if how == "eager" else tf.function(step)
    for _ in range(TAKEN):
        step()
    return weights.numpy()


def collected():
    """Weights after three loops; what is left of one is collected on one rank in the middle of the next, or before."""
    weights = tf.Variable(tf.ones([6]))
    data = pipeline("plain")

    def walk(left):
        iterator = iter(data)
        for number in range(3):
            x, y = next(iterator)
            if number == 1 and world.rank() == 0:
                left.clear()
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - tf.cast(y, tf.float32)) ** 2)
            weights.assign_sub(1e-3 * tape.gradient(loss, weights))
        return [iterator]

    first = walk([])
    second = walk(first)
    if world.rank() == 0:
        second.clear()
    walk([])
    return {"weights": weights.numpy()}


def tuned(enabled):
    """Whether tf.data tunes a pipeline while it is read.

    Args:
        enabled: what the script asks for; None: nothing.
    """
    data = tf.data.Dataset.range(3).map(lambda number: number + 1, num_parallel_calls=tf.data.AUTOTUNE)
    if enabled is not None:
        options = tf.data.Options()
        options.autotune.enabled = enabled
        data = data.with_options(options)
    iterator = iter(data)
    assert [int(one) for one in iterator] == [1, 2, 3]
    try:
        return bool(tf.data.experimental.get_model_proto(iterator).nodes)
    except tf.errors.NotFoundError:
        return False
