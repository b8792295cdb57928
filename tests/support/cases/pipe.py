"""Pipe-SGD and codecs on trainings; on one rank a plain loop that delays gradients by its own means."""

from __future__ import annotations

import contextlib
from collections import deque

import keras
import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import row_partition, world
from matex_tf.state import run_state
from tests.support.cases.common import classifier, compiled, crossentropy, momentum, numbers, result_of, table

BATCH, EPOCHS = 25, 2


@contextlib.contextmanager
def chosen(hosts="", **changes):
    """Run with other settings, and as if ranks were on hosts of these names."""
    ranks = world.current()
    apart = ranks.subset(list(range(ranks.size)), host=hosts[ranks.rank]) if hosts and ranks.size > 1 else None
    before = settings.use(settings.current().changed(**changes))
    try:
        with world.use(apart or ranks):
            yield
    finally:
        settings.use(before)
        if apart is not None:
            apart.free()


@contextlib.contextmanager
def run_with(**chosen):
    """The settings of a run of its own: the defaults, a seed, and what is chosen."""
    before = settings.use(settings.Settings().changed(**{"seed": 1, "notes": False, **chosen}))
    try:
        yield
    finally:
        settings.use(before)


def rules():
    """Optimizers with something to do before or after they apply a gradient."""
    from keras import optimizers

    return {
        "momentum": lambda: momentum(),
        "clipped": lambda: optimizers.Adam(0.01, global_clipnorm=0.05, weight_decay=0.01),
        "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)),
        "average": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
        "accumulation": lambda: momentum(gradient_accumulation_steps=3),
        "scaled": lambda: optimizers.LossScaleOptimizer(momentum(), initial_scale=64.0, dynamic_growth_steps=2),
    }


def looked_up():
    """A model with a sparse gradient, and its data."""
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 5), keras.layers.Flatten()]
    random = np.random.RandomState(0)
    x = random.randint(0, 9, (101, 4)).astype("int32")
    return keras.Sequential([*layers, keras.layers.Dense(3)]), x, (x.sum(1) % 3).astype("int32")


def delayed(
    rule="momentum", width=2, warmup=0, predict=False, sparse=False, eager=False, hosts="", units=0, ranks=2, **changes
):
    """A training with gradients that come late; on one rank what `ranks` of them do."""
    with chosen(hosts, strategy="pipe", pipe_width=width, pipe_warmup=warmup, pipe_predict=predict, **changes):
        if sparse:
            model, x, y = looked_up()
        else:
            model, (x, y) = classifier(), table()
        if units:
            keras.utils.set_random_seed(5)
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(units), keras.layers.Dense(3)])
        compiled(model, optimizer=rules()[rule](), run_eagerly=eager)
        if world.size() > 1:
            history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
            return result_of(model, losses=numbers(history.history["loss"]))
        return result_of(model, losses=plain_loop(model, x, y, width, warmup, ranks if predict else 1))


def plain_loop(model, x, y, width, warmup, ranks):
    """What Pipe-SGD is, in a loop over batches with one rank; the mean loss of each epoch.

    Args: ranks: with more than one each computes the gradient of its rows where those of its own rows, which have not
    been applied, lead to; with one at the weights that are.
    """
    under_way, steps, losses, optimizer = deque(), 0, [], model.optimizer
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    variables = model.trainable_variables
    if not optimizer.built:
        optimizer.build(variables)

    def apply(gradients):
        scale = float(np.array(optimizer.dynamic_scale)) if scaled else 1.0
        optimizer.apply([tf.constant(gradient * scale, tf.float32) for gradient in gradients], variables)

    def of_rows(rows, labels):
        with tf.GradientTape() as tape:
            loss = crossentropy()(labels, model(rows, training=True))
        found = tape.gradient(loss, [variable.value for variable in variables])
        return float(loss), [np.array(tf.convert_to_tensor(one)) for one in found]

    def of_rank(rank, rows, labels):
        """The same where a rank predicts that the weights will be."""
        changed = [*variables, *optimizer.variables]
        true = [np.array(variable) for variable in changed]
        for own, _ in under_way if ranks > 1 else ():
            apply(own[rank])
        found = of_rows(rows, labels)
        for variable, value in zip(changed, true, strict=True):
            variable.assign(value)
        return found

    for _ in range(EPOCHS):
        total = 0.0
        for low in range(0, len(x), BATCH):
            rows, labels = x[low : low + BATCH], y[low : low + BATCH]
            parts = [slice(*row_partition.span(len(rows), rank, ranks)) for rank in range(ranks)]
            counts = [part.stop - part.start for part in parts]
            found = {rank: of_rank(rank, rows[part], labels[part]) for rank, part in enumerate(parts) if counts[rank]}
            nothing = 0.0, [np.zeros(variable.shape) for variable in variables]
            losses_of, own = zip(*(found.get(rank, nothing) for rank in range(ranks)), strict=True)
            mean = [np.average(ones, axis=0, weights=counts).astype("float32") for ones in zip(*own, strict=True)]
            total += np.dot(counts, losses_of)
            under_way.append((own, mean))
            steps += 1
            if len(under_way) >= (width if steps > warmup else 1):
                apply(under_way.popleft()[1])
        while under_way:
            apply(under_way.popleft()[1])
        losses.append(total / len(x))
    optimizer.finalize_variable_values(variables)  # as `fit` does at its end
    return losses


