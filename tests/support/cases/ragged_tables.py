"""Tables in parts on the ranks that are looked up by ragged and sparse ids (`--shard weights`)."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.shards import variable as in_parts
from tests.support.cases.slots import sharded

CODES, WIDTH, ROWS, BATCH = 3001, 6, 21, 8  # batches of 8, 8 and 5


class Bag(keras.layers.Layer):
    """A table of one's own, and how the rows of a batch are pooled by it."""

    def __init__(self, how):
        super().__init__(dtype="float64")
        self.how = how

    def build(self, _):
        self.table = self.add_weight(shape=(CODES, WIDTH), initializer="uniform", name="table")

    def compute_output_shape(self, shape):
        return shape[0], WIDTH

    def call(self, ids):
        table, (how, _, combiner) = self.table, self.how.partition(" ")
        if how == "safe":
            return tf.nn.safe_embedding_lookup_sparse(tf.convert_to_tensor(table), _sparse(ids), combiner=combiner)
        if how == "variable":
            return tf.nn.safe_embedding_lookup_sparse(table.value, _sparse(ids), combiner=combiner)
        if how == "weighted":
            ids = _sparse(ids)
            weights = tf.SparseTensor(ids.indices, 1 / (1.0 + tf.cast(ids.values % 5, "float64")), ids.dense_shape)
            return tf.nn.embedding_lookup_sparse(table.value, ids, weights, combiner=combiner)
        found = {
            "lookup": lambda: tf.nn.embedding_lookup(table.value, ids),
            "gather": lambda: tf.gather(table, ids),
            "flat": lambda: tf.ragged.map_flat_values(tf.gather, table.value, ids),
        }[how]()
        return tf.reduce_mean(found, 1) if combiner == "mean" else tf.reduce_sum(found, 1)


class Pooled(keras.layers.Layer):
    """A mean over what a row has."""

    def compute_output_shape(self, shape):
        return shape[0], WIDTH

    def call(self, found):
        return tf.reduce_mean(found, 1)


def _sparse(ids):
    return ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids


def _model(how):
    keras.utils.set_random_seed(3)
    form = {"ragged": {"ragged": True}, "sparse": {"sparse": True}}[how.split()[-1]]
    inputs = keras.Input((None,), dtype="int64", **form)
    if how.startswith("layer"):
        hidden = Pooled(dtype="float64")(keras.layers.Embedding(CODES, WIDTH, dtype="float64")(inputs))
    else:
        hidden = Bag(how.rpartition(" ")[0])(inputs)
    hidden = keras.layers.Dense(5, activation="tanh", dtype="float64")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float64")(hidden))


def _batches(how, form):
    """Ids of which many are the same, rows without any among them."""
    random = np.random.RandomState(0)
    lengths = 1 + np.arange(ROWS) * 7 % 6
    lengths[5] = 1 if "mean" in how or how.startswith("layer") or "weighted" in how else 0
    ids = tf.RaggedTensor.from_row_lengths(random.randint(0, 40, lengths.sum()).astype("int64") ** 2, lengths)
    data = tf.data.Dataset.from_tensor_slices((ids, random.rand(ROWS, 1)))
    if form == "ragged_batch":
        return data.map(lambda x, y: (x.to_tensor() if isinstance(x, tf.RaggedTensor) else x, y)).ragged_batch(BATCH)
    data = data.batch(BATCH)
    return data.map(lambda x, y: (x.to_sparse(), y)) if how.endswith("sparse") else data


def trained(how, optimizer="Adam", form="", shard="weights"):
    """What two fits leave, with an evaluation and predictions between them; bytes of what lies in parts on this rank
    and whole; lines."""
    with sharded(shard) as lines:
        model, data = _model(how), _batches(how, form)
        model.compile(getattr(keras.optimizers, optimizer)(0.05), "mse", metrics=["mae"])
        history = [model.fit(data, epochs=2, shuffle=False, verbose=0).history]
        logs = model.evaluate(data, verbose=0, return_dict=True)
        predicted = model.predict(data, verbose=0)
        history.append(model.fit(data, epochs=1, verbose=0).history)
        tables = [one for one in [*model.weights, *model.optimizer.variables] if tuple(one.shape) == (CODES, WIDTH)]
        held = sum(map(in_parts.bytes_held, tables)), 8 * CODES * WIDTH * len(tables)
        state = [np.asarray(one) for one in [*model.weights, *model.optimizer.variables]]
        return {"history": history, "logs": logs, "predicted": predicted, "state": state}, held, lines
