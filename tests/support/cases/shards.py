"""`Shard` and its pipelines, over a table in memory."""

from __future__ import annotations

import numpy as np

from matex_tf.core import world
from matex_tf.readers.shard import Shard
from matex_tf.readers.tables.table import Table


class Memory(Table):
    """Rows that are there already; counts what was read."""

    def __init__(self, x, y=None):
        self.x, self.y = x, y
        self.paths, self.rows, self.labelled = ("memory",), len(x), y is not None
        self.reads = []

    def read(self, start, stop):
        self.reads.append((start, stop))
        return self.x[start:stop], None if self.y is None else self.y[start:stop]


def rows(count=101):
    """Inputs that name their row, and labels from 0 to 3."""
    return np.arange(count, dtype="float32")[:, None] * [1.0, 10.0], (np.arange(count) * 7 % 4).astype("int64")


def places(count=101, window=(0, None, 1)):
    """Where each rank is, what it holds, and what all hold together."""
    ranks = world.current()
    x, y = rows(count)
    chosen = range(count)[slice(*window)]
    shard = Shard(Memory(x, y), chosen, ranks)
    assert (shard.rank, shard.size, shard.total_rows) == (ranks.rank, ranks.size, len(chosen))
    assert len(shard) == shard.counts[ranks.rank] == len(shard.data) == len(shard.labels)
    assert max(shard.counts) - min(shard.counts) <= 1 and sum(shard.counts) == len(chosen)
    assert (shard.data[:, 0] == np.asarray(shard.rows)).all()
    joined = ranks.allgather_rows(shard.data[:, 0], "join"), ranks.allgather_rows(shard.labels, "join")
    assert (joined[0] == x[slice(*window), 0]).all() and (joined[1] == y[slice(*window)]).all()
    return True


def turns(count=101, batch=25, epochs=2):
    """The batches of all ranks, together: the order that the shard promises."""
    ranks = world.current()
    shard = Shard(Memory(*rows(count)), range(count), ranks)
    order = shard.order(batch)
    assert sorted(order) == list(range(count))
    for _ in range(epochs):
        used = []
        for _ in range(-(-count // batch)):
            x, y = shard.next_batch(batch)
            together = ranks.allgather_rows(x[:, 0], "join a batch")
            assert len(together) == min(batch, count - len(used)) and len(x) == len(y)
            used += together.tolist()
        assert used == order.tolist()
    return True


def streamed(count=101, batch=25, shuffle=False, block=None):
    """`to_tf_data` yields the rows of each batch that `order` says, in blocks of a few rows."""
    ranks = world.current()
    table = Memory(*rows(count))
    shard = Shard(table, range(count), ranks)
    if block:
        shard.block_rows = lambda: block
    data = shard.to_tf_data(batch, shuffle=shuffle, seed=3)
    assert int(data.cardinality()) == -(-count // batch)
    epochs = []
    for _ in range(2):
        used, mine = [], 0
        for x, y in data:
            assert (y.numpy() == (x.numpy()[:, 0] * 7 % 4)).all()
            used += ranks.allgather_rows(x.numpy()[:, 0], "join a batch").tolist()
            mine += len(x)
        assert mine == len(shard)
        epochs.append(used)
    if shuffle:
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(count)) and epochs[0] != epochs[1]
    else:
        assert epochs[0] == epochs[1] == shard.order(batch).tolist()
    if block:
        assert max(stop - start for start, stop in table.reads) <= block
    return True


def prepared():
    """Divisor and classes are those of all ranks together."""
    ranks = world.current()
    x, y = rows(40)
    words = np.array(["cat", "dog", "ant", "bee"])[y]
    shard = Shard(Memory(x, words), range(40), ranks, one_hot=True, normalize=True)
    assert shard.classes.tolist() == ["ant", "bee", "cat", "dog"]
    assert (shard.classes[shard.labels.argmax(axis=1)] == words[shard.rows.start : shard.rows.stop]).all()
    assert shard.data.dtype == np.float32 and np.allclose(shard.data * 390, x[shard.rows.start : shard.rows.stop])
    other = Shard(Memory(x / 2, words), range(8), ranks, one_hot=True, normalize=True, scale_of=shard)
    assert np.allclose(other.data * 390 * 2, x[other.rows.start : other.rows.stop])
    numbers = Shard(Memory(x, y), range(40), ranks, one_hot=6)
    assert numbers.labels.shape[1:] == (6,) and (numbers.labels.argmax(axis=1) == y[numbers.rows]).all()
    assert Shard(Memory(x), range(40), ranks, one_hot=True).classes is None
    return True


def odd_label():
    """A label that is no class."""
    x, y = rows(40)
    return Shard(Memory(x, y - 1), range(40), world.current(), one_hot=True).labels


def trained(source="arrays", batch=25, epochs=3):
    """The same training from a shard's arrays, from its pipeline, and by one rank from the rows in their order."""
    from tests.support.cases.common import classifier, compiled, numbers, result_of, table

    ranks = world.current()
    x, y = table(101)
    model = compiled(classifier())
    if ranks.size == 1:
        order = Shard(Memory(x, y), range(101), _Three()).order(batch)
        x, y = x[order], y[order]
    shard = Shard(Memory(x, y), range(101), ranks)
    if source == "arrays":
        fed = {"x": shard.data * 1.0, "y": shard.labels, "batch_size": batch}
    else:
        fed = {"x": shard.to_tf_data(batch)}
        if source == "mapped":
            fed["x"] = fed["x"].map(lambda x, y: (x * 1.0, y)).prefetch(1)
    history = model.fit(**fed, shuffle=False, epochs=epochs, verbose=0)
    result = result_of(model, history)
    result["evaluate"] = numbers(model.evaluate(**fed, verbose=0))
    predicted = model.predict(shard.to_tf_data(batch) if source != "arrays" else shard.data, verbose=0)
    result["rows predicted"] = sum(ranks.allgather(len(predicted), "count"))
    return result


class _Three:
    """The place of rank 0 of three, to ask for their order."""

    rank, size, first_ranks, generation, arrival = 0, 3, (0, 1, 2), 0, None


def uneven(kind="filtered", epochs=3):
    """Pipelines of own rows that end at different times on different ranks: every row is used all the same.

    Args:
        kind: "filtered", rows dropped behind the shard; "one rank", all rows on the last rank.
    """
    import keras

    from tests.support.cases.common import compiled, numbers, result_of, table

    ranks = world.current()
    x, y = table(60)
    keep = np.arange(60) % 3 == 0 if kind == "one rank" else (np.arange(60) < 40) | (np.arange(60) % 5 == 0)
    if kind == "one rank":
        keep &= np.arange(60) >= 40
    shard = Shard(Memory(x, np.where(keep, y, -1)), range(60), ranks)
    data = shard.to_tf_data(10).unbatch().filter(lambda x, y: y >= 0).batch(5 if ranks.size > 1 else 60)
    keras.utils.set_random_seed(7)
    model = compiled(keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3)]), keras.optimizers.SGD(0.0))
    history = model.fit(data, epochs=epochs, verbose=0)
    loss, accuracy = numbers(model.evaluate(data, verbose=0))
    return {"loss": history.history["loss"], "evaluate": [loss, accuracy], "weights": result_of(model)["weights"]}
