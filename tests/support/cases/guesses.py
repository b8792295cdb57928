"""Whose rows data hold: pipelines that differ between ranks by random numbers, by order, or since they are parts."""

from __future__ import annotations

import dataclasses
import os

import keras
import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import log_once
from matex_tf.state import run_state
from tests.support.cases.common import table

ROWS, BATCH = 24, 8


def pipeline(kind):
    """Batches for this rank; see the names of the branches."""
    ranks = world.current()
    rank, size = ranks.rank, ranks.size
    x, y = table(ROWS)
    mine = slice(rank, None, size)

    def noise(*shape):  # a seed of the op's own stands for a race, which not every run would see
        return tf.random.uniform(shape, seed=rank + 1)

    slices = tf.data.Dataset.from_tensor_slices
    if kind == "augmented":
        data = slices((x, y)).shuffle(ROWS, seed=1).map(lambda a, b: (a + noise(6), b), num_parallel_calls=2)
    elif kind == "masked words":  # random in whole numbers, and in labels
        words = (np.abs(x) * 10).astype("int32")
        data = slices(words).map(lambda a: (tf.cast(a, tf.float32), a[0] * tf.cast(noise() > 0.5, tf.int32)))
    elif kind == "order":
        data = slices((x, y)).shuffle(ROWS, seed=rank)
    elif kind == "every second":  # the same on every rank: nobody's part
        x, y = np.repeat(x, 2, 0), np.repeat(y, 2, 0)
        data = slices((x, y)).shard(2, 0).map(lambda a, b: (a + noise(6), b))
    elif kind == "shard":
        data = slices((x, y)).shard(size, rank)
    elif kind == "uneven":
        data = slices((x, y)).skip(0 if rank == 0 else 18).take(18 if rank == 0 else 6)
    elif kind == "filtered":
        data = slices((x, y)).enumerate().filter(lambda i, _: i % size == rank).map(lambda i, row: row)
    elif kind == "floats by hand":
        data = slices((x[mine], x[mine, :1])).map(lambda a, b: (a + noise(6), b))
    elif kind == "looked up":
        held = tf.constant(x[mine])
        data = tf.data.Dataset.range(ROWS // size).map(lambda i: (held[i], held[i, :1]))
    elif kind in ("generator", "generator of shards"):
        own = kind == "generator of shards"

        def generate():
            for a, b in zip(x[mine] if own else x, y[mine] if own else y, strict=True):
                yield a + rank / 8, b

        signature = tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int32)
        data = tf.data.Dataset.from_generator(generate, output_signature=signature)
        data = data.apply(tf.data.experimental.assert_cardinality(ROWS // size if own else ROWS))
    elif kind in ("files", "parts of files"):
        os.makedirs(f"{rank}", exist_ok=True)
        with open(f"{rank}/rows.csv", "w") as file:  # a part that was staged on the node, under the same name
            lines = x[mine] if kind == "parts of files" else x
            file.write("\n".join(",".join(map(str, line)) for line in lines.tolist()))
        data = tf.data.TextLineDataset(tf.constant([f"{rank}/rows.csv"]))

        def parse(line):
            row = tf.ensure_shape(tf.strings.to_number(tf.strings.split(line, ",")), [6])
            return row + noise(6), row[:1]

        data = data.map(parse)
        data = data.apply(tf.data.experimental.assert_cardinality(ROWS if kind == "files" else ROWS // size))
    else:
        raise AssertionError(kind)
    return data.batch(BATCH)


class Counting(keras.Model):
    """A model that counts the rows that it is trained on, and evaluated on."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.count = keras.metrics.Sum(name="count")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.count.update_state(tf.ones([tf.shape(data[0])[0]]))
        return super().train_step(data)

    def test_step(self, data):
        self.count.update_state(tf.ones([tf.shape(data[0])[0]]))
        return super().test_step(data)


def rows_used(kind, how, rows="auto"):
    """How many rows an epoch uses, over all ranks: 24, whatever the ranks hold.

    Args:
        kind: of pipeline.
        how: "fit", "evaluate", "predict", "loop", "numbered" (the loop has numbers of batches too), "function" (a loop
            in a tf.function), "on_batch".
        rows: the setting.
    """
    before = settings.current()
    settings.use(dataclasses.replace(before, rows=rows))
    run_state.part(log_once.Said).clear()
    try:
        return _rows_used(kind, how)
    finally:
        settings.use(before)


def _rows_used(kind, how):
    keras.utils.set_random_seed(7)
    data = pipeline(kind)
    if how in ("loop", "function", "numbered"):
        return _loop(data, how)
    model = Counting()
    model.compile("sgd", "mse")
    if how == "fit":
        return model.fit(data, epochs=2, verbose=0).history["count"]
    if how == "evaluate":
        return [model.evaluate(data, verbose=0, return_dict=True)["count"]]
    if how == "on_batch":
        return [model.train_on_batch(*batch, return_dict=True)["count"] for batch in unwatched(data)]
    model.build((None, 6))
    return len(model.predict(data, verbose=0))


def unwatched(data):
    """All batches, as arrays that the script has made by itself."""
    from matex_tf.patches.sources.source_sharding import paused

    with paused():
        found = iter(data.unbatch().batch(1).map(lambda *row: row).unbatch())
    rows = list(found)
    return [
        tuple(np.stack(part) for part in zip(*rows[i : i + BATCH], strict=True)) for i in range(0, len(rows), BATCH)
    ]


def _loop(data, how):
    w, count = tf.Variable(tf.zeros([6, 1])), keras.metrics.Sum()

    def step(x, y):
        count.update_state(tf.ones([tf.shape(x)[0]]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w - tf.cast(tf.reshape(y, [-1, 1]), tf.float32)))
        w.assign_sub(0.1 * tape.gradient(loss, w))

    @tf.function
    def epoch():
        for x, y in data:
            step(x, y)

    used = []
    for _ in range(2):
        if how == "function":
            epoch()
        elif how == "numbered":
            for _, (x, y) in data.enumerate():
                step(x, y)
        else:
            for x, y in data:
                step(x, y)
        used.append(float(count.result()))
        count.reset_state()
    return used


def rounded():
    """Arrays that differ by rounding alone, as they would from two kinds of machines."""
    x, y = table(ROWS)
    x = np.nextafter(x, np.float32(world.current().rank))
    model = Counting()
    model.compile("sgd", "mse")
    return model.fit(x, y, batch_size=BATCH, verbose=0).history["count"]
