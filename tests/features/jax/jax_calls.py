"""Trainings of Keras on JAX, which `jax_rank.py` runs: calls, callbacks, files, sources, distributions of a script."""

from __future__ import annotations

import csv
import json
import os

import keras
import numpy as np
from jax_cases import ROWS, data, mlp, small, targets, weights_of
from keras import layers

from matex_tf import DataSet
from matex_tf.core import world
from matex_tf.errors import RanksDisagree


def on_batches(folder):
    """The calls with one batch, in a loop; weights of rows and classes; batches that are smaller than the ranks."""
    x, y = data()
    model = mlp()
    results = []
    for step, rows in enumerate((16, 5, 1, 2, 16)):
        begin = 3 * step
        batch, labels = x[begin : begin + rows], y[begin : begin + rows]
        weights = np.arange(1, rows + 1, dtype="float32")
        results += [
            model.train_on_batch(batch, labels, sample_weight=weights, return_dict=True),
            model.train_on_batch(batch, labels, class_weight={0: 1.0, 1: 2.0, 2: 3.0}),
            model.test_on_batch(batch, labels, sample_weight=weights),
            model.predict_on_batch(batch),
        ]
    return [*results, weights_of(model)]


def ways(folder):
    """Steps that are compiled or not, and several of them at once; inputs of other kinds."""
    import jax.numpy as jnp

    x, y = targets()
    results = []
    for options in ({"jit_compile": True, "steps_per_execution": 3}, {"jit_compile": False}, {"run_eagerly": True}):
        model = small("adam", metrics=["mae"], **options)
        results += [
            model.fit(jnp.asarray(x), jnp.asarray(y), batch_size=16, epochs=2, verbose=0, shuffle=False).history,
            model.evaluate(x.astype("float64"), y, batch_size=16, verbose=0),
            model.predict((x * 9).astype("int8"), batch_size=16, verbose=0), model.predict(x, steps=2, verbose=0),
            weights_of(model),
        ]  # fmt: skip
    return results


class Watch(keras.callbacks.Callback):
    """Uses the model in the middle of an epoch."""

    def __init__(self, x):
        super().__init__()
        self.x, self.seen = x, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((dict(logs), [float(np.sum(weight)) for weight in self.model.get_weights()]))
        if batch == 1:
            self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])
            self.model.optimizer.learning_rate = 0.02

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((self.model.predict(self.x, verbose=0), np.asarray(self.model(self.x[:5]))))


def callbacks(folder):
    x, y = targets()
    lines, epochs = folder / "log.jsonl", []
    model = small("adam", metrics=["mae"])
    watch = Watch(x)
    opened = lines.open("w")  # closed by a callback
    history = model.fit(
        x, y, batch_size=16, epochs=4, verbose=0, validation_data=(x[:9], y[:9]), validation_freq=2,
        callbacks=[
            watch, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: epochs.append(epoch),
                on_epoch_end=lambda epoch, logs: opened.write(json.dumps({"epoch": epoch, **logs}) + "\n"),
                on_train_end=lambda logs: opened.close(),
            ),
            keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.weights.h5"), save_weights_only=True),
            keras.callbacks.ModelCheckpoint(str(folder / "steps.keras"), save_freq=3),
            keras.callbacks.CSVLogger(str(folder / "log.csv"), append=True),
            keras.callbacks.TerminateOnNaN(), keras.callbacks.BackupAndRestore(str(folder / "back")),
        ],
    )  # fmt: skip
    again = small()
    again.build((None, 6))
    again.load_weights(folder / "2.weights.h5")
    with open(folder / "log.csv", newline="") as file:
        logged = [[float(value.replace("NA", "0")) for value in row.values()] for row in csv.DictReader(file)]
    written = [list(map(float, json.loads(line).values())) for line in lines.read_text().splitlines()]
    steps = keras.models.load_model(folder / "steps.keras").predict(x, verbose=0)
    return [history.history, watch.seen, epochs, written, logged, weights_of(again), steps, weights_of(model)]


