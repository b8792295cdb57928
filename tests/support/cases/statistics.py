"""Statistics of a rank's own rows, `adapt`, and what of a model and of `fit` must be the same on all ranks."""

from __future__ import annotations

import math
import threading

import numpy as np

from matex_tf.core import world
from matex_tf.readers import of_all_ranks
from matex_tf.readers.own_rows import OwnRows
from matex_tf.readers.shard import Shard
from tests.support.cases.shards import Memory

COUNT = 101


def rows():
    """Inputs of which one is missing, and labels from 0 to 2 that come one after the other."""
    x = np.random.default_rng(3).normal(size=(COUNT, 4)).astype("float32")
    x[3, 1] = np.nan
    return x, np.arange(COUNT, dtype="int64") * 3 // COUNT


def opened():
    """A shard of them."""
    return Shard(Memory(*rows()), range(COUNT), world.current())


#: Statistics of all rows.
OF_ALL = {
    "nanmean": lambda x, y: np.nanmean(x, axis=0),
    "mean without gaps": lambda x, y: np.mean(np.nan_to_num(x), 0),
    "methods": lambda x, y: (np.nan_to_num(x).mean(axis=0), np.nan_to_num(x).std(axis=0), y.var(), y.max(), y.min()),
    "nanstd": lambda x, y: np.nanstd(x, axis=0),
    "minimum.reduce": lambda x, y: np.minimum.reduce(x[:, 2:]),
    "unique": lambda x, y: np.unique(y),
    "percentiles": lambda x, y: np.nanpercentile(x, [10, 50], axis=0),
    "cov": lambda x, y: np.cov(x[:, 2:], rowvar=False),
    "products": lambda x, y: x[:, 2:].T @ x[:, 2:],
    "scaled": lambda x, y: ((x - np.nanmean(x, 0)) / np.nanstd(x, 0)).max(),
    "rows of a class": lambda x, y: (np.nanmean(x[y == 1], axis=0), np.nanmean(x[np.where(y == 1)], axis=0)),
    "any": lambda x, y: (np.isnan(x).any(), np.all(x < 9)),
    "part of a class": lambda x, y: (y == 1).mean(),
    "one-hot": lambda x, y: (y[:, None] == np.arange(3)).mean(0),
    "classes in rows": lambda x, y: y == np.arange(3)[:, None],
    "other axes": lambda x, y: x.reshape(-1, 2, 2).transpose(0, 2, 1).swapaxes(1, 2).mean(0),
    "flat": lambda x, y: np.nanmean(x.reshape(-1)),
    "weighted": lambda x, y: np.average(x[:, 2], weights=y),
    "of rows": lambda x, y: (x[:, 2:].mean(axis=1).max(), x[:, 2:].argmax(axis=1).mean(), (x @ np.ones(4)).shape[1:]),
    "norm": lambda x, y: np.linalg.norm(x[:, 2:], axis=1).max(),
    "more columns": lambda x, y: np.pad(x, ((0, 0), (1, 1))).max(0),
    "put together": lambda x, y: np.concatenate([x, x]).min(axis=0),
    "another dtype": lambda x, y: y.astype("float32").mean(),
    "in place": lambda x, y: _changed(x).mean(axis=0),
}


def _changed(x):
    x = x.copy()
    x -= 1
    x[np.isnan(x)] = 7
    return x


def statistics():
    """Each is that of the whole file, with the bits of one rank; rows stay a rank's own."""
    shard = opened()
    x, y = shard
    for name, statistic in OF_ALL.items():
        got, expected = statistic(x, y), statistic(*rows())
        several = isinstance(expected, tuple)
        for one, other in zip(got if several else [got], expected if several else [expected], strict=True):
            assert not isinstance(one, OwnRows), name
            assert np.array_equal(one, other, equal_nan=np.asarray(other).dtype.kind == "f"), (name, one, other)
    assert np.allclose(x, x + 1e-9, equal_nan=True) and not np.allclose(y, np.arange(len(y)) + 5)
    assert np.array_equal(shard.whole(y), rows()[1]) and type(shard.whole(y)) is np.ndarray
    assert type(np.asarray(x)) is np.ndarray and type(x[0]) is np.ndarray and len(x) == len(shard)
    return True


def of_large():
    """Of more rows than fit on a rank: moments from sums, extremes; the rest is refused."""
    x, y = opened()
    before, of_all_ranks.MOST_BYTES = of_all_ranks.MOST_BYTES, 100
    try:
        for statistic in (np.nanmean, np.nanstd, np.nanvar, np.nanmin):
            for how in ({}, {"axis": 0}, {"axis": (0, 1), "keepdims": True}):
                got, expected = statistic(x, **how), statistic(rows()[0], **how)
                assert got.dtype == expected.dtype and np.shape(got) == np.shape(expected)
                assert np.allclose(got, expected, rtol=1e-5, atol=1e-6), (statistic, how)
        assert y.std(ddof=1) == np.float64(y.std(ddof=1)) and np.isclose(y.std(ddof=1), rows()[1].std(ddof=1))
        np.median(x)
    finally:
        of_all_ranks.MOST_BYTES = before


