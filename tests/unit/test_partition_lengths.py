"""One step for batches of any length: what it gives for lengths that it was not made for."""

import numpy as np
import pytest
import tensorflow as tf

SIZES = ((8, 5), (1, 12), (7, 31), (2, 300), (9, 64))


@pytest.fixture(scope="module")
def support():
    from tests.support import partition

    return partition


def _layers(form):
    import keras

    layers = keras.layers
    body = {
        "recurrent": [layers.Embedding(9, 3, mask_zero=True), layers.Bidirectional(layers.LSTM(4))],
        "dropout of inputs": [layers.Embedding(9, 3, mask_zero=True), layers.LSTM(4, dropout=0.3)],
        "convolution": [layers.Embedding(9, 3), layers.Conv1D(4, 3, padding="same"), layers.BatchNormalization()],
        "dropout": [layers.Embedding(9, 3), layers.Dropout(0.5)],
    }[form]
    if form not in ("recurrent", "dropout of inputs"):
        body.append(layers.GlobalAveragePooling1D())
    return keras.Sequential([keras.Input((None,), dtype="int32"), *body, layers.Dense(1)])


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", ["dropout of inputs", "convolution", "recurrent", "dropout"])
def test_of_any_length(support, form):
    """Loss and gradients, on three ranks that are threads, beside one."""
    import keras

    keras.utils.set_random_seed(1)
    model = _layers(form)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))]

    traced = tf.function(step).get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    shapes = [[tf.TensorShape([None, length])] for length in (12, 20)]
    ranks = support.Ranks(3, lambda _: traced, [True], lengths=shapes)
    generator = np.random.RandomState(0)
    for rows, length in SIZES:
        batch = tf.constant(generator.randint(0, 9, (rows, length)).astype("int32"))
        kept = [variable.numpy() for variable in traced.variables]
        every = ranks([batch], support.cut(rows, 3, generator))
        for variable, value in zip(traced.variables, kept, strict=True):
            variable.assign(value)
        wanted = traced(batch)
        for values in every:
            for value, expected in zip(values, wanted, strict=True):
                np.testing.assert_allclose(value, expected, 1e-4, 1e-6)
