"""Trainings of groups of ranks that train apart."""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf

from matex_tf.core import world
from tests.features.groups.cases.local import Watch, regression
from tests.support.cases.common import classifier, compiled, momentum, numbers, table
from tests.support.cases.models import train
from tests.support.cases.pipe import run_with


def linear(rows=56, batch=8, epochs=2, center=None, **chosen):
    """A linear regression; the weights after each step, and the center at the end.

    Args:
        center: weights that a callback sets after the first epoch.
    """
    with run_with(**chosen):
        x, y, model = regression(rows)
        watch = Watch()
        shown = []

        def at_end(epoch, logs):
            shown.append(model.get_weights()[0][:, 0])
            if center is not None and epoch == 0:
                model.set_weights([np.full((3, 1), center, "float32")])

        seen = keras.callbacks.LambdaCallback(on_epoch_end=at_end)
        model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=[watch, seen])
        return {"batches": np.array(watch.batches), "end": model.get_weights()[0][:, 0], "shown": shown}


def synchronous(**chosen):
    """What is sync by its options: the answer of one rank."""
    x, y = table()
    with run_with(**chosen):
        return train(compiled(classifier(), momentum()), x, y)


def rows_once(rows=101, batch=12, **chosen):
    """Each row has a number, and the mean of them over an epoch is known; how many steps each rank made."""
    x, y = table(rows)
    number = np.arange(rows, dtype="float32") ** 2
    with run_with(**chosen):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])

        def mean_number(y_true, y_pred):
            return y_true[:, 0]

        def error(y_true, y_pred):
            return keras.ops.mean(keras.ops.square(y_pred), axis=-1)

        model.compile(keras.optimizers.SGD(0.01), error, metrics=[mean_number])
        history = model.fit(x, number[:, None], batch_size=batch, epochs=3, shuffle=True, verbose=0).history
        steps = int(model.optimizer.iterations.numpy())
        return {"mean": numbers(history["mean_number"]), "wanted": float(number.mean()), "steps": steps}


def goes_on(**chosen):
    """A model that is trained twice, whose weights are set, and that is given single batches."""
    x, y = table()
    with run_with(**chosen):
        model = compiled(classifier(), momentum())
        start = model.get_weights()
        losses = model.fit(x, y, batch_size=25, epochs=10, verbose=0, validation_data=(x, y)).history["val_loss"]
        model.set_weights(start)
        single = [numbers(model.train_on_batch(x[:30], y[:30])) for _ in range(2)]
        again = model.fit(x, y, batch_size=25, epochs=10, verbose=0, validation_data=(x, y)).history["val_loss"]
        evaluated = numbers(model.evaluate(x, y, verbose=0))
    weights = [np.array(weight) for weight in model.weights]
    return {"losses": losses, "single": single, "again": again, "evaluated": evaluated, "weights": weights}


def own_rows(**chosen):
    """Each rank holds rows of its own."""
    x, y = table(80 + 10 * world.rank(), seed=world.rank())
    with run_with(**chosen):
        model = compiled(classifier(), momentum(0.01))
        return {"losses": model.fit(x, y, batch_size=20, epochs=4, verbose=0).history["loss"]}


class Seen(keras.callbacks.Callback):
    """Reads the logs of every batch."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(numbers(logs))


def _callbacks(tmp):
    """Each callback of Keras that works in any script, set to act on batches where it can."""
    of_keras = keras.callbacks
    return {
        "BackupAndRestore": lambda: of_keras.BackupAndRestore(f"{tmp}/backup"),
        "CSVLogger": lambda: of_keras.CSVLogger(f"{tmp}/log.csv"),
        "EarlyStopping": lambda: of_keras.EarlyStopping("loss", patience=50),
        "LambdaCallback": lambda: of_keras.LambdaCallback(on_train_batch_end=lambda batch, logs: logs["loss"]),
        "LearningRateScheduler": lambda: of_keras.LearningRateScheduler(lambda epoch, rate: rate),
        "ModelCheckpoint": lambda: of_keras.ModelCheckpoint(
            f"{tmp}/model.weights.h5", save_weights_only=True, save_freq=3
        ),
        "ReduceLROnPlateau": lambda: of_keras.ReduceLROnPlateau("loss", patience=50),
        "TensorBoard": lambda: of_keras.TensorBoard(f"{tmp}/board", update_freq=2),
        "TerminateOnNaN": lambda: of_keras.TerminateOnNaN(),
    }


#: Those that need something else: a server, Orbax, an optimizer with averages of weights; and what is no callback for
#: scripts.
WITH_MORE = {
    "Callback",
    "CallbackList",
    "History",
    "OrbaxCheckpoint",
    "ProgbarLogger",
    "RemoteMonitor",
    "SwapEMAWeights",
}


def with_callbacks(tmp, epochs=4, **chosen):
    """A training with the default progress bar, one with each callback of Keras, and one that reads every batch's logs.

    Batches are of 12 rows, and the last of an epoch is of one: most groups have none of it.
    """
    os.makedirs(tmp, exist_ok=True)
    x, y = table(97)
    known = _callbacks(tmp)
    unknown = {name for name in dir(keras.callbacks) if name[0].isupper()} - set(known) - WITH_MORE
    assert not unknown, unknown
    every = {"bar": None, **known, "seen": Seen}
    losses, seen = {}, []
    with run_with(**chosen):
        model = compiled(classifier(), momentum(0.02))
        for name, make in every.items():
            callbacks = [] if make is None else [make()]
            options = {} if make is None else {"verbose": 0}
            history = model.fit(x, y, batch_size=12, epochs=epochs, callbacks=callbacks, **options).history
            losses[name] = numbers(history["loss"])
            seen = callbacks[0].logs if make is Seen else seen
    return {"losses": losses, "seen": seen}


class Averaging(keras.Sequential):
    """A step that returns the mean of a column of its rows."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "column": tf.reduce_mean(data[0][:, 0])}


def means_of_rows(rows=30, batch=15, **chosen):
    """What a step of the script's own computes of its rows is 5 for each batch, and has to be that in its logs.

    The second batch of each epoch is of one row.
    """
    x, y = table(rows + 1)
    x[:, 0] = 5.0
    seen = Seen()
    with run_with(**chosen):
        model = compiled(Averaging([keras.Input((6,)), keras.layers.Dense(3)]), momentum(0.01))
        history = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, callbacks=[seen]).history
    return {"batches": [logs["column"] for logs in seen.logs], "epochs": numbers(history["column"])}


def few_rows(**chosen):
    """Batches of two rows: a group of three has none of each batch."""
    x, y = table(16)
    seen = Seen()
    with run_with(**chosen):
        model = compiled(classifier(), momentum(0.01))
        history = model.fit(x, y, batch_size=2, epochs=6, verbose=0, callbacks=[seen]).history
        single = numbers(model.train_on_batch(x[:2], y[:2]))
    return {"losses": numbers(history["loss"]), "steps": len(seen.logs), "single": single}
