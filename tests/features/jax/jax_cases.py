"""Trainings of Keras on JAX, which `jax_rank.py` runs: what is used most."""

from __future__ import annotations

import csv

import keras
import numpy as np
from keras import layers, ops

from matex_tf import DataSet
from matex_tf.core import world
from matex_tf.state import run_state
from matex_tf.watching.meter import Meter

ROWS = 53  # of batches of 16: on 2 and on 3 ranks a batch is ragged


def data(columns=6, classes=3):
    draws = np.random.default_rng(7)
    x = draws.normal(size=(ROWS, columns)).astype("float32")
    return x, (x @ draws.normal(size=(columns, classes))).argmax(axis=1)


def images():
    draws = np.random.default_rng(8)
    x = draws.normal(size=(ROWS, 8, 8, 2)).astype("float32")
    return x, (x.mean(axis=(1, 2, 3)) > 0).astype("int32")


def weights_of(model):
    return [np.asarray(weight) for weight in model.get_weights()]


def mlp(dropout=0.3, **compiled):
    model = keras.Sequential([layers.Dense(12, "relu"), layers.Dropout(dropout), layers.Dense(3, "softmax")])
    asked = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compiled}
    model.compile(**asked)
    return model


def small(optimizer="sgd", loss="mse", **compiled):
    model = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(3)])
    model.compile(optimizer, loss, **compiled)
    return model


def targets():
    x, y = data()
    return x, np.eye(3, dtype="float32")[y]


