"""Maps that draw without a seed, see `patches/division/epoch_draws.py`: other numbers in each epoch, alike on ranks."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.patches.common import seeds
from matex_tf.patches.division import deferred, epoch_draws, first_rows
from tests.support.kept_calls import calls_are_kept  # noqa: F401

pytestmark = pytest.mark.usefixtures("calls_are_kept")


def _box(x):
    drawn = tf.image.sample_distorted_bounding_box(
        [50, 60, 3], tf.zeros([1, 0, 4]), use_image_if_no_bounding_boxes=True
    )
    return x + tf.reduce_sum(tf.cast(drawn[0], tf.float32))


def _crop(x):
    """Of a shape that is not known while it is traced."""
    images = tf.tile(tf.reshape(x, [1, 1, 1]), [tf.cast(x, tf.int32) % 3 + 7, 7, 1])
    images += tf.reshape(tf.range(7.0), [1, 7, 1])
    return tf.reduce_sum(tf.image.random_crop(images, [2, 2, 1]))


DRAWS = {
    "uniform": lambda x: x + tf.random.uniform([]),
    "normal": lambda x: x + tf.random.normal([]),
    "truncated": lambda x: x + tf.random.truncated_normal([]),
    "whole numbers": lambda x: x + tf.cast(tf.random.uniform([], 0, 10**6, tf.int32), tf.float32),
    "categorical": lambda x: x + tf.cast(tf.random.categorical(tf.zeros([1, 10**5]), 1)[0, 0], tf.float32),
    "box": _box,
    "crop": _crop,
    "two": lambda x: tf.random.uniform([]) - tf.random.uniform([]),
}


@pytest.fixture
def mapped(monkeypatch):
    """A map as on a rank whose script has set no seed."""
    monkeypatch.setattr(seeds, "of_script", lambda: False)
    counted = itertools.count(1)
    monkeypatch.setattr(seeds, "number", lambda: next(counted) << 40)
    tf.random.set_seed(3)

    def make(function, dataset, **kwargs):
        return epoch_draws._map(dataset.map, dataset, (function,), kwargs)

    return make


def _rows():
    return tf.data.Dataset.range(20).map(lambda x: tf.cast(x, tf.float32))


def _epochs(dataset, count=2):
    return [[float(x) for x in dataset.as_numpy_iterator()] for _ in range(count)]


@pytest.mark.parametrize("name", DRAWS)
def test_epochs_and_elements_have_numbers_of_their_own(mapped, name):
    first = mapped(DRAWS[name], _rows(), num_parallel_calls=2)
    second = mapped(DRAWS[name], _rows())
    epochs = _epochs(first)
    noise = [set(np.round(np.subtract(epoch, np.arange(20)), 4)) for epoch in epochs]
    assert epochs[0] != epochs[1] and min(map(len, noise)) > (1 if name == "crop" else 10)
    assert _epochs(second) != epochs  # another map draws others


@pytest.mark.parametrize("name", DRAWS)
def test_ranks_draw_alike(mapped, monkeypatch, name):
    found = []
    for _ in range(2):  # ranks
        counted = itertools.count(1)
        monkeypatch.setattr(seeds, "number", lambda counted=counted: next(counted) << 40)
        found.append(_epochs(mapped(DRAWS[name], _rows()), 3))
    assert found[0] == found[1]


def test_it_is_divided_as_other_maps_are(mapped):
    dataset = mapped(DRAWS["crop"], _rows())
    form = deferred.split(dataset)
    assert len(form.stages) == 2 and not form.kept
    assert len(list(first_rows.pipeline(dataset.batch(4)))) == 1


def test_a_seed_of_the_script_stays(mapped):
    def draw(x):
        return x + tf.random.uniform([], seed=5)

    epochs = _epochs(mapped(draw, _rows()))
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: tf.cond(x > 3, lambda: tf.random.uniform([]), lambda: x),
        lambda x: x + tf.reduce_sum(tf.random.shuffle(tf.range(9.0))[:3]),
        lambda x: x + tf.random.gamma([], 2.0),
    ],
    ids=["in a branch", "shuffle", "gamma"],
)
def test_others_draw_by_the_seed_of_the_job(mapped, draw):
    epochs = _epochs(mapped(draw, _rows()))
    assert epochs[0] == epochs[1] and len(set(epochs[0])) > 5


def test_a_map_that_draws_nothing_is_left_alone(mapped):
    dataset = mapped(lambda x: x + 1, _rows())
    assert deferred.form_of(dataset) is None and _epochs(dataset, 1) == [[float(x + 1) for x in range(20)]]
