"""Data sets of Python that are pure, and others that are not: who makes their batches, and that these are the same."""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import functools
import multiprocessing
import os
import queue
import random
import sqlite3
import tempfile
import threading
import warnings
from multiprocessing import shared_memory
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.common import log_once
from matex_tf.patches.data import batches
from tests.support.cases.common import table
from tests.support.cases.division import Rows, joined

_ROWS, _BATCHES = 12, 7
_rng = np.random.default_rng(5)
_count = 0


class Producer(keras.utils.PyDataset):
    """Batches of a table, with whatever `more` gives for an index added to them."""

    def __init__(self, more, **held):
        super().__init__()
        self.x, self.y = table()
        self.more = more
        vars(self).update(held)

    def __len__(self):
        return _BATCHES

    def __getitem__(self, number):
        here = slice(_ROWS * number, _ROWS * number + _ROWS)
        return self.x[here] + np.float32(self.more(self, number)), {"y": self.y[here]}


class Simulator:
    """Calls a function, two objects deep."""

    def __init__(self, function):
        self.functions = [function]

    def __call__(self, data, number):
        return self.functions[0](data, number)


class Slots:
    """Keeps a generator where `vars` does not see it."""

    __slots__ = ("__rng",)

    def __init__(self):
        self.__rng = random.Random(3)

    def __call__(self, data, number):
        return self.__rng.random()


class Hiding:
    """Leaves out what it counts when it is pickled."""

    def __init__(self):
        self.count = 0

    def __getstate__(self):
        return {}

    def __call__(self, data, number):
        self.count += 1
        return self.count


class OfAll:
    """Counts for all of its objects."""

    count = 0

    def __call__(self, data, number):
        OfAll.count += 1
        return OfAll.count


class Rolling:
    """Permutations that are drawn when they are needed, as CSBDeep does."""

    def __init__(self):
        self.rng, self.known = np.random.RandomState(3), {}

    def __call__(self, data, number):
        loop = number // 4
        if loop not in self.known:
            self.known[loop] = self.rng.permutation(4)
        return self.known[loop][number % 4]


class Memory:
    """Counts in memory that processes share; closed with the object."""

    def __init__(self):
        self.memory = shared_memory.SharedMemory(create=True, size=64)

    def __call__(self, data, number):
        self.memory.buf[0] += 1
        return self.memory.buf[0]

    def __del__(self):
        self.memory.close()
        self.memory.unlink()


def _by_closure(function):
    rng = np.random.default_rng(2)
    return lambda data, number: function(rng)


def _of_name(data, number):
    return _rng.random()


def _of_count(data, number):
    global _count
    _count += 1
    return _count


def _of_file():
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115, which lives as long as the data
    file.write("\n".join(map(str, range(100))))
    file.seek(0)
    return lambda data, number, file=file: float(file.readline())


def _of_lazy_file():
    path = os.path.join(tempfile.mkdtemp(), "numbers")
    with open(path, "w") as file:
        file.write("\n".join(map(str, range(100))))
    held = []

    def more(data, number):
        if not held:
            held.append(open(path))  # noqa: SIM115, which lives as long as the data
        return float(held[0].readline())

    return more


def _of_thread():
    numbers, rng = queue.Queue(maxsize=2), np.random.default_rng(6)

    def fill():
        while True:
            numbers.put(rng.random())

    threading.Thread(target=fill, daemon=True).start()
    return lambda data, number: numbers.get()


def _of_c():
    library = ctypes.CDLL(None)
    library.srand48(5)
    return lambda data, number: library.lrand48() % 1000


def _of_pool():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    rng = np.random.default_rng(4)
    return lambda data, number: pool.submit(rng.random).result()


def _of_database():
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute("create table calls (number integer)")

    def more(data, number):
        base.execute("insert into calls values (1)")
        return base.execute("select sum(number) from calls").fetchone()[0]

    return more


def _of_shared_count():
    count = multiprocessing.Value("i", 0)

    def more(data, number):
        with count.get_lock():
            count.value += 1
            return count.value

    return more


