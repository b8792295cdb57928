"""A map that draws random numbers as two, see `patches/division/drawn_first.py`: the same bits, epoch after epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from matex_tf.patches.division import deferred
from tests.support.kept_calls import calls_are_kept  # noqa: F401

pytestmark = pytest.mark.usefixtures("calls_are_kept")


def _images(x):
    x = tf.image.random_flip_left_right(x)
    x = tf.image.random_brightness(x, 0.2)
    x = tf.image.random_contrast(x, 0.5, 1.5)
    return tf.image.random_crop(x, [3, 3, 3])


def _of_keras():
    flip = keras.layers.RandomFlip(seed=3)
    bright = keras.layers.RandomBrightness(0.3, value_range=(0, 1), seed=4)
    return lambda x: bright(flip(x, training=True), training=True)


def _of_a_generator():
    generator = tf.random.Generator.from_seed(3)
    return lambda x: x * generator.uniform([])


def _of_a_variable():
    weights, count = tf.Variable(tf.ones([1000])), tf.Variable(0.0)

    def counted(x):
        return x * weights[0] + count.assign_add(1.0)

    return counted


#: By name: what makes the function of a map.
DRAWS = {
    "flip": lambda: tf.image.random_flip_left_right,
    "images": lambda: _images,
    "noise": lambda: lambda x: x + tf.random.normal([5, 5, 3]),
    "keras": _of_keras,
    "generator": _of_a_generator,
    "variable": _of_a_variable,
}
BEHIND = {
    "nothing": lambda data: data,
    "take": lambda data: data.take(7),
    "repeat": lambda data: data.repeat(2),
    "map": lambda data: data.map(lambda x: x + 1),
}


def _pipeline(kind, behind):
    keras.utils.set_random_seed(3)
    images = np.random.RandomState(0).rand(20, 5, 5, 3).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(images).map(lambda x: x * 2)
    return BEHIND[behind](data.map(DRAWS[kind]()))


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("kind", DRAWS)
def test_same_numbers(kind, behind):
    """Elements are those of the script's pipeline, bit for bit, and so they are in the next epoch."""
    plain = _pipeline(kind, behind)
    expected = [[x.numpy() for x in plain] for _ in range(2)]
    data = _pipeline(kind, behind)
    form = deferred.split(data)
    assert len(form.stages) == 2 + (behind == "map") and not form.kept
    assert sum(spec.shape.num_elements() for spec in form.source.element_spec[1:]) <= 100, form.source.element_spec
    joined = deferred.joined(form, data)
    for epoch in expected:
        for one, other in zip(epoch, [x.numpy() for x in joined], strict=True):
            np.testing.assert_array_equal(other, one)


def _as_long_as_asked(x):
    return x + tf.reduce_sum(tf.random.normal(tf.shape(tf.boolean_mask(x, x > 0.5))))


def _in_a_branch(x):
    return tf.cond(x[0, 0, 0] > 0.5, lambda: x * tf.random.uniform([]), lambda: x)


def _by_python(x):
    return x + tf.numpy_function(lambda: np.float32(1), [], tf.float32)


@pytest.mark.parametrize("function", [_as_long_as_asked, _in_a_branch, _by_python])
def test_that_depends_on_the_element(function):
    """What is drawn as an element asks for it is drawn by every rank, with all of the map."""
    data = tf.data.Dataset.from_tensor_slices(np.ones((4, 5, 5, 3), "float32"))
    form = deferred.split(data.map(function))
    assert not form.stages and form.kept
