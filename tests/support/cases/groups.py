"""Trainings of groups of ranks that train apart."""

from __future__ import annotations

import contextlib

import keras
import numpy as np

from matex_tf import settings
from matex_tf.core import world
from tests.support.cases.common import classifier, compiled, momentum, numbers, table
from tests.support.cases.local import Watch
from tests.support.cases.models import train


@contextlib.contextmanager
def strategy(**chosen):
    """Settings of a run of groups."""
    before = settings.use(settings.Settings().changed(seed=1, notes=False, **chosen))
    try:
        yield
    finally:
        settings.use(before)


def linear(rows=56, batch=8, epochs=2, center=None, **chosen):
    """A linear regression; the weights after each step, and the center at the end.

    Args:
        center: weights that a callback sets after the first epoch.
    """
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)).astype("float32"), random.normal(size=(rows, 1)).astype("float32")
    with strategy(**chosen):
        start = keras.initializers.Constant(0.5)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
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
    with strategy(**chosen):
        return train(compiled(classifier(), momentum()), x, y)


def rows_once(rows=101, batch=12, **chosen):
    """Each row has a number, and the mean of them over an epoch is known; how many steps each rank made."""
    x, y = table(rows)
    number = np.arange(rows, dtype="float32") ** 2
    with strategy(**chosen):
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
    with strategy(**chosen):
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
    with strategy(**chosen):
        model = compiled(classifier(), momentum(0.01))
        return {"losses": model.fit(x, y, batch_size=20, epochs=4, verbose=0).history["loss"]}