def _of_tf_generator():
    rng = tf.random.Generator.from_seed(3)
    return lambda data, number: float(rng.uniform([]))


def _of_keras_seeds():
    seeds = keras.random.SeedGenerator(3)
    return lambda data, number: float(keras.random.uniform([], seed=seeds))


def _of_model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")

    def more(data, number):
        model.optimizer.iterations.assign_add(1)
        return int(model.optimizer.iterations.numpy())

    return more


def _of_generator():
    numbers = (number for number in range(1000))
    return lambda data, number: next(numbers)


def _into_an_array():
    array = np.zeros(40000)

    def more(data, number):
        array[123] += 1
        return array[123]

    return more


def _in_order():
    order = collections.deque(range(7))

    def more(data, number):
        order.rotate()
        return order[0]

    return more


def _mapped():
    path = os.path.join(tempfile.mkdtemp(), "rows.npy")
    np.save(path, np.arange(10.0))
    array = np.load(path, mmap_mode="r")
    return lambda data, number: array[number]


def _of_hdf5():
    import h5py

    path = os.path.join(tempfile.mkdtemp(), "rows.h5")
    with h5py.File(path, "w") as file:
        file["rows"] = np.arange(10.0)
    rows = h5py.File(path, "r")["rows"]
    return lambda data, number: rows[number]


def _of_frame():
    import pandas

    frame = pandas.DataFrame({"a": np.arange(10.0)})
    return lambda data, number: frame["a"].iloc[number]


def _with_lock():
    lock = threading.Lock()

    def more(data, number):
        with lock:
            return number

    return more


@functools.lru_cache
def _remembered(number):
    return number * 2.0


#: By name: what gives the numbers of a data set that keeps a state or draws.
IMPURE = {
    "process": lambda: lambda data, number: np.random.rand(),
    "name": lambda: Simulator(Simulator(_of_name)),
    "closure": lambda: _by_closure(lambda rng: rng.random()),
    "slots": Slots,
    "hiding": Hiding,
    "class": OfAll,
    "global": lambda: _of_count,
    "rolling": Rolling,
    "file": _of_file,
    "lazy file": _of_lazy_file,
    "thread": _of_thread,
    "c": _of_c,
    "pool": _of_pool,
    "database": _of_database,
    "shared count": _of_shared_count,
    "shared memory": Memory,
    "tf generator": _of_tf_generator,
    "keras seeds": _of_keras_seeds,
    "model": _of_model,
    "iterator": _of_generator,
    "array": _into_an_array,
    "deque": _in_order,
    "partial": lambda: functools.partial(lambda rng, data, number: rng.normal(), np.random.default_rng(8)),
    "attribute": lambda: lambda data, number: vars(data).update(seen=vars(data).get("seen", 0) + 1) or data.seen,
}
#: Others, whose batches depend on their index alone.
PURE = {
    "plain": lambda: lambda data, number: number,
    "seeded": lambda: lambda data, number: np.random.default_rng([3, number]).random(),
    "mapped": _mapped,
    "hdf5": _of_hdf5,
    "frame": _of_frame,
    "remembered": lambda: lambda data, number: _remembered(number),
    "lock": _with_lock,
}


def made(kinds):
    """For each kind: the batches of two epochs, and what was said of who makes them. Args: kinds: none for all."""
    global _rng, _count
    results = {}
    for kind in kinds or (*IMPURE, *PURE):
        keras.utils.set_random_seed(3)
        _rng, _count, OfAll.count = np.random.default_rng(5), 0, 0
        model = Rows()
        with mock.patch.object(log_once, "log") as lines:
            model.fit(Producer({**IMPURE, **PURE}[kind]()), epochs=2, shuffle=False, verbose=0)
        said = [line for (line, *_), _ in lines.call_args_list if "of the data" in line]
        results[kind] = {"batches": joined([*model.kept]), "next": [np.random.rand(), _rng.random()], "said": said}
    return results


