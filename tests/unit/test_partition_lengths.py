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
    norm = layers.BatchNormalization()
    body = {
        "recurrent": [layers.Embedding(9, 3, mask_zero=True), layers.Bidirectional(layers.LSTM(4))],
        "dropout of inputs": [layers.Embedding(9, 3, mask_zero=True), layers.LSTM(4, dropout=0.3)],
        "convolution": [layers.Embedding(9, 3), layers.Conv1D(4, 3, padding="same", use_bias=False), norm],
        "dropout": [layers.Embedding(9, 3), layers.Dropout(0.5)],
        "strides": [layers.Embedding(9, 3), layers.Conv1D(4, 3, strides=2, padding="same"), layers.MaxPooling1D(2)],
    }[form]
    if form not in ("recurrent", "dropout of inputs"):
        body.append(layers.GlobalAveragePooling1D())
    return keras.Sequential([keras.Input((None,), dtype="int32"), *body, layers.Dense(1)])


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", ["dropout of inputs", "strides", "convolution", "recurrent", "dropout"])
def test_of_any_length(support, form):
    """Loss and gradients, on three ranks that are threads, beside one; where lengths are rounded, of every fourth."""
    import keras

    from matex_tf.patches.partition.lengths.merged import NotLinear

    keras.utils.set_random_seed(1)
    model = _layers(form)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))]

    traced = tf.function(step).get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    shapes, sizes, stride = [[tf.TensorShape([None, length])] for length in (12, 20)], SIZES, 1
    if form == "strides":
        with pytest.raises(NotLinear):
            support.Ranks(3, lambda _: traced, [True], lengths=shapes, stride=2).steps[0].graph()
        sizes, stride = [(rows, length // 4 * 4) for rows, length in SIZES if length > 8], 4
    ranks = support.Ranks(3, lambda _: traced, [True], lengths=shapes, stride=stride)
    generator = np.random.RandomState(0)
    for rows, length in sizes:
        batch = tf.constant(generator.randint(0, 9, (rows, length)).astype("int32"))
        kept = [variable.numpy() for variable in traced.variables]
        every = ranks([batch], support.cut(rows, 3, generator))
        for variable, value in zip(traced.variables, kept, strict=True):
            variable.assign(value)
        wanted = traced(batch)
        for values in every:
            for value, expected in zip(values, wanted, strict=True):
                np.testing.assert_allclose(value, expected, 1e-4, 1e-6)


def test_a_loop_that_meets_the_ranks(support):
    """Its exchanges are in a body, which is taken as it is: the step is rebuilt for each length instead."""
    from matex_tf.patches.partition.labels import CannotPartition

    def centred(i, v):
        return i + 1, tf.tanh(v - tf.reduce_mean(v, 0))

    traced = tf.function(lambda x: tf.while_loop(lambda i, v: i < 3, centred, [0, x])[1])
    concrete = traced.get_concrete_function(tf.TensorSpec([None, None]))
    shapes = [[tf.TensorShape([None, length])] for length in (12, 20)]
    ranks = support.Ranks(3, lambda _: concrete, [True], lengths=shapes)
    with pytest.raises(CannotPartition, match="meets the other ranks"):
        ranks.steps[0].graph()


def _noted(lengths, error=None):
    """What a step for any length was to be made for, shapes by shapes: a span, or None."""
    spans = []

    def make(span):
        spans[-1] = span
        span.points({9, 10, 1000})
        if error is not None:
            raise error
        return span

    def note(*sizes):
        spans.append(None)
        lengths.step(sizes, make)
        return spans[-1]

    return note


def test_when_a_step_for_any_length_is_made():
    """With the second shape; again, if others come that it is not for."""
    from matex_tf.patches.partition.lengths.any_length import Lengths

    note = _noted(Lengths())
    assert note((None, 12), (None, 1)) is None
    assert note((None, 12), (None, 1)) is None
    span = note((None, 20), (None, 1))
    assert (span.shortest, span.longest) == ([11], [1001])
    assert [span.fits(((None, length), (None, 1))) for length in (10, 11, 500, 1002)] == [False, True, True, False]
    assert not span.fits(((None, 500), (None, 2))) and not span.fits(((None, 500, 1), (None, 1)))
    assert note((None, 3), (None, 1)) is None
    narrow = note((None, 2000), (None, 1))
    assert (narrow.shortest, narrow.longest) == ([11], [2000])
    assert [note((None, length), (None, 1)) for length in (4, 5, 6)] == [None] * 3
    assert note((None, 7), (None, 1)) is not None

    note = _noted(Lengths())
    note((None, 12), (None, 7), (None, 12))
    span = note((None, 15), (None, 9), (None, 15))
    assert len(span.points(set())) == 4 and span.fits(((None, 33), (None, 44), (None, 33)))
    assert not span.fits(((None, 33), (None, 44), (None, 34)))


def test_strides():
    """Where lengths are rounded a step is made for every second one, every eighth, and every thirty-second."""
    from matex_tf.patches.partition.lengths.any_length import Lengths
    from matex_tf.patches.partition.lengths.merged import NotLinear

    lengths = Lengths()
    note = _noted(lengths, NotLinear(""))
    made = {length: note((None, length)) for length in range(3000, 3017)}
    strides = {length: span.stride for length, span in made.items() if span is not None}
    assert strides == {3001: 1, 3003: 2, 3007: 8, 3015: 32}, strides
    assert _noted(lengths)((None, 4000)) is None  # then it is not tried again

    lengths = Lengths()
    failing, note = _noted(lengths, NotLinear("")), _noted(lengths)
    assert failing((None, 50)) is None and failing((None, 51)).stride == 1 and note((None, 52)) is None
    odd, even = note((None, 53)), note((None, 54))
    assert [odd.fits(((None, length),)) for length in (53, 99, 100)] == [True, True, False]
    assert even.fits(((None, 100),)) and note((None, 70)) is None and note((None, 71)) is None
