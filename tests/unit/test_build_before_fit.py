"""A Sequential without an Input has weights before its first step, if a feature needs them: as from its first batch."""

import numpy as np
import pytest

keras = pytest.importorskip("keras", minversion="3")
tf = pytest.importorskip("tensorflow")

from matex_tf.patches.common import keras_lines  # noqa: E402

ROWS = np.ones((6, 5), "float32")


def sequential():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    "x",
    [ROWS, tf.constant(ROWS), tf.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :2])).batch(4)],
    ids=["array", "tensor", "pipeline"],
)
def test_the_weights_of_the_first_batch(x):
    built = sequential()
    assert not built.built
    keras_lines.build_before_fit(built, x)
    assert built.built and built.count_params() == 34
    called = sequential()
    called(ROWS)
    for ours, theirs in zip(built.get_weights(), called.get_weights(), strict=True):
        assert np.array_equal(ours, theirs)


def test_what_is_not_known_stays():
    """A model of a class of one's own, data of unknown shape, and a model that is built."""

    class Own(keras.Model):
        def call(self, x):
            return x

    own, ragged, done = Own(), sequential(), sequential()
    keras_lines.build_before_fit(own, ROWS)
    keras_lines.build_before_fit(ragged, tf.data.Dataset.from_generator(lambda: [], tf.float32))
    keras_lines.build_before_fit(ragged, {"a": ROWS})
    assert not own.built and not ragged.built
    done(ROWS)
    kept = done.weights
    keras_lines.build_before_fit(done, ROWS[:, :3])
    assert all(one is other for one, other in zip(done.weights, kept, strict=True))