def plain(folder):
    """Dropout, a ragged last batch, class weights, validation, all calls, and files."""
    x, y = data()
    model = mlp()
    log, best = folder / "log.csv", folder / "best.keras"
    history = model.fit(
        x, y, batch_size=16, epochs=3, verbose=0, validation_split=0.3, class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        callbacks=[
            keras.callbacks.CSVLogger(str(log)),
            keras.callbacks.ModelCheckpoint(str(best), save_best_only=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
        ],
    )  # fmt: skip
    predicted = model.predict(x, batch_size=20, verbose=0)
    assert predicted.shape == (ROWS, 3)
    with keras.device("cpu:0"):  # of this rank
        assert float(keras.ops.sum(keras.ops.ones(3))) == 3
    again = keras.models.load_model(best)
    with open(log, newline="") as file:
        logged = [[float(value) for value in row.values()] for row in csv.DictReader(file)]
    return [
        history.history, logged, predicted, np.asarray(model(x[:3])), again.predict(x[:20], verbose=0),
        model.evaluate(x[:37], y[:37], batch_size=16, verbose=0, sample_weight=np.linspace(0, 1, 37)),
        model.train_on_batch(x[:1], y[:1]), model.test_on_batch(x[:16], y[:16]), model.predict_on_batch(x[:20]),
        weights_of(model),
    ]  # fmt: skip


def convolution(folder):
    """Batch normalization, noise, an optimizer that scales the loss, several steps at once."""
    x, y = images()
    model = keras.Sequential(
        [
            *(layers.GaussianNoise(0.1), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU()),
            *(layers.GlobalAveragePooling2D(), layers.Dense(1, "sigmoid")),
        ]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=8.0)
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy", "auc"], steps_per_execution=2)
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return [history.history, model.predict(x, verbose=0), weights_of(model)]


class OwnStep(keras.Model):
    """A stateless step with a penalty, and a metric of its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.seen = keras.metrics.Sum(name="seen")

    def call(self, x):
        return self.dense(x)

    def value(self, trainable, others, x, y):
        predicted, others = self.stateless_call(trainable, others, x)
        distances = ops.mean(ops.square(ops.expand_dims(predicted, 0) - ops.expand_dims(predicted, 1)))
        return ops.mean(ops.square(predicted[:, 0] - y)) + 0.1 * distances, others  # rows are compared with one another

    def train_step(self, state, batch):
        import jax

        trainable, others, kept, metrics = state
        x, y = batch
        (loss, others), gradients = jax.value_and_grad(self.value, has_aux=True)(trainable, others, x, y)
        trainable, kept = self.optimizer.stateless_apply(kept, gradients, trainable)
        seen = self.seen.stateless_update_state(metrics[-len(self.seen.variables) :], ops.ones_like(y))
        metrics = [*metrics[: -len(self.seen.variables)], *seen]
        logs = {"loss": loss, "rows": ops.cast(ops.shape(x)[0], "float32"), "seen": self.seen.stateless_result(seen)}
        return logs, (trainable, others, kept, metrics)


def own_step(folder):
    x, y = data()
    model = OwnStep()
    model.compile(keras.optimizers.SGD(0.05))
    meter = run_state.current().part(Meter)
    steps, rows = meter.step, meter.rows
    history = model.fit(x, y.astype("float32"), batch_size=16, epochs=2, verbose=0)
    assert world.current().is_single or (meter.step - steps, meter.rows - rows) == (8, 2 * ROWS)
    return [history.history, weights_of(model)]


def optimizers(folder):
    x, y = data()
    results = []
    for name in ("RMSprop", "AdamW", "Adafactor", "Muon"):
        options = {"RMSprop": {"gradient_accumulation_steps": 2}, "AdamW": {"global_clipnorm": 0.1}}.get(name, {})
        model = keras.Sequential([layers.Dense(3)])
        model.compile(getattr(keras.optimizers, name)(0.01, **options), "mse")
        model.fit(x, x[:, :3], batch_size=ROWS, epochs=2, verbose=0)
        results.append(weights_of(model))
    return results


class Parts(keras.utils.PyDataset):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = data()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.x[index * 16 : (index + 1) * 16], self.y[index * 16 : (index + 1) * 16]


def sources(folder):
    """A PyDataset with threads, generators with an end and without, and a file of which each rank reads a part."""
    x, y = data()
    model = mlp()
    results = [model.fit(Parts(workers=2), epochs=2, verbose=0).history]

    def forever():
        while True:
            chosen = np.random.permutation(ROWS)[:10]
            yield x[chosen], y[chosen]

    results.append(model.fit(forever(), steps_per_epoch=3, epochs=2, verbose=0).history)
    results.append(model.evaluate(((x[i : i + 16], y[i : i + 16]) for i in range(0, 48, 16)), verbose=0))
    table = folder / "table.csv"
    lines = [",".join(map(str, [*row, label])) for row, label in zip(x.tolist(), y, strict=True)]
    table.write_text("\n".join(["a,b,c,d,e,f,label", *lines, ""]))
    rows = DataSet.open(str(table), y="label")
    results.append(model.fit(rows.data, rows.labels, batch_size=16, validation_split=0.2, verbose=0).history)
    return [*results, model.predict(rows.data, verbose=0), weights_of(model)]


def several_inputs(folder):
    """Inputs and outputs with names, with other numbers of dimensions, and one row in the last batch."""
    x, y = data()
    left, right = layers.Input((6,), name="left"), layers.Input((), dtype="int32", name="right")
    joined = layers.Concatenate()([layers.Dense(4)(left), layers.Embedding(3, 4)(right)])
    outputs = {"a": layers.Dense(1, name="a")(joined), "b": layers.Dense(2, name="b")(joined)}
    model = keras.Model({"left": left, "right": right}, outputs)
    model.compile("adam", {"a": "mse", "b": "mae"}, loss_weights={"a": 2.0, "b": 1.0})
    inputs, targets = {"left": x, "right": y}, {"a": x[:, :1], "b": x[:, :2]}
    history = model.fit(inputs, targets, batch_size=26, epochs=2, verbose=0)
    return [history.history, model.predict(inputs, verbose=0), weights_of(model)]


def stops(folder):
    """Early stopping, and a callback that ends a training in the middle of an epoch."""
    x, y = data()
    model = mlp()
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.5, restore_best_weights=True)
    first = model.fit(x, y, epochs=9, verbose=0, validation_data=(x, y), callbacks=[stopping]).history

    class AfterTwo(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    second = model.fit(x, y, epochs=9, batch_size=8, verbose=0, callbacks=[AfterTwo()]).history
    return [first, second, weights_of(model)]


def eager(folder):
    """Steps that are not compiled: every rank computes them whole."""
    x, y = data()
    model = mlp(run_eagerly=True)
    return [model.fit(x[:20], y[:20], batch_size=16, epochs=1, verbose=0).history, weights_of(model)]


def tf_data(folder):
    """A pipeline of TensorFlow."""
    import tensorflow as tf

    x, y = data()
    pipeline = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).map(lambda a, b: (a * 2, b)).batch(16)
    model = mlp()
    history = model.fit(pipeline, epochs=2, verbose=0).history
    return [history, model.predict(pipeline.map(lambda a, b: a).take(2), verbose=0).shape, weights_of(model)]


USUAL = (plain, convolution, own_step, optimizers, sources, several_inputs, stops, eager, tf_data)
