"""Sizes that a prime number of rows hides: a slice that is longer than the batch, a queue that is cut as long as it.
And recurrent layers, whose lists are as long as the sequences of a batch."""

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


def _two_numbers(x):
    """The size of the slice becomes one that does not depend on the rows with the first tensor that has it."""
    cut = tf.reduce_max(x, 1)[..., :2]
    return _mean(tf.constant([1.0, 2.0], x.dtype)) + _mean(cut)


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
    "two numbers": _two_numbers,
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


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", ["masked", "twice", "both ways", "mean"])
def test_recurrent_layers_of_any_length(support, form):
    """Traced for sequences of any length, and rebuilt for one: no op is computed whole. What the gradient of a masked
    layer adds up was lists of rows and lists of whole elements before, and every rank computed the step whole."""
    import keras

    layers = keras.layers
    body = {
        "masked": lambda: [layers.LSTM(2)],
        "twice": lambda: [layers.LSTM(3, return_sequences=True), layers.GRU(2)],
        "both ways": lambda: [layers.Bidirectional(layers.SimpleRNN(2))],
        "mean": lambda: [layers.GRU(2, return_sequences=True), layers.GlobalAveragePooling1D()],
    }[form]()
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layers.Embedding(9, 3, mask_zero=True), *body])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))]

    traced = tf.function(step).get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    generator = np.random.RandomState(0)
    for length in (4, 7):
        columns = [tf.TensorShape([None, length])]
        ranks = support.Ranks(3, lambda _: traced, [True], columns=columns)
        assert not ranks.whole()
        batch = tf.constant(generator.randint(0, 9, (8, length)).astype("int32"))
        for values in ranks([batch], support.cut(8, 3, generator)):
            for value, wanted in zip(values, traced(batch), strict=True):
                np.testing.assert_allclose(value, wanted, 1e-4, 1e-6)