def changes(folder):
    """Layers that are frozen, models that are made of others, compiled again, saved, loaded and trained on."""
    x, y = targets()
    model = small("adam")
    results = [model.fit(x, y, verbose=0).history]
    model.layers[0].trainable = False
    model.compile("adam", "mae", metrics=["mse"])
    results.append(model.fit(x, y, verbose=0).history)
    model.save(folder / "model.keras")
    again = keras.models.load_model(folder / "model.keras")
    results.append(again.fit(x, y, batch_size=16, epochs=2, verbose=0).history)
    joined = keras.Sequential([again, layers.Dense(1)])
    joined.compile(keras.optimizers.SGD(0.1), "mse")
    results.append(joined.fit(x, x[:, :1], batch_size=16, initial_epoch=1, epochs=3, verbose=0).history)
    copied = keras.models.clone_model(again)
    copied.set_weights(again.get_weights())
    return [*results, copied.predict(x, verbose=0), weights_of(joined)]


def other_rows(folder):
    """A generator that gives each rank other rows: every rank raises an error, and they go on together."""
    x, y = data()

    def rows():
        while True:
            yield np.frombuffer(os.urandom(6), np.uint8).reshape(1, 6), y[:1]

    try:
        mlp().fit(rows(), steps_per_epoch=3, verbose=0)
    except RanksDisagree as error:
        return "Every rank makes the whole data, and takes its rows" in str(error)
    return world.current().is_single


def files(folder):
    """Rows of a file of HDF5, of which each rank reads a part."""
    import h5py

    x, y = data()
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"], file["labels"] = x, y
    rows = DataSet.open(str(folder / "rows.h5"), x="data", y="labels")
    model = mlp()
    history = model.fit(rows.data, rows.labels, batch_size=16, epochs=2, verbose=0, validation_split=0.3)
    return [history.history, model.evaluate(rows.data, rows.labels, verbose=0), model.predict(rows.data, verbose=0)]


def grains(folder):
    """A pipeline of Grain."""
    import grain

    x, y = data()
    pairs = (
        grain.MapDataset.source(list(zip(x, y, strict=True))).shuffle(seed=4).map(lambda pair: (pair[0] * 2, pair[1]))
    )
    model = mlp()
    results = [model.fit(pairs.batch(16), epochs=2, verbose=0).history]
    loader = grain.DataLoader(
        data_source=list(zip(x, y, strict=True)), sampler=grain.samplers.SequentialSampler(ROWS),
        operations=[grain.transforms.Batch(20)],
    )  # fmt: skip
    results.append(model.evaluate(loader, verbose=0))
    results.append(model.fit(pairs.to_iter_dataset().batch(16), epochs=1, verbose=0).history)
    return [*results, weights_of(model)]


def distributed(kind):
    """Keras' guide to `keras.distribution`, with ragged batches, files and all calls."""

    def case(folder):
        x, y = data()
        devices = keras.distribution.list_devices()
        if kind == "data":
            distribution = keras.distribution.DataParallel(devices=devices)
        else:
            shape = (1, len(devices)) if kind == "model" else (len(devices), 1)
            layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(shape, ["batch", "model"], devices))
            layout_map[".*dense.*kernel"] = (None, "model")
            layout_map[".*dense.*bias"] = ("model",)
            distribution = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
        with distribution.scope():
            model = keras.Sequential([layers.Dense(12, "relu"), layers.Dropout(0.2), layers.Dense(6, "softmax")])
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
            seen = []

            class Lies(keras.callbacks.Callback):
                def on_train_batch_end(self, batch, logs=None):
                    kept = self._model._jax_state["trainable_variables"][0]
                    seen.append(kept.addressable_shards[0].data.shape[1] * (len(devices) if kind == "model" else 1))

            best = keras.callbacks.ModelCheckpoint(str(folder / "best.keras"))
            history = model.fit(
                x, y, batch_size=16, epochs=2, verbose=0, validation_split=0.2, callbacks=[best, Lies()]
            )
            again = keras.models.load_model(folder / "best.keras")
            return [
                history.history, seen, model.train_on_batch(x[:5], y[:5]), model.evaluate(x, y, verbose=0),
                model.predict(x, batch_size=16, verbose=0), again.predict(x, verbose=0), np.asarray(model(x[:3])),
                weights_of(model), [np.asarray(one.value) for one in model.optimizer.variables],
            ]  # fmt: skip

    case.__name__ = f"distribution_{kind}"
    return case


KINDS = tuple(map(distributed, ("data", "model", "both")))
CALLS = (other_rows, on_batches, ways, callbacks, changes, files, grains, *KINDS)
