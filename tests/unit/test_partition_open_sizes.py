"""Sizes that a prime number of rows hides: a slice that is longer than the batch, a queue that is cut as long as it.
And lists whose elements count rows, and are whole."""

import numpy as np
import pytest
import tensorflow as tf

ROWS = (9, 2, 1)


@pytest.fixture(scope="module")
def support():
    from tests.support import partition

    return partition


def _mean(cut):
    """A mean by the number of rows or columns that the script asks for."""
    return tf.reduce_sum(cut) / tf.cast(tf.size(cut), cut.dtype)


def _singular_values(x):
    return _mean(tf.linalg.svd(x, compute_uv=False))


def _loop_over_pairs(x):
    """What goes round has a number for each row, and what comes in a row of numbers for all rows."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        all_rows = tf.cumsum(x)
        pairs = tf.tanh(tf.linalg.band_part(all_rows @ tf.transpose(all_rows), -1, 0))
        loss = _mean(tf.tanh(tf.scan(lambda last, row: 0.5 * last + tf.tanh(row), pairs, tf.zeros_like(pairs[0]))))
    return tape.gradient(loss, x)


FORMS = {
    "columns": lambda x: _mean(x[:, : tf.shape(x)[0]]),
    "three rows": lambda x: _mean((x @ tf.ones([6, 3], x.dtype))[:3]),
    "queue": lambda x: _mean(tf.reshape(tf.range(36, dtype=x.dtype), [6, 6])[: tf.shape(x)[0]]) + tf.reduce_mean(x),
    "diagonal": lambda x: _mean(tf.linalg.diag_part(x)),
    "singular values": _singular_values,
    "loop over pairs": _loop_over_pairs,
    "many rows": lambda x: _mean(x[:7930]),
    "one row": lambda x: _mean(x[-1:]) + _mean(x[:1]),
}


@pytest.mark.parametrize("form", FORMS)
def test_small_and_large_batches(support, form):
    """Fewer rows than the size that a slice asks for, and more."""
    traced = tf.function(FORMS[form]).get_concrete_function(tf.TensorSpec([None, 6], tf.float64))
    ranks = support.Ranks(3, lambda _: traced, [True])
    generator = np.random.RandomState(0)
    for rows in (*ROWS, 8000) if form == "many rows" else ROWS:
        batch = tf.constant(generator.randn(rows, 6))
        for (value,) in ranks([batch], support.cut(rows, 3, generator)):
            np.testing.assert_allclose(value, traced(batch), 1e-9)


def test_lists_of_rows_and_of_whole_elements(support):
    """A masked recurrent layer, traced for sequences of any length and rebuilt for one: what its gradient adds up is
    not of one kind. The step is not rebuilt, so that every rank computes it whole; it failed when it ran."""
    import keras

    from matex_tf.patches.partition.step import Partitioned

    masked = [keras.layers.Embedding(9, 3, mask_zero=True), keras.layers.LSTM(2)]
    body = keras.Sequential([keras.Input((None,), dtype="int32"), *masked])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(body(x))
        return list(map(tf.convert_to_tensor, tape.gradient(loss, body.trainable_variables)))

    traced = tf.function(step).get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    exchange = support.ThreadExchange(support.Meeting(2), 0)
    with pytest.raises(ValueError, match="lists of a rank's rows and of whole elements"):
        Partitioned(traced, [True], exchange, [tf.TensorShape([None, 4])]).graph()
