"""Each source of data with each option of `fit` about data: what one rank computes, or the error that it raises."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving, span
from matex_tf.readers.shard import Shard
from tests.support.cases.common import classifier, compiled, table, weights_for
from tests.support.cases.shards import Memory

ROWS, BATCH = 13, 4  # batches of 4, 4, 4 and 1 row
WEIGHTS = {0: 1.0, 1: 2.0, 2: 0.5}


def _rows(rows, weighted):
    x, y = table(rows)
    return (x, y, weights_for(rows)) if weighted else (x, y)


def _batches(columns):
    return [tuple(one[low : low + BATCH] for one in columns) for low in range(0, len(columns[0]), BATCH)]


class Pure(keras.utils.PyDataset):
    """Batches that depend on their number alone; infinite ones have no length."""

    def __init__(self, columns, forever):
        super().__init__()
        self.batches, self.forever = _batches(columns), forever

    def __len__(self):
        return len(self.batches)

    @property
    def num_batches(self):
        return None if self.forever else len(self.batches)

    def __getitem__(self, number):
        return self.batches[number % len(self.batches)] if self.forever else self.batches[number]


class Impure(Pure):
    """Batches that draw."""

    def __getitem__(self, number):
        x, *rest = super().__getitem__(number)
        return (x + np.random.normal(size=x.shape).astype("float32"), *rest)


def _generated(columns, forever):
    while True:
        yield from _batches(columns)
        if not forever:
            return


def _slices(columns, forever):
    data = tf.data.Dataset.from_tensor_slices(columns)
    return data.repeat() if forever else data


def _drawing(columns, forever):
    def draw(x, *rest):
        return (x + tf.random.normal(tf.shape(x)), *rest)

    return _slices(columns, forever).map(draw).batch(BATCH)


def _from_generator(columns, forever):
    specs = tuple(tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in columns)
    return tf.data.Dataset.from_generator(lambda: _generated(columns, forever), output_signature=specs)


def _as_used(rows, like, split):
    """Rows in the order in which so many ranks use theirs; behind them those that `validation_split` takes of each."""
    spans = [span(rows, rank, like) for rank in range(like)]
    ends = [low + int((high - low) * (1 - split)) for low, high in spans]
    trained = [np.arange(low, end) for (low, _), end in zip(spans, ends, strict=True)]
    left = [np.arange(end, high) for (_, high), end in zip(spans, ends, strict=True)]
    parts = [part for part in (trained, left) if sum(map(len, part))]
    return np.concatenate([np.concatenate(part)[Interleaving([*map(len, part)]).order(BATCH)] for part in parts])


def _shard(columns, like, split):
    """The arguments of `fit` for a DataSet's rows; one rank has them in the order in which so many ranks use theirs."""
    ranks = world.current()
    if ranks.size == 1 and len(columns[0]):
        columns = [one[_as_used(len(columns[0]), like, split)] for one in columns]
    shard = Shard(Memory(*columns[:2]), range(len(columns[0])), ranks)
    mine = slice(shard.rows.start, shard.rows.stop)
    weights = {"sample_weight": columns[2][mine]} if len(columns) > 2 else {}
    return {"x": shard.data, "y": shard.labels, "batch_size": BATCH, **weights}


#: By name: from columns of rows, and whether there is no end of them, what `fit` is given as x. Besides these there is
#: "DataSet for 2", whose rows one rank has in the order of two ranks.
SOURCES = {
    "arrays": None,
    "tf.data": lambda columns, forever: _slices(columns, forever).map(lambda *row: row).batch(BATCH),
    "drawing": _drawing,
    "pure": Pure,
    "impure": Impure,
    "generator": _generated,
    "from_generator": _from_generator,
}


def _given(source, rows=ROWS, weighted=False, forever=False, split=0.0):
    """The arguments of `fit` that have data, of which it will split off a part."""
    columns = _rows(rows, weighted)
    if source.startswith("DataSet"):
        return _shard(columns, int(source[-1]), split)
    if source == "arrays":
        weights = {"sample_weight": columns[2]} if weighted else {}
        return {"x": columns[0], "y": columns[1], "batch_size": BATCH, **weights}
    return {"x": SOURCES[source](columns, forever)}


def _validation():
    return {"validation_data": _generated(_rows(11, True), False), "validation_steps": 2}


#: By name: what `fit` is asked for, of a source.
OPTIONS = {
    "a row is left": lambda source: {**_given(source), "epochs": 2},
    "some epochs": lambda source: {**_given(source), "epochs": 4, "initial_epoch": 2},
    "split": lambda source: {
        **_given(source, split=0.25),
        "epochs": 2,
        "validation_split": 0.25,
        "validation_freq": 2,
    },
    "validation by a generator": lambda source: {**_given(source), "epochs": 2, "validation_freq": 2, **_validation()},
    "fewer steps": lambda source: {**_given(source), "epochs": 3, "steps_per_epoch": 3},
    "more steps": lambda source: {**_given(source), "epochs": 2, "steps_per_epoch": 6},
    "class weights": lambda source: {**_given(source), "class_weight": WEIGHTS, "validation_data": _rows(5, False)},
    "weights": lambda source: {"sample_weight": weights_for(ROWS), **_given(source, weighted="DataSet" in source)},
    "weights in batches": lambda source: _given(source, weighted=True),
    "both weights": lambda source: {**_given(source, weighted=True), "class_weight": WEIGHTS},
    "no end": lambda source: {**_given(source, forever=True), "epochs": 2, "steps_per_epoch": 5},
    "nothing": lambda source: _given(source, rows=0),
    "a row": lambda source: {**_given(source, rows=1), "epochs": 2},
}


def flips(parallel):
    """Images as docs/data.md flips them: the sums of the left halves of the images, in their order, by epoch."""
    seen = []

    class Looking(keras.Model):
        def train_step(self, data):
            images, numbers = data
            tf.numpy_function(lambda *rows: seen.append(rows), [images[:, :, :2], numbers], [])
            return {"loss": tf.constant(0.0)}

    def augment(image, label):
        return tf.image.random_flip_left_right(image), label

    keras.utils.set_random_seed(11)
    images = np.arange(12 * 4 * 4 * 1, dtype="float32").reshape(12, 4, 4, 1)
    data = (
        tf.data.Dataset.from_tensor_slices((images, np.arange(12)))
        .shuffle(len(images), seed=4)
        .map(augment, num_parallel_calls=tf.data.AUTOTUNE if parallel else None)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )
    model = Looking()
    model.compile(loss="mse", jit_compile=False)
    model.fit(data, epochs=3, verbose=0)
    flipped = {
        (place // 3, int(number)): float(half.sum())
        for place, (halves, numbers) in enumerate(seen)
        for half, number in zip(halves, numbers, strict=True)
    }
    return [[flipped[epoch, number] for number in range(12)] for epoch in range(3)]


def fitted(source):
    """By option: the history and the weights, or what Keras raises."""
    model = compiled(classifier())
    begin, slots = model.get_weights(), [one.numpy() for one in model.optimizer.variables]
    results = {}
    for option in OPTIONS:
        keras.utils.set_random_seed(11)
        model.set_weights(begin)
        for variable, value in zip(model.optimizer.variables, slots, strict=True):
            variable.assign(value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras: the input ran out of data
                arguments = OPTIONS[option](source)
                arguments["shuffle"] = source == "arrays"
                history = model.fit(**arguments, verbose=0)
        except Exception as error:
            results[option] = f"{type(error).__name__}: {str(error)[:120]}"
        else:
            results[option] = {"history": history.history, "epoch": history.epoch, "weights": model.get_weights()}
    return results
