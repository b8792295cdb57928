"""Trainings with virtual ranks, whose bits are compared."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib

import keras
import numpy as np
from keras import layers

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.row_partition import span
from matex_tf.exchange.ordered_sum import OrderedSum
from tests.support.cases.common import compiled, momentum, result_of


@contextlib.contextmanager
def virtual_ranks(count, **more):
    """Inside, batches are cut for so many virtual ranks."""
    before = settings.use(dataclasses.replace(settings.current(), reproducible=count, **more))
    try:
        yield
    finally:
        settings.use(before)


def of_case(name, virtual=4, options=None, **kwargs):
    """Another case, with virtual ranks; 0 for none.

    Args:
        name: such as "models.gan".
        options: further settings.
    """
    module, _, function_name = name.rpartition(".")
    function = getattr(importlib.import_module(f"tests.support.cases.{module}"), function_name)
    with virtual_ranks(virtual, **(options or {})):
        return function(**kwargs)


def _digits():
    random = np.random.RandomState(0)
    shapes, y = random.normal(size=(10, 8, 8, 1)), random.randint(0, 10, 203)
    x = (shapes[y] + random.normal(size=(203, 8, 8, 1))).astype("float32")
    body = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Dropout(0.25), layers.Flatten()]
    return [layers.Input((8, 8, 1)), *body, layers.Dense(32, activation="relu"), layers.Dense(10)], x, y


def _words():
    random = np.random.RandomState(0)
    y = random.randint(0, 3, 203)
    x = (random.randint(1, 30, (203, 12)) + 3 * y[:, None]) * (np.arange(12) < random.randint(4, 13, (203, 1)))
    body = [layers.Embedding(40, 8, mask_zero=True), layers.LSTM(16, dropout=0.1), layers.Dense(3)]
    return [layers.Input((12,), dtype="int32"), *body], x, y


_DATA = {"convnet": _digits, "lstm": _words}
_OPTIMIZERS = {"sgd": momentum, "adam": lambda: keras.optimizers.Adam(0.01)}


def fitted(model, optimizer, virtual=4):
    """A model that is trained on batches which neither ranks nor virtual ranks divide, and evaluated."""
    with virtual_ranks(virtual):
        keras.utils.set_random_seed(5)
        body, x, y = _DATA[model]()
        made = compiled(keras.Sequential(body), _OPTIMIZERS[optimizer]())
        history = made.fit(x, y, batch_size=26, epochs=2, verbose=0, validation_data=(x[:51], y[:51]))
        score = made.evaluate(x[:77], y[:77], batch_size=20, verbose=0, return_dict=True)
        states = [np.array(variable) for variable in made.variables]
        predicted = made.predict(x[:45], batch_size=20, verbose=0)
        return result_of(made, history, score=score, states=states, predicted=predicted)


def ordered_sums(virtual=8):
    """Sums over virtual ranks of small and large arrays, each rank with those of its own."""
    ranks = world.current()
    first, last = span(virtual, ranks.rank, ranks.size)
    random = np.random.RandomState(0)
    sizes = [(7,), (40, 50), (300_000,)]
    every = [[random.normal(size=size) * 10.0 ** random.randint(-9, 9) for size in sizes] for _ in range(virtual)]
    for values in every:
        values[1][:] = -0.0
    mine = [[value.astype("float32") for value in values] for values in every[first:last]]
    add = OrderedSum(virtual, "add in order", ["a", "b", "c"])
    return [np.array(one) for one in add(ranks, mine)]