def priced():
    """The lines with a price, of data whose batches every rank makes and of others; however little these take."""

    def drawn():
        for _ in range(3):
            yield np.random.rand(4, 6).astype("float32"), np.zeros((4, 1), "float32")

    kinds = {
        "drawing": lambda: Producer(lambda data, number: np.random.rand()),
        "pure": lambda: Producer(lambda data, number: number),
        "drawing generator": drawn,
    }
    found = {}
    with mock.patch.multiple(batches, _MUCH=0.0, _MUCH_SECONDS=0.0):
        for kind, make in kinds.items():
            with mock.patch.object(log_once, "log") as lines:
                Rows().fit(make(), epochs=1, verbose=0)
            said = [line for (line, *_), _ in lines.call_args_list]
            found[kind] = [line for line in said if "input that every rank makes" in line or "input takes" in line]
    return found


class Later(Producer):
    """Draws or counts from an epoch on. Args: how: gives a number; begins: epochs that have ended by then."""

    def __init__(self, how, begins):
        self.rng, self.epoch = np.random.default_rng(1), 0
        super().__init__(lambda data, number: how(data) if data.epoch >= begins else number)

    def on_epoch_end(self):
        self.epoch += 1


def _count_in_environment(data):
    os.environ["MATEX_TEST_COUNT"] = str(int(os.environ.get("MATEX_TEST_COUNT", "0")) + 1)
    return int(os.environ["MATEX_TEST_COUNT"])


#: By name: what draws or counts where nobody looks, or not at the beginning, and from which epoch on.
LATER = {
    "epoch 3": (lambda data: data.rng.random(), 2),
    "last epoch": (lambda data: data.rng.random(), 4),
    "environment": (_count_in_environment, 0),
}


def _late_generator():
    """Draws from its fourth batch on."""
    for number in range(8):
        drawn = np.random.rand() if number >= 3 else 0.0
        yield np.full((12, 6), number + drawn, "float32"), np.zeros((12, 1), "float32")


def later():
    """By name: what is raised where data turn out to draw; "" on one rank."""
    found = {}
    os.environ.pop("MATEX_TEST_COUNT", None)
    for name, (how, begins) in {**LATER, "generator": (None, 0)}.items():
        keras.utils.set_random_seed(3)
        try:
            data = _late_generator() if how is None else Later(how, begins)
            Rows().fit(data, epochs=1 if how is None else 4, shuffle=False, verbose=0)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = ""
    return found


class Shrinking(Producer):
    """Has another length in each epoch."""

    def __init__(self):
        self.lengths = [5, 7, 2, 4]
        super().__init__(lambda data, number: number)

    def __len__(self):
        return self.lengths[0]

    def on_epoch_end(self):
        self.lengths = [*self.lengths[1:], self.lengths[0]]


def shrinking():
    """The batches of epochs of data whose length changes."""
    keras.utils.set_random_seed(3)
    model = Rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras: the input ran out of data
        model.fit(Shrinking(), epochs=4, shuffle=False, verbose=0)
    return {"batches": joined([*model.kept])}


class Growing(Producer):
    """Rows depend on how many epochs have ended."""

    def __init__(self):
        self.level = 0
        super().__init__(lambda data, number: 100 * data.level + number)

    def on_epoch_end(self):
        self.level += 1


def hooks(drawing):
    """Epochs with fewer steps than the data have batches. Args: drawing: whether it draws as well."""
    keras.utils.set_random_seed(3)
    data, other, model = Growing(), Growing(), Rows()
    if drawing:
        data.more = lambda data, number: 100 * data.level + number + np.random.rand()
    model.fit(data, epochs=4, steps_per_epoch=4, shuffle=False, verbose=0)
    model.fit(data, epochs=2, shuffle=True, validation_data=other, validation_steps=3, verbose=0)
    model.evaluate(other, verbose=0)
    batches = joined([*model.kept])
    seen = [round(float(batch[0].mean()) / 100) for batch in batches]
    return {"batches": batches, "seen": seen, "levels": [data.level, other.level]}
