"""Random draws of some rows of a batch, with the patches at work as if there were other ranks."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.common import batch_share, wrapping
from matex_tf.patches.random import stateful_ops, stateless_ops
from tests.support.cases.draws import of_ops

ROWS = 20


@contextlib.contextmanager
def among_ranks():
    """The patches at work as if there were other ranks."""
    before, aside = wrapping.alone, wrapping.is_aside()
    wrapping.alone = lambda: False
    wrapping.put_aside(False)  # whatever Horovod's names did in this process
    stateless_ops.install(tf)
    stateful_ops.install(tf)
    try:
        yield
    finally:
        wrapping.alone = before
        wrapping.put_aside(aside)


def share(low, high):
    """This rank's rows of a batch of ROWS."""
    low, high, total = (tf.convert_to_tensor(number) for number in (low, high, ROWS))
    return batch_share.StepShare(high - low, total, high - low, low)


def drawn(kind, dtype, shape):
    """A draw with a seed."""
    if kind == "integers":
        return tf.random.stateless_uniform(shape, [1, 2], 0, 1000, dtype)
    if kind == "bits":
        return tf.random.stateless_uniform(shape, [1, 2], None, None, dtype)
    if kind == "gamma":
        return tf.random.stateless_gamma(shape, [1, 2], tf.constant(0.7, dtype), dtype=dtype)
    return getattr(tf.random, f"stateless_{kind}")(shape, [1, 2], dtype=dtype)


def layout_is_kept(kind, dtype, rest, low, high):
    """Whether rows low to high are drawn as in the draw of all rows, bit by bit."""
    whole = drawn(kind, dtype, [ROWS, *rest])
    with batch_share.drawing(share(low, high)):
        part = drawn(kind, dtype, [high - low, *rest])
    return np.array_equal(np.asarray(tf.bitcast(part, tf.uint8)), np.asarray(tf.bitcast(whole[low:high], tf.uint8)))


#: What shapes that are numbers do not tell: sizes that are rows times something, rows along another axis.
ONLY_IN_GRAPHS = {"joined", "multiplied", "reshaped", "samples first"}


def wrong_ops(eagerly):
    """The ops that draw other numbers for some rows than for all: twice in a row, so that states must have moved on."""
    x = np.random.RandomState(0).normal(size=(ROWS, 6)).astype("float32")

    def twice(low, high, of_all):
        keras.utils.set_random_seed(7)
        generator, keras_generator = tf.random.Generator.from_seed(11), keras.random.SeedGenerator(12)

        def step(x, low, high):
            if of_all:
                return of_ops(x, generator, keras_generator)
            with batch_share.drawing(share(low, high)):
                return of_ops(x[low:high], generator, keras_generator)

        run, number = step, tf.TensorSpec([], tf.int32)
        if not eagerly:
            run = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([None, 6]), number, number)
        arguments = (tf.constant(value) for value in (x, low, high))
        x_, low_, high_ = arguments
        return [{name: np.asarray(one) for name, one in run(x_, low_, high_).items()} for _ in range(2)]

    expected, found = twice(0, ROWS, True), set()
    for low, high in ((7, 13), (13, 20)) if eagerly else ((0, 7), (7, 13), (19, 20)):
        wrong = {
            name
            for one, other in zip(expected, twice(low, high, False), strict=True)
            for name in one
            if not np.array_equal(one[name][low:high], other[name])
        }
        found |= wrong - (ONLY_IN_GRAPHS if eagerly else set())
    return found
