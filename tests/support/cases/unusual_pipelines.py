"""Pipelines of ops that scripts use seldom: which rows the steps of two epochs get."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.support.cases.common import table
from tests.support.cases.division import SLICES, Rows, joined


def _rows():
    return SLICES(table(120))


def _of_lengths():
    """Rows of one to eight places."""
    lengths = SLICES(np.random.RandomState(1).randint(1, 9, 64).astype("int32"))
    return lengths.map(lambda length: (tf.fill((length, 6), tf.cast(length, tf.float32)), length))


def _drawn(number):
    return tf.random.stateless_normal((6,), [number, 1]), number


def _checked(x, y):
    return tf.debugging.check_numerics(x / tf.where(x[0] > 1, 0.0, 1.0), "a row"), y


def _in_windows():
    windows = _rows().window(4, shift=2, drop_remainder=True)
    rows = windows.flat_map(lambda x, y: tf.data.Dataset.zip((x.batch(4), y.batch(4))))
    return rows.map(lambda x, y: (tf.reduce_mean(x, 0), y[0])).shuffle(30, seed=1)


def _signed(x, y):
    """AutoGraph makes a graph of its `if`."""
    if y % 3 == 0:
        x = -x
    return x, y


PIPELINES = {
    "converted": lambda: _rows().map(_signed).batch(8),
    "group_by_window": lambda: _rows().group_by_window(
        lambda x, y: tf.cast(y % 3, tf.int64), lambda key, rows: rows.batch(8), window_size=8
    ),
    "bucket_by_sequence_length": lambda: (
        _of_lengths()
        .shuffle(64, seed=3)
        .bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [3, 5, 7], [8, 8, 4, 4])
    ),
    "scan": lambda: (
        _rows().scan(np.float32(0), lambda state, row: (state * 0.9 + row[0][0], (row[0] + state, row[1]))).batch(8)
    ),
    "rejection_resample": lambda: (
        _rows()
        .rejection_resample(lambda x, y: tf.cast(x[0] > 0, tf.int32), [0.5, 0.5], seed=4)
        .map(lambda of, row: row)
        .batch(8)
    ),
    "sparse": lambda: (
        _rows()
        .map(lambda x, y: (tf.sparse.from_dense(tf.nn.relu(x)), y))
        .batch(8)
        .map(lambda x, y: (tf.sparse.to_dense(x), y))
    ),
    "counter": lambda: tf.data.Dataset.counter(0, 3).take(100).map(_drawn).batch(8),
    "random": lambda: tf.data.Dataset.random(seed=4).take(96).map(_drawn).batch(8),
    "window": lambda: _in_windows().batch(8),
    "take_while": lambda: _rows().take_while(lambda x, y: x[0] < 2.3).batch(8),
    "ignore_errors": lambda: _rows().map(_checked).ignore_errors().batch(8),
    "unique": lambda: SLICES(np.arange(100, dtype="int64") % 37).unique().map(_drawn).batch(8),
    "from_tensors": lambda: tf.data.Dataset.from_tensors(next(iter(_rows().batch(16)))).repeat(5),
    "copy_to_device": lambda: _rows().batch(8).apply(tf.data.experimental.copy_to_device("/cpu:0")),
    "assert_cardinality": lambda: (
        _rows()
        .filter(lambda x, y: y % 2 == 0)
        .apply(tf.data.experimental.assert_cardinality(int((table(120)[1] % 2 == 0).sum())))
        .batch(8)
    ),
}


def walked(name):
    """The batches of two epochs, put together from the rows of all ranks."""
    keras.utils.set_random_seed(7)
    model = Rows()
    model.fit(PIPELINES[name](), epochs=2, verbose=0)
    return joined(list(model.kept))
