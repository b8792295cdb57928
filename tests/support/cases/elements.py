"""`tf.data.Dataset.from_generator`: which elements the ranks get, and which ranks make them."""

from __future__ import annotations

import ctypes
import queue
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common import log_once
from matex_tf.patches.turns import elements, from_generator
from matex_tf.state import run_state
from tests.support import leftovers
from tests.support.cases.common import table
from tests.support.cases.division import Rows, joined
from tests.support.cases.pipe import chosen

ROWS = 50
SIGNATURE = tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int32)


class Source:
    """Rows of a table; how many were made is noted where nobody looks."""

    def __init__(self, made):
        self.made = made.ctypes.data

    def __call__(self):
        x, y = table()
        for number in range(ROWS):
            ctypes.c_int64.from_address(self.made).value += 1
            yield x[number] + np.float32(number), y[number]


def _source(kind, made):
    plain = Source(made)
    if kind == "draws":

        def draws():
            for x, y in plain():
                yield x + np.float32(np.random.rand()), y

        return draws, None
    if kind == "counts":
        seen = []

        def counts():
            for x, y in plain():
                seen.append(y)
                yield x + np.float32(len(seen)), y

        return counts, None
    if kind == "goes on":
        rows = iter(list(zip(*table(), strict=True)) * 10)

        def goes_on():
            for _, (x, y) in zip(range(ROWS), rows, strict=False):
                made[0] += 1
                yield x, y

        return goes_on, None
    if kind == "queue":
        waiting = queue.Queue()
        for x, y in plain():
            waiting.put((x, y))
        return lambda: (waiting.get() for _ in range(ROWS)), None
    if kind == "argument":

        def rest_of(first, name):
            assert name == b"rows"
            for number, (x, y) in enumerate(plain()):
                if number >= first:
                    yield x, y

        return rest_of, (tf.constant(3), "rows")
    if kind == "torn":

        def torn():
            for number, (x, y) in enumerate(plain()):
                if number == 37:
                    raise ValueError("row 37 of the table is torn")
                yield x, y

        return torn, None
    return plain, None


def _dataset(kind, made):
    generate, args = _source(kind, made)
    data = tf.data.Dataset.from_generator(generate, args=args, output_signature=SIGNATURE)
    if kind == "cache":
        data = data.cache()
    if kind == "no map":
        return data.batch(10)
    if kind == "whole":
        return data.batch(10).map(lambda x, y: (x * 2 - tf.reduce_mean(x), y))
    data = data.shuffle(20, seed=3).map(lambda x, y: (x * 2, y), num_parallel_calls=4)
    return data.repeat(2).batch(12).prefetch(2) if kind == "repeat" else data.batch(12).prefetch(tf.data.AUTOTUNE)


def rows(kind, run_by="auto", hosts="", kept=elements._KEPT):
    """The rows of `fit`, of validations that leave off in the middle, of `evaluate` and `predict`.

    Args:
        kind: of the generator, or of what stands behind it.
        run_by: `--generators`.
        hosts: the name of each rank's host; empty where all are on one.
        kept: bytes of elements that are kept for a rank which has yet to take them.
    """
    keras.utils.set_random_seed(7)
    made, model = np.zeros(1, int), Rows()
    patched = mock.patch.object(elements, "_KEPT", kept)
    with mock.patch.object(log_once, "log") as lines, patched, chosen(hosts, generators=run_by):
        train, held = _dataset(kind, made), _dataset(kind, made)
        # What leaves something behind does so as far as TensorFlow reads ahead where a walk is left in the middle.
        steps = [None, None] if kind in ("draws", "counts", "repeat") else [2, 3]
        model.fit(train, epochs=2, validation_data=held, validation_steps=steps[0], verbose=0)
        model.fit(train, steps_per_epoch=steps[1], verbose=0)
        model.evaluate(held, verbose=0)
        predicted = model.predict(held, verbose=0)
        left = [np.array(y) for _, y in train.take(2)]  # its shuffle is where it is on one rank
    said = [line for (line, *_), _ in lines.call_args_list if "from_generator" in line or "each rank runs" in line]
    return {
        "batches": joined([*model.kept]), "made": int(made[0]), "predicted": predicted, "left": left, "said": said,
        "threads": threads(),
    }  # fmt: skip


def torn():
    """An element cannot be made: every rank raises that where one rank does, and what is trained next is as on one."""
    made, model, said = np.zeros(1, int), Rows(), ""
    try:
        model.fit(_dataset("torn", made), verbose=0)
    except tf.errors.OpError as error:
        said = "row 37 of the table is torn" in str(error)
    model.fit(_dataset("plain", made), verbose=0)
    return {"batches": joined([*model.kept])[-5:], "said": said, "threads": threads()}


def gone_on(kind):
    """All rows of a generator that nobody can look into."""
    made, model = np.zeros(1, int), Rows()
    with mock.patch.object(log_once, "log") as lines:
        model.fit(_dataset(kind, made), verbose=0)
    said = [line for (line, *_), _ in lines.call_args_list if "from_generator" in line]
    return {"batches": joined([*model.kept]), "made": int(made[0]), "said": "".join(said)}


def differing():
    """Each rank has rows of its own: together they are the batch."""
    ranks, model = world.current(), Rows()
    x, y = table()

    def generate():
        for number in range(ranks.rank, ROWS // 10 * 10, ranks.size):
            yield x[number], number

    data = tf.data.Dataset.from_generator(generate, output_signature=SIGNATURE)
    model.fit(data.map(lambda x, y: (x * 2, y)).batch(10 // ranks.size), verbose=0)
    return sorted(int(row) for batch in joined([*model.kept]) for row in batch[1])


def threads():
    """Threads that are left of what has been read."""
    return leftovers.threads("matex_tf elements")


def looped(kind, run_by="auto"):
    """The rows of a loop of the script's own, in three walks, and of `fit` and another loop behind it."""
    keras.utils.set_random_seed(7)
    made = np.zeros(1, int)
    with mock.patch.object(log_once, "log") as lines, chosen("", generators=run_by):
        data = _dataset(kind, made)
        weights, counts, walks = tf.Variable(tf.ones([6])), [], []
        for walk in range(3):
            seen = []
            for number, (x, y) in enumerate(data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - tf.cast(y, tf.float32)) ** 2)
                weights.assign_sub(1e-4 * tape.gradient(loss, weights))
                seen.append(np.concatenate([x.numpy(), y.numpy()[:, None]], 1))
                if walk == 1 and number == 2:
                    break
            walks.append(seen)
            counts.append(int(made[0]))
        model = Rows()
        model.fit(data, verbose=0)
        left = [np.array(y) for _, y in data]
        run_state.current().part(from_generator.OfLoops).close()
    gathered = world.current().allgather(walks, "compare walks")
    # The first batch is whole on every rank, and a rank without rows has one that does not count.
    whole = [
        [np.unique(np.concatenate(parts), axis=0) for parts in zip(*walk, strict=True)]
        for walk in zip(*gathered, strict=True)
    ]
    said = [line for (line, *_), _ in lines.call_args_list if "from_generator" in line]
    return {
        "walks": whole, "made": counts, "fitted": joined([*model.kept]), "left": left, "said": said,
        "weights": weights.numpy(), "threads": threads(),
    }  # fmt: skip