def exact(width, warmup, predict, rows=8):
    """A linear model on small whole numbers in float64, where no sum is rounded: weights after each epoch."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    random = np.random.RandomState(1)
    x, y = (
        random.randint(-1, 2, (rows * 4, 3)).astype("float64"),
        random.randint(-2, 3, (rows * 4, 1)).astype("float64"),
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    found = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: found.append(model.get_weights()[0]))
    with chosen(strategy="pipe", pipe_width=width, pipe_warmup=warmup, pipe_predict=predict):
        model.compile(optimizer=keras.optimizers.SGD(0.125), loss="mse")
        model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0, callbacks=[look])
    return x, y, found


def settled(tmp):
    """How many updates there have been, of how many steps, wherever weights are looked at; and who has what then."""
    x, y = table(100)
    found = {}
    with chosen(strategy="pipe", pipe_width=3):
        model = compiled(classifier())

        def updates():
            return int(np.array(model.optimizer.iterations))

        class Look(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                found[f"batch {batch}"] = updates()
                if batch == 3:
                    model.evaluate(x, y, verbose=0)
                    found["evaluate"] = updates()
                if batch == 8:
                    model.save_weights(f"{tmp}/all.weights.h5")
                    found["save"] = updates()

            def on_test_begin(self, logs=None):
                found.setdefault("validation", []).append(updates())

        model.fit(x, y, batch_size=10, epochs=1, verbose=0, validation_data=(x, y), callbacks=[Look()])
        found["fit"] = updates()
        model.train_on_batch(x, y)
        found["train_on_batch"] = updates()
    return found, result_of(model)


def failed():
    """Weights after four batches, and after a fifth whose step fails and is caught."""
    x, y = table(100)
    found = []
    for wrong in (False, True):
        rows = np.concatenate([x, np.full((25, x.shape[1]), np.nan, "float32")]) if wrong else x
        with chosen(strategy="pipe"):
            model = compiled(classifier())
            checked = keras.layers.Lambda(lambda z: tf.debugging.check_numerics(z, "not a number"))
            watched = compiled(keras.Sequential([keras.Input((x.shape[1],)), checked, model]))
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                watched.fit(rows, np.resize(y, len(rows)), batch_size=25, epochs=1, shuffle=False, verbose=0)
            watched.evaluate(x, y, verbose=0)
            found.append((watched.get_weights(), int(np.array(watched.optimizer.iterations))))
    return found


def width_one():
    """A pipe of width 1, and sync."""
    x, y = table()
    answers = []
    for changes in (
        {"strategy": "sync"},
        {"strategy": "pipe", "pipe_width": 1},
        {"strategy": "pipe", "pipe_warmup": 99},
    ):
        with chosen(**changes):
            model = compiled(classifier())
            answers.append(result_of(model, model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)))
    return answers


def leaves():
    """One rank evaluates where the others go on with the next step."""
    x, y = table(100)

    class Leave(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and world.rank() == 1:
                self.model.evaluate(x, y, verbose=0)

    with chosen(strategy="pipe"):
        compiled(classifier()).fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[Leave()])


def own_loop():
    """A loop of the script's own, which knows no pipe."""
    from matex_tf.patches.common import log_once

    x, y = table(100)
    model, optimizer = classifier(), momentum()
    run_state.part(log_once.Said).clear()  # what an earlier case has heard
    with chosen(strategy="pipe"):
        for rows, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(20):
            with tf.GradientTape() as tape:
                loss = crossentropy()(labels, model(rows))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return result_of(model)
