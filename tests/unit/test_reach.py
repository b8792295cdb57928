"""Whether making a batch changes what other code can see, see `patches/turns/reach.py`."""

import functools
import itertools
import queue
import random
import sys

import keras
import numpy as np
import pytest

from matex_tf.patches.turns import reach
from tests.support.cases.producers import IMPURE, PURE, Producer

_made = []
_count = 0
_random = np.random.default_rng(1)
_table = np.arange(10)


def _of_itself():
    draw = np.random.default_rng(0)
    kept = []
    for number in range(9):
        kept.append(number)
        yield _table[number] + draw.random(), len(kept)


def _in_a_list():
    for number in range(9):
        _made.append(number)
        yield number


def _in_a_name():
    global _count
    for number in range(9):
        _count += 1
        yield number


def _drawn():
    for _ in range(9):
        yield np.random.rand()


def _drawn_by_python():
    for _ in range(9):
        yield random.random()


def _helped():
    return [_random.random() for _ in range(2)]


def _drawn_by_a_helper():
    for _ in range(9):
        yield _helped()


def _of_arguments(first, table, seed=3):
    for number in range(first, 9):
        first += 1
        yield table[number % len(table)] + first + np.random.default_rng([seed, number]).random()


def _into_an_argument(kept):
    for number in itertools.count():
        kept.append(number)
        yield number


def _closed_over(changing):
    count = 0

    def generator():
        nonlocal count
        for _ in range(9):
            count += changing
            yield count

    return generator()


class _Loader:
    def __init__(self, drawing):
        self.rng, self.drawing = np.random.default_rng(0), drawing

    def batches(self):
        while True:
            yield self._one()

    def _one(self):
        return self.rng.random() if self.drawing else 1.0


def _chained(inner):
    for value in inner:
        yield value, 1


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (_of_itself, False),
        (lambda: _of_arguments(2, _table), False),
        (lambda: (value for value in _table), False),
        (lambda: _closed_over(0), False),
        (lambda: _Loader(False).batches(), False),
        (lambda: _chained(_of_itself()), False),
        (_in_a_list, True),
        (_in_a_name, True),
        (_drawn, True),
        (_drawn_by_python, True),
        (_drawn_by_a_helper, True),
        (lambda: _into_an_argument(_made), True),
        (lambda: _closed_over(1), True),
        (lambda: _Loader(True).batches(), True),
        (lambda: _chained(_in_a_list()), True),
        (lambda: (value + np.random.rand() for value in _table), True),
    ],
)
def test_generators(make, changes):
    """What a generator makes for itself is its own; what it was given, closes over or draws of the process is not."""
    generator = make()
    within = reach.of_generator(generator)
    assert not within.why_every_rank("a batch")
    next(generator), next(generator)
    assert bool(within.why_every_rank("a batch")) == changes


def test_one_that_has_begun():
    """What it has made before is not known to be its own; numbers that count are."""
    plain, drawing = _of_arguments(0, _table), _of_itself()
    next(plain), next(drawing)
    for generator, changes in ((plain, False), (drawing, True)):
        within = reach.of_generator(generator)
        next(generator)
        assert bool(within.why_every_rank("a batch")) == changes


@pytest.mark.parametrize("kind", [*IMPURE, *PURE])
def test_data_sets(kind):
    """A data set that draws, counts or keeps anything when it makes a batch is told from one that does not."""
    data = Producer({**IMPURE, **PURE}[kind]())
    within = reach.Reach(data)
    assert data[0] and data[1]
    assert bool(within.why_every_rank("a batch")) == (kind in IMPURE)


def test_models():
    """A model that is asked stays as it is; one that is trained does not."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((1, 2))

    class Holds:
        def __init__(self):
            self.model = model

        def batches(self):
            while True:
                yield self.model(rows)

    def asks():
        while True:
            yield model(rows)

    def trains():
        while True:
            yield model.train_on_batch(rows, rows[:, :1])

    for generator, changes in ((Holds().batches(), False), (asks(), False), (trains(), True)):
        within = reach.of_generator(generator)
        next(generator)
        assert bool(within.why_every_rank("a batch")) == changes


def test_ranks():
    """What speaks between ranks is run by all."""

    def counts_ranks():
        from mpi4py import MPI

        yield MPI.COMM_WORLD.rank

    assert "mpi4py" in reach.of_generator(counts_ranks()).why_every_rank("a batch")
    assert not reach.of_generator(_of_itself()).why_every_rank("a batch")


class _Called:
    """Can be called for a generator, and counts that, or not."""

    def __init__(self, counts):
        self.counts, self.calls = counts, 0

    def __call__(self):
        self.calls += self.counts
        yield self.calls

    def rows(self):
        return self()


class _Walked(_Called):
    """A class that is called itself, and walked over."""

    def __init__(self):
        super().__init__(1)

    def __iter__(self):
        return self()


_waiting, _letters = queue.Queue(), iter("rows")


@pytest.mark.parametrize(
    ("function", "changes", "goes_on"),
    [
        (_of_itself, False, ""),
        (_drawn_by_a_helper, True, ""),
        (functools.partial(_of_arguments, 2, _table), False, ""),
        (functools.partial(lambda rng: iter([rng.random()]), random.Random(3)), True, ""),
        (_Called(1), True, ""),
        (_Called(0), False, ""),
        (_Called(1).rows, True, ""),
        (_Walked, False, ""),
        (lambda: [_made], False, ""),
        (lambda rows=_letters: rows, False, "str_ascii_iterator"),
        (functools.partial(iter, map(str, range(3))), False, "map"),
        (lambda: (_waiting.get() for _ in range(3)), False, "Queue"),
        (lambda file=sys.stderr: file, False, type(sys.stderr).__name__),
    ],
)
def test_functions(function, changes, goes_on):
    """What is called to make a generator: it leaves something behind, or reads on in what other code sees."""
    within = reach.Reach(function)
    assert goes_on in within.goes_on_with() if goes_on else not within.goes_on_with()
    if not goes_on:
        for _ in itertools.islice(function(), 2):
            pass
        assert bool(within.why_every_rank("a batch")) == changes
