"""Which rows each rank works on."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.partition.step import Partitioned
from tests.support.cases.common import classifier, compiled


class Watcher(keras.layers.Layer):
    """Keeps the first column of what passes through it, which is the number of the row."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        def keep(value):
            self.seen.append(np.array(value[:, 0]).astype(int).tolist())
            return value

        return keras.ops.reshape(tf.numpy_function(keep, [x], tf.float32), keras.ops.shape(x))

    def compute_output_shape(self, shape):
        return shape

    def take(self):
        seen, self.seen[:] = list(self.seen), []
        return seen


def rows(kind="arrays"):
    """The rows, batch by batch, that this rank trained on, evaluated and predicted.

    A partitioned step shows whole batches to Python, so its rows are those that it is called with.
    """
    x = np.zeros((107, 6), "float32")
    x[:, 0] = np.arange(107)
    y = np.arange(107) % 3
    keras.utils.set_random_seed(7)
    watcher = Watcher()
    model = keras.Sequential([keras.Input((6,)), watcher, keras.layers.Rescaling(0.01), classifier()])
    compiled(model)
    run, given = Partitioned.__call__, []

    def watched(step, batch, first, rows, total, low=0):
        given.append(np.array(batch[0][low : low + rows, 0]).astype(int).tolist())
        return run(step, batch, first, rows, total, low)

    def take():
        seen, own = watcher.take(), list(given)
        given.clear()
        return own or seen

    data, options = (x, y), {"batch_size": 50}
    if kind == "dataset":
        data, options = (tf.data.Dataset.from_tensor_slices((x, y)).batch(50),), {}
    with mock.patch.object(Partitioned, "__call__", watched):
        model.fit(*data, epochs=2, verbose=0, **options)
        trained = take()
        model.evaluate(*data, verbose=0, **options)
        evaluated = take()
        model.predict(data[0], verbose=0, **options)
        return {"fit": trained, "evaluate": evaluated, "predict": take()}