def gaps():
    """Inputs with many missing values, of sizes from 1e-30 to 1e30, and labels."""
    x, y = rows()
    random = np.random.default_rng(5)
    x *= 10.0 ** random.integers(-30, 30, size=x.shape)
    x[random.random(x.shape) < 0.3] = np.nan
    return x, y


def filled(missing, dtype, block):
    """Inputs of all ranks, whose missing values have become something: of arrays, and of blocks that are streamed."""
    ranks = world.current()
    x, y = gaps()
    x = x.astype(dtype)
    shard = Shard(Memory(x, y), range(COUNT), ranks, missing=missing)
    if block:
        shard.block_rows = lambda: block
        rows = shard.read(0, len(shard))[0]
    else:
        rows = np.asarray(shard.data)
    test = Shard(Memory(x[:9] * 2, y[:9]), range(9), ranks, missing=missing, scale_of=shard)
    of_column = {"mean": lambda one: math.fsum(one) / len(one), "median": np.median}.get(missing, lambda one: missing)
    whole = np.array([of_column(column[~np.isnan(column)].astype("float64")) for column in x.T])
    joined = []
    for part, mine in ((x, rows), (x[:9] * 2, test.data)):
        joined.append(ranks.allgather_rows(np.ascontiguousarray(mine), "join"))
        assert np.allclose(joined[-1], np.where(np.isnan(part), whole.astype(dtype), part), rtol=1e-15, atol=0)
    return [one.tobytes() for one in joined]


def filled_without_values(missing):
    """A column has none."""
    x, y = gaps()
    x[:, 2] = np.nan
    return Shard(Memory(x, y), range(COUNT), world.current(), missing=missing).data


#: What is refused: sums, counts and positions of rows, and the order of all rows.
REFUSED = {
    "sum": lambda x, y: x.sum(axis=0),
    "add.reduce": lambda x, y: np.add.reduce(x),
    "bincount": lambda x, y: np.bincount(y),
    "count_nonzero": lambda x, y: np.count_nonzero(y),
    "unique": lambda x, y: np.unique(y, return_counts=True),
    "argmax": lambda x, y: y.argmax(),
    "argsort": lambda x, y: np.argsort(y),
    "sort": lambda x, y: np.sort(y),
    "cumsum": lambda x, y: y.cumsum(),
    "histogram": lambda x, y: np.histogram(y),
}


def refused(what):
    """An error, on every rank."""
    return REFUSED[what](*opened())


def in_a_thread():
    """Ranks do not meet in other threads than the main one."""
    x, _ = opened()
    found = []

    def compute():
        try:
            np.nanmean(x)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    raise found[0]


def adapted(layer, kind):
    """What a layer has learnt of rows of the ranks' own, and of the whole where there is one rank."""
    import keras
    import tensorflow as tf

    shard = opened()
    x = np.nan_to_num(shard.data)
    words = np.array([f"w{i % 7}" if i < 60 else f"v{i % 5}" for i in range(COUNT)])[shard.rows]
    data = x if layer == "Normalization" else x[:, 0] if layer == "Discretization" else words
    if kind == "plain":
        data = np.asarray(data)
    elif kind == "list":
        data = np.asarray(data).tolist()
    elif kind == "tensor":
        data = tf.constant(data)
    elif kind == "batches":
        data = tf.data.Dataset.from_tensor_slices(data).batch(8)
    elif kind == "elements":
        data = tf.data.Dataset.from_tensor_slices(data)
    elif kind == "stream":
        data = shard.to_tf_data(10).map(lambda x, y: tf.where(tf.math.is_nan(x), 0.0, x))
    options = {"Discretization": {"num_bins": 4}, "TextVectorization": {"output_mode": "count"}}
    one = getattr(keras.layers, layer)(**options.get(layer, {}))
    one.adapt(data)
    if layer == "Normalization":
        return np.ravel(one.mean), np.ravel(one.variance)
    return list(one.bin_boundaries) if layer == "Discretization" else one.get_vocabulary()


def other_values(what):
    """A `fit` that begins with something that is another on each rank."""
    import keras

    ranks = world.current()
    x, y = opened()
    x = np.asarray(np.nan_to_num(x))
    keras.utils.set_random_seed(7)
    scale = keras.layers.Normalization(name="scale")
    options = {}
    if what == "a layer's arguments":
        scale = keras.layers.Normalization(mean=x.mean(0), variance=x.var(0), name="scale")
    elif what == "a generator":
        scale.adapt([x, x] if ranks.size == 1 else _batches(x))
    elif what == "state":
        scale.build((None, 4))
        scale.adapt_mean.assign(x.mean(0))
        scale.finalize_state()
    head = keras.layers.Dense(3, name="head")
    model = keras.Sequential([keras.Input((4,)), scale, head])
    if what == "weights":
        head.bias.assign([0.0, 0.0, float(ranks.rank)])
    if what == "class_weight":
        options["class_weight"] = {0: 1.0 + len(x) * ranks.rank, 1: 1.0, 2: 1.0}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=20, verbose=0, **options)


class _batches:  # noqa: N801  # what Keras walks over
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter([self.x])
