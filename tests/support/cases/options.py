"""The options of `fit`, and the other ways to run a model."""

from __future__ import annotations

import contextlib
import dataclasses
import io

import keras
import numpy as np
import tensorflow as tf

from matex_tf import settings
from tests.support.cases.common import classifier, compiled, momentum, numbers, result_of, table, weights_for


def fit(
    with_weights=False,
    with_validation=False,
    class_weight=None,
    compile_options=None,
    rows=101,
    lazily=False,
    **options,
):
    """A training with any options of `fit` and `compile`.

    Args:
        with_weights: give sample weights for each row.
        with_validation: give other rows, with weights of their own, as validation data.
        class_weight: as pairs.
        lazily: see `compiled`.
    """
    x, y = table(rows)
    model = compiled(classifier(), lazily=lazily, **(compile_options or {}))
    if with_weights:
        options["sample_weight"] = weights_for(rows)
    if with_validation:
        options["validation_data"] = (*table(38, seed=1), weights_for(38)[::-1])
    if class_weight:
        options["class_weight"] = dict(class_weight)
    history = model.fit(x, y, **{"batch_size": 25, "epochs": 2, "verbose": 0, **options})
    return result_of(model, history)


def train_on_batches():
    """`train_on_batch` and `test_on_batch` in a loop of the user's own; their numbers are those of the batch."""
    x, y = table()
    model = compiled(classifier())
    seen = []
    for epoch in range(2):
        model.reset_metrics()
        for low in range(0, 101, 25):
            rows = slice(low, low + 25)
            weight = weights_for(101)[rows] if epoch else None
            seen.append(model.train_on_batch(x[rows], y[rows], sample_weight=weight))
    seen.append(model.train_on_batch(x[:7], y[:7], class_weight={0: 1.0, 1: 3.0, 2: 0.5}, return_dict=True))
    seen.append(model.test_on_batch(x[:30], y[:30]))
    seen.append(model.test_on_batch(x[:2], y[:2], return_dict=True))
    return result_of(model, seen=numbers(seen))


def evaluate_and_predict():
    """What the other methods return, from a model that was never trained here."""
    x, y = table()
    model = compiled(classifier())
    return {
        "list": numbers(model.evaluate(x, y, batch_size=25, verbose=0)),
        "dict": numbers(model.evaluate(x, y, batch_size=7, return_dict=True, verbose=0)),
        "weighted": numbers(model.evaluate(x, y, batch_size=25, sample_weight=weights_for(101), verbose=0)),
        "steps": numbers(model.evaluate(x, y, batch_size=25, steps=2, verbose=0)),
        "predict": model.predict(x, batch_size=25, verbose=0),
        "few rows": model.predict(x[:2], verbose=0),
        "one row": model.predict(x[:1], verbose=0),
        "some steps": model.predict(x, batch_size=25, steps=3, verbose=0),
        "on a batch": model.predict_on_batch(x[:10]),
        "called": np.array(model(x[:10])),
    }


def predict_structures():
    """Predictions in lists and dicts, of several axes, from a model that was never compiled."""
    x, _ = table(53)
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(12)(inputs)
    outputs = {"flat": hidden, "image": keras.layers.Reshape((2, 3, 2))(hidden)}
    named = keras.Model(inputs, outputs)
    listed = keras.Model(inputs, [hidden, keras.layers.Reshape((3, 4))(hidden)])
    return [
        named.predict(x, batch_size=10, verbose=0),
        listed.predict(x, batch_size=26, verbose=0),
    ]


def two_fits():
    """A second `fit` goes on where the first one ended; between them the weights are looked at and changed."""
    x, y = table()
    model = compiled(classifier())
    first = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    between = numbers(model.evaluate(x, y, verbose=0))
    model.layers[1].set_weights([0.5 * weight for weight in model.layers[1].get_weights()])
    second = model.fit(x[:50], y[:50], batch_size=16, initial_epoch=2, epochs=4, verbose=0)
    compiled(model, optimizer=momentum(0.01), metrics=None)
    third = model.fit(x, y, batch_size=25, verbose=0)
    return result_of(model, third, first=numbers(first.history), second=numbers(second.history), between=between)


def two_models():
    """The second model learns from what the first one predicts, and shares a layer with it."""
    x, y = table()
    teacher = compiled(classifier())
    first = teacher.fit(x, y, batch_size=25, epochs=2, verbose=0)
    targets = teacher.predict(x, batch_size=25, verbose=0)
    student = keras.Sequential([keras.Input((6,)), teacher.layers[0], keras.layers.Dense(3)])
    student.compile(optimizer=momentum(), loss="mse")
    second = student.fit(x, targets, batch_size=25, epochs=2, verbose=0)
    again = teacher.fit(x, y, batch_size=25, epochs=1, verbose=0)
    return [result_of(teacher, first), result_of(student, second), numbers(again.history)]


def called_outside():
    """A model that is called, differentiated and updated by the script itself, before and after a `fit`."""
    import tensorflow as tf

    x, y = table()
    model = compiled(classifier())
    before = np.array(model(x))
    history = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = [np.array(g) for g in tape.gradient(loss, model.trainable_variables)]
    return result_of(model, history, before=before, after=np.array(model(x)), loss=float(loss), gradients=gradients)


def own_loop():
    """A training loop of the script's own, with `tf.function`, tape and optimizer: every rank sees every row."""
    import tensorflow as tf

    x, y = table()
    model, optimizer, loss_of = classifier(), momentum(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    losses = [float(step(x[low : low + 25], y[low : low + 25])) for _ in range(2) for low in range(0, 101, 25)]
    return result_of(model, losses=losses)


def predict_ragged():
    """A model whose predictions are rows of different lengths."""

    class Cut(keras.Model):
        def predict_step(self, data):
            x = data[0] if isinstance(data, tuple) else data
            return tf.RaggedTensor.from_tensor(x, lengths=tf.cast(tf.reduce_sum(tf.abs(x), 1), tf.int64) % 6)

    ragged = Cut().predict(table()[0], batch_size=25, verbose=0)
    return {"rows": ragged.to_list(), "shape": list(ragged.shape)}


def bar_of_whole_batches(kind):
    """What `fit` prints where each rank takes whole batches: 11 of them, the last one ragged."""
    x, y = table(101)
    data = (x, y) if kind == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)).batch(10),)
    size = {"batch_size": 10} if kind == "arrays" else {}
    before = settings.use(dataclasses.replace(settings.current(), batch="per-rank"))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            model = compiled(classifier())
            model.fit(*data, epochs=2, verbose=1, **size)
    finally:
        settings.use(before)
    return printed.getvalue(), int(model.optimizer.iterations)


def ended_after(steps):
    """`fit` with `--steps`; whether the script was told to end, as by `sys.exit()`, and after how many steps."""
    from matex_tf import settings
    from matex_tf.state import run_state

    run = run_state.current()
    before = settings.use(dataclasses.replace(settings.current(), steps=run.trained + steps, notes=True))
    x, y = table(40)
    model, begin = compiled(classifier()), run.trained
    try:
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    except SystemExit as asked:
        return asked.code, run.trained - begin
    finally:
        settings.use(before)
    return None
