"""Pipelines that are put together at random: the rows of each batch, however many ranks make them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.support.cases.common import table
from tests.support.cases.division import AUTOTUNE, SLICES, Rows, joined

ROWS = 61


def _work(x, y):
    return tf.sin(x), y


def _drawn(x, y):
    """Random numbers of the row's own."""
    return x + tf.random.stateless_uniform([6], seed=tf.stack([y, 3])), y


def _halves(x, y):
    return SLICES((tf.stack([x, -x]), tf.stack([y, y + 1])))


#: What may stand in front of `batch`: elements are a row of 6 numbers and its label.
ELEMENTS = {
    "map": lambda data, n: data.map(_work),
    "parallel map": lambda data, n: data.map(_work, num_parallel_calls=n or AUTOTUNE),
    "unordered map": lambda data, n: data.map(_work, num_parallel_calls=2, deterministic=True),
    "stateless map": lambda data, n: data.map(_drawn),
    "shuffle": lambda data, n: data.shuffle(10 * n + 1, seed=n),
    "the same shuffle": lambda data, n: data.shuffle(40, seed=n, reshuffle_each_iteration=False),
    "shuffle without a seed": lambda data, n: data.shuffle(30),
    "repeat": lambda data, n: data.repeat(1 + n % 2),
    "take": lambda data, n: data.take(50 - n),
    "skip": lambda data, n: data.skip(n),
    "enumerate": lambda data, n: data.enumerate().map(lambda i, xy: (xy[0] + tf.cast(i, tf.float32), xy[1])),
    "zip": lambda data, n: tf.data.Dataset.zip((data, tf.data.Dataset.range(500))).map(lambda xy, i: (xy[0], i)),
    "filter": lambda data, n: data.filter(lambda x, y: y % 5 != n),
    "flat_map": lambda data, n: data.flat_map(_halves),
    "interleave": lambda data, n: data.interleave(_halves, cycle_length=1 + n, num_parallel_calls=1 + n % 2),
    "concatenate": lambda data, n: data.concatenate(data.take(n)),
    "cache": lambda data, n: data.cache(),
    "prefetch": lambda data, n: data.prefetch(n or AUTOTUNE),
    "shard": lambda data, n: data.shard(2, n % 2),
    "batch and unbatch": lambda data, n: data.batch(n + 1).unbatch(),
    "scan": lambda data, n: data.scan(0.0, lambda sum_, xy: (sum_ + xy[0][0], (xy[0] + sum_, xy[1]))),
    "take_while": lambda data, n: data.take_while(lambda x, y: tf.logical_or(y < 40 + 10 * n, x[0] > 0)),
    "dictionary": lambda data, n: data.map(lambda x, y: {"x": x, "y": y}).map(lambda d: (d["x"], d["y"])),
    "two maps": lambda data, n: data.map(_work).map(_drawn, num_parallel_calls=2),
    "sampled": lambda data, n: tf.data.Dataset.sample_from_datasets([data, data.skip(n)], [0.5, 0.5], seed=n),
    "chosen": lambda data, n: tf.data.Dataset.choose_from_datasets(
        [data, data], tf.data.Dataset.range(30).map(lambda i: i % 2)
    ),
    "windows": lambda data, n: data.window(3, shift=2).flat_map(
        lambda x, y: tf.data.Dataset.zip((x, y)).batch(3)
    ).map(lambda x, y: (tf.reduce_mean(x, 0), y[0])),
    "options": lambda data, n: data.with_options(_options(n)),
}  # fmt: skip
BATCHES = {
    "batch": lambda data, n: data.batch(n + 3),
    "full batches": lambda data, n: data.batch(n + 3, drop_remainder=True),
    "parallel batch": lambda data, n: data.batch(n + 3, num_parallel_calls=2),
    "padded": lambda data, n: data.map(lambda x, y: (tf.repeat(x, 2)[: y % 7 + 1], y)).padded_batch(n + 3),
    "padded to 12": lambda data, n: data.map(lambda x, y: (x[: y % 4 + 1], y)).padded_batch(n + 3, ((12,), ())),
    "large": lambda data, n: data.batch(40 + n),
    "of one": lambda data, n: data.batch(1).take(20),
    "rows of two batches": lambda data, n: data.batch(3).unbatch().batch(n + 5),
    "rebatch": lambda data, n: data.batch(4).rebatch(n + 3),
    "nested": lambda data, n: data.map(lambda x, y: ((x, {"a": x[:2], "b": (y, x[0])}), y)).batch(n + 3),
}
#: Of whole batches. Nothing divides by a constant: Grappler multiplies by its inverse, and in these tests it does not
#: work on the script's own pipelines (tests/support/worker.py). In jobs it works on all.
BEHIND = {
    "map": lambda data, n: data.map(lambda x, y: (tf.nest.map_structure(lambda t: tf.cast(t, tf.float64) * 2, x), y)),
    "parallel map": lambda data, n: data.map(lambda x, y: (x, y, tf.cast(y, tf.float32)), num_parallel_calls=2).map(
        lambda x, y, w: (x, y)
    ),
    "map across": lambda data, n: data.map(lambda x, y: (x, y - tf.reduce_min(y))),
    "prefetch": lambda data, n: data.prefetch(n or AUTOTUNE),
    "take": lambda data, n: data.take(n + 2),
    "skip": lambda data, n: data.skip(n % 2),
    "repeat": lambda data, n: data.repeat(2),
    "cache": lambda data, n: data.cache(),
    "shuffle": lambda data, n: data.shuffle(3, seed=n),
    "filter": lambda data, n: data.filter(lambda x, y: y[0] % 3 != n),
    "options": lambda data, n: data.with_options(_options(n)),
}


def _options(n):
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1 + n
    options.autotune.enabled = bool(n % 2)
    return options


def pipeline(seed):
    """The words of a pipeline, and the pipeline."""
    random = np.random.RandomState(seed)
    x, _ = table(ROWS)
    data = SLICES((x.astype("float32"), np.arange(ROWS)))
    words = []
    for table_of, most in ((ELEMENTS, 5), (BATCHES, 1), (BEHIND, 3)):
        for _ in range(1 if most == 1 else random.randint(0, most + 1)):
            word, n = random.choice(sorted(table_of)), random.randint(0, 5)
            data = table_of[word](data, n)
            words.append(f"{word} {n}")
    return words, data


def walked(seeds):
    """By pipeline: the rows of each batch of two epochs of `fit` and of `evaluate`."""
    found = {}
    for seed in seeds:
        keras.utils.set_random_seed(7)
        words, data = pipeline(seed)
        model = Rows()
        error = ""
        try:
            model.fit(data, epochs=2, verbose=0)
            model.evaluate(data, verbose=0)
        except (ValueError, tf.errors.OpError) as raised:
            error = type(raised).__name__
        found[f"{seed}: " + ", ".join(words)] = {"batches": joined(list(model.kept)), "error": error}
    return found
