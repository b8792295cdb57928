"""Python generators that are given to Keras: which batches the ranks get, and which ranks run them."""

from __future__ import annotations

import collections
import inspect
import itertools
import threading
import time
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common import log_once
from matex_tf.patches.turns import read_ahead
from tests.support import leftovers
from tests.support.cases.common import table
from tests.support.cases.division import Rows, joined
from tests.support.cases.pipe import chosen


def _batches(made, count=None, torn=False):
    """Batches of three sizes, numbered from `len(made)` on."""
    x, y = table()
    for number in itertools.count() if count is None else range(count):
        made.append(number)
        if torn and number == 3:
            raise ValueError("row 80 of the table is torn")
        here = slice(20 * (number % 5), 20 * (number % 5) + 20 - number % 3)
        yield x[here] + np.float32(number), {"y": y[here]}


def batches(run_by, hosts=""):
    """The rows of `fit`, of validations that go on where the last one has left off, of `evaluate` and `predict`.

    Args:
        run_by: `--generators`.
        hosts: the name of each rank's host; empty where all are on one.
    """
    made, model = [], Rows()
    with chosen(hosts, generators=run_by):
        model.fit(
            _batches(made),
            steps_per_epoch=4,
            epochs=3,
            validation_data=_batches(made),
            validation_steps=3,
            verbose=0,
        )
        model.fit(_batches(made, 6), verbose=0)
        model.evaluate(_batches(made, 3), verbose=0)
        predicted = model.predict(_batches(made, 4), verbose=0)
    return {"batches": joined([*model.kept]), "made": len(made), "predicted": predicted, "threads": threads()}


def torn(run_by):
    """A batch cannot be made: every rank raises that where one rank does, and what is trained next is as on one."""
    made, model, said = [], Rows(), ""
    with chosen(generators=run_by):
        try:
            model.fit(_batches(made, torn=True), steps_per_epoch=7, verbose=0)
        except tf.errors.OpError as error:
            said = "row 80 of the table is torn" in str(error)
        model.fit(_batches(made, 3), verbose=0)
    return {"batches": joined([*model.kept]), "said": said, "threads": threads()}


def waits(run_by):
    """A generator that waits for ever behind the last batch that is wanted; the seconds for which `fit` waits."""
    for_ever, made, model = threading.Event(), [], Rows()

    def queued():
        yield from _batches(made, 5)
        if world.current().size > 1:  # on one rank Keras waits itself, where tf.data has read ahead so far
            for_ever.wait()

    try:
        with mock.patch.object(read_ahead, "PATIENCE", 0.5), chosen(generators=run_by):
            begin = time.perf_counter()
            model.fit(queued(), steps_per_epoch=4, verbose=0)
            seconds = time.perf_counter() - begin
    finally:
        for_ever.set()
    return {"batches": joined([*model.kept]), "ended": seconds < 60}


def _of_its_own(count):
    """Batches with random numbers of a generator's own."""
    x, y = table()
    rng = np.random.default_rng(7)
    for number in range(count):
        here = slice(20 * (number % 5), 20 * (number % 5) + 20 - number % 3)
        yield x[here] + rng.normal(size=(1, 6)).astype(np.float32), {"y": y[here]}


def _of_all(count):
    """The same with those of the process."""
    for number, (x, y) in enumerate(_of_its_own(count)):  # noqa: B007, which is looked up from outside
        yield x + np.float32(np.random.rand()), y


def _of_model(count, model):
    """The same with what a model predicts."""
    for number, (x, y) in enumerate(_of_its_own(count)):  # noqa: B007, which is looked up from outside
        yield x + np.float32(model.predict(x, verbose=0).mean()), y


def seen(kind):
    """`--generators auto`: who runs a generator, how far it is after one call of `fit`, and what a second one gets.

    Args:
        kind: "own", "all" or "model".
    """
    np.random.seed(3)
    model, other = Rows(), keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
    generator = {"own": _of_its_own, "all": _of_all, "model": lambda count: _of_model(count, other)}[kind](9)
    empty = ""
    with mock.patch.object(log_once, "log") as lines:
        model.fit(generator, steps_per_epoch=4, verbose=0)
        at = inspect.getgeneratorlocals(generator).get("number")
        model.fit(generator, steps_per_epoch=2, verbose=0)
        if kind == "own":
            ranks = world.current()
            if ranks.rank == ranks.nodes[ranks.node][0]:
                collections.deque(generator, maxlen=0)  # it ends where it is run
            try:
                model.fit(generator, steps_per_epoch=2, verbose=0)
            except (ValueError, IndexError) as error:  # the latter with Keras 3.3
                empty = f"{type(error).__name__}: {error}"
    said = [line for (line, *_), _ in lines.call_args_list if "runs the generator" in line]
    return {"batches": joined([*model.kept]), "at": at, "said": said, "empty": empty, "threads": threads()}


class Asked(keras.utils.PyDataset):
    """Batches that hold what a model predicts."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def __len__(self):
        return 5

    def __getitem__(self, number):
        x, y = table()
        x = x[20 * number : 20 * number + 20]
        return x + np.float32(self.model.predict(x, verbose=0).mean()), {"y": y[20 * number : 20 * number + 20]}


def asked():
    """A PyDataset that asks a model."""
    model, other = Rows(), keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.fit(Asked(other), epochs=2, shuffle=False, verbose=0)
    return {"batches": joined([*model.kept])}


def threads():
    """Threads that are left of what has been read."""
    return leftovers.threads("matex_tf elements", "matex_tf input")
