"""One small training for each kind of data that Keras takes; each also evaluates and predicts from it."""

from __future__ import annotations

import random
import tempfile
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pandas as pd
import scipy.sparse
import tensorflow as tf
from keras import layers

from tests.support.cases.common import classifier, compiled, momentum, numbers, result_of, table, weights_for

BATCH = 25  # of 101 rows: the last batch has one row, fewer than ranks


def numpy_arrays(rows=101, batch=BATCH, epochs=2):
    """Arrays, shuffled as `fit` does unless told otherwise."""
    x, y = table(rows)
    model = compiled(classifier(), lazily=True)
    history = model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    return finished(model, history, (x, y), x, batch_size=batch)


def few_rows(rows):
    """Fewer rows than ranks, compiled and run eagerly."""
    x, y = table(rows)
    results = []
    for eager in (False, True):
        model = compiled(classifier(), momentum(0.02), run_eagerly=eager)
        history = model.fit(x, y, epochs=2, verbose=0)
        results.append(finished(model, history, (x, y), x))
    return results


def orders_without_a_seed(sharded, seed=None):
    """The mean square of the rows of the first batch of each epoch, of two calls of `fit` with three."""
    from matex_tf.core import world

    if seed is not None:
        keras.utils.set_random_seed(seed)
    x = np.arange(40, dtype="float32")[:, None] + (100 * world.current().rank if sharded else 0)
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    found = []

    def first(batch, logs):
        if batch == 0:
            found.append(float(logs["loss"]))

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=first)]
    for _ in range(2):
        model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
    return found


def draws_without_a_seed(seed=None):
    """The loss of each epoch of two calls of `fit` with three, on rows that a map adds noise to; all in one batch."""
    if seed is not None:
        keras.utils.set_random_seed(seed)

    def noisy(x, y):
        return x + tf.random.normal([1]), y

    x = np.arange(10, dtype="float32")[:, None]
    rows = tf.data.Dataset.from_tensor_slices((x, x)).map(noisy).batch(10)
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return [loss for _ in range(2) for loss in model.fit(rows, epochs=3, verbose=0).history["loss"]]


def digits():
    """1,797 rows in batches of 50: 47 are left."""
    x, y = table(1797, 16, 10)
    model = compiled(classifier(16, 10))
    history = model.fit(x, y, batch_size=50, epochs=2, verbose=0)
    return finished(model, history, (x, y), x, batch_size=50)


def lists():
    """A list of two inputs."""
    x, y = table()
    model = two_inputs()
    inputs = [x[:, :4], x[:, 4:]]
    history = model.fit(inputs, y, batch_size=BATCH, epochs=2, verbose=0)
    return finished(model, history, (inputs, y), inputs, batch_size=BATCH)


def nested_otherwise():
    """One model is given the same input by itself, in a list and by its name."""
    x, y = table(40)
    keras.utils.set_random_seed(7)
    inputs = layers.Input((6,), name="left")
    model = compiled(keras.Model(inputs, layers.Dense(3)(inputs)))
    ways = [x, [x], {"left": x}]
    losses = [model.fit(way, y, batch_size=BATCH, epochs=1, verbose=0).history["loss"] for way in ways]
    return losses, model.get_weights(), [model.predict(way, verbose=0) for way in ways]


def tuples():
    """A tuple of two inputs."""
    x, y = table()
    model = two_inputs()
    inputs = (x[:, :4], x[:, 4:])
    history = model.fit(inputs, y, batch_size=BATCH, epochs=2, verbose=0)
    return finished(model, history, (inputs, y), inputs, batch_size=BATCH)


def dicts():
    """Inputs, targets and sample weights by name; `predict` returns a dict of arrays."""
    x, y = table()
    keras.utils.set_random_seed(7)
    left, right = layers.Input((4,), name="left"), layers.Input((2,), name="right")
    joined = layers.Dense(8, activation="tanh")(layers.Concatenate()([left, right]))
    outputs = {"kind": layers.Dense(3, name="kind")(joined), "total": layers.Dense(1, name="total")(joined)}
    model = compiled(
        keras.Model({"left": left, "right": right}, outputs),
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "total": "mse"},
        loss_weights={"kind": 1.0, "total": 0.3},
        metrics={"kind": ["accuracy"], "total": ["mae"]},
    )
    inputs = {"left": x[:, :4], "right": x[:, 4:]}
    targets = {"kind": y, "total": x.sum(axis=1, keepdims=True)}
    weights = {"kind": weights_for(len(x)), "total": np.ones(len(x), "float32")}
    history = model.fit(inputs, targets, sample_weight=weights, batch_size=BATCH, epochs=2, verbose=0)
    return finished(model, history, (inputs, targets), inputs, batch_size=BATCH)


def frames():
    """A pandas DataFrame and a Series."""
    x, y = table()
    frame, series = pd.DataFrame(x, columns=list("abcdef")), pd.Series(y)
    model = compiled(classifier())
    history = model.fit(frame, series, batch_size=BATCH, epochs=2, verbose=0)
    return finished(model, history, (frame, series), frame, batch_size=BATCH)


def tensors():
    """TensorFlow tensors."""
    x, y = map(tf.constant, table())
    model = compiled(classifier())
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return finished(model, history, (x, y), x, batch_size=BATCH)


def dataset():
    """A tf.data pipeline that shuffles anew each epoch, and ends with a batch of one row."""
    x, y = table()
    keras.utils.set_random_seed(7)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(101).batch(BATCH).prefetch(2)
    model = compiled(classifier())
    history = model.fit(data, epochs=2, verbose=0)
    plain = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    return finished(model, history, (plain,), plain)


def dataset_with_weights():
    """Batches of three parts, the last of them sample weights; targets are a dict of one."""
    x, y = table()
    data = tf.data.Dataset.from_tensor_slices((x, y, weights_for(101))).batch(BATCH)
    model = compiled(classifier(), metrics=None, weighted_metrics=["accuracy"])
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return finished(model, history, (data,), data)


def dataset_repeat():
    """An endless pipeline, with `steps_per_epoch` that ends an epoch in the middle of the data."""
    x, y = table()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat()
    model = compiled(classifier())
    history = model.fit(data, steps_per_epoch=4, epochs=2, validation_data=data, validation_steps=2, verbose=0)
    result = result_of(model, history)
    result["evaluate"] = numbers(model.evaluate(data, steps=7, verbose=0))
    result["predict"] = model.predict(data.map(lambda x, y: x), steps=6, verbose=0)
    return result


def dataset_unknown():
    """A pipeline whose length nobody knows, of batches whose shape nobody knows."""
    x, y = table()

    def generate():
        for start in range(0, 101, BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]

    signature = (tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.int32))
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    model = compiled(classifier())
    history = model.fit(data, epochs=2, verbose=0)
    # On one rank Keras fetches the end of such data inside the graph of a step, beside which `iterations += 1` runs all
    # the same: it counts one step too many for each epoch. The weights do not see it here, the counter is left out.
    iterations = int(model.optimizer.iterations.numpy())
    assert iterations in (10, 12), iterations
    result = finished(model, history, (data,), data)
    result["optimizer"] = [value for value in result["optimizer"] if value.shape != () or value != iterations]
    return result


def dataset_drop_remainder():
    """Batches of one fixed shape."""
    x, y = table()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
    model = compiled(classifier())
    history = model.fit(data, epochs=2, verbose=0)
    return finished(model, history, (data,), data)


def sparse():
    """Batches of sparse tensors."""
    x, _ = table()
    x = np.where(x > 0.5, x, 0)
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), x.sum(1, keepdims=True))).batch(BATCH)
    inputs = keras.Input((6,), sparse=True)
    model = compiled(keras.Model(inputs, layers.Dense(1)(inputs)), momentum(0.01), "mse", ("mae",))
    keras.utils.set_random_seed(7)
    model.set_weights([np.full((6, 1), 0.1), np.zeros(1)])
    history = model.fit(data, epochs=2, verbose=0)
    return finished(model, history, (data,), data)


def sparse_eagerly():
    """Batches of sparse tensors, and an optimizer that squares what it gets for each index."""
    x, y = table()
    x = np.where(x > 0.5, x, 0)
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(BATCH)
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,), sparse=True)
    model = keras.Model(inputs, layers.Dense(3, use_bias=False)(inputs))
    compiled(model, keras.optimizers.Adagrad(0.1), run_eagerly=True)
    return result_of(model, model.fit(data, epochs=2, verbose=0))


def sparse_unbuilt(kind, eager=False, do="fit"):
    """Batches of sparse matrices for a model that is built from them; the last batch has fewer rows than ranks."""
    x, _ = table()
    x = np.where(x > 0.5, x, 0)
    y = x.sum(1, keepdims=True)

    def batches():
        for first in range(0, 101, BATCH):
            part = x[first : first + BATCH]
            yield scipy.sparse.csr_matrix(part) if kind == "scipy" else tf.sparse.from_dense(part), y[first:][:BATCH]

    keras.utils.set_random_seed(7)
    model = keras.Sequential([layers.Dense(4, use_bias=False), layers.Dense(1)])
    compiled(model, keras.optimizers.Adagrad(0.1), "mse", ("mae",), run_eagerly=eager)
    if do == "predict":
        return model.predict(batches(), verbose=0)
    if do == "evaluate":
        return model.evaluate(batches(), verbose=0)
    steps = len(range(0, 101, BATCH))  # one rank counts one more where it meets the end of data of unknown length
    return result_of(model, model.fit(batches(), steps_per_epoch=steps, verbose=0))


def strings():
    """Sentences, which the model itself cuts into words."""
    texts = np.array([["a b c"], ["b c"], ["c d e f"], ["a"]] * 25 + [["f"]])
    words = layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    words.adapt(texts[:, 0])
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [words, layers.Embedding(20, 4), layers.GlobalAveragePooling1D(), layers.Dense(1, activation="sigmoid")]
    )
    data = tf.data.Dataset.from_tensor_slices((texts, np.char.count(texts, "c"))).batch(BATCH)
    model = compiled(model, momentum(), "binary_crossentropy")
    history = model.fit(data, epochs=2, verbose=0)
    return finished(model, history, (data,), data)


class Batches(keras.utils.PyDataset):
    """A PyDataset that changes its order after each epoch."""

    def __init__(self, x, y, **options):
        super().__init__(**options)
        self.x, self.y = x, y
        self.order = np.arange(len(x))
        self.random = np.random.RandomState(3)

    def __len__(self):
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index):
        chosen = self.order[index * BATCH : (index + 1) * BATCH]
        return self.x[chosen], self.y[chosen]

    def on_epoch_end(self):
        self.random.shuffle(self.order)


def pydataset():
    """A PyDataset with two workers."""
    x, y = table()
    model = compiled(classifier())
    history = model.fit(Batches(x, y, workers=2, max_queue_size=3), epochs=2, verbose=0)
    plain = Batches(x, y)
    return finished(model, history, (plain,), Batches(x, y))


def sequence():
    """The old name, `keras.utils.Sequence`, for both training and validation."""
    x, y = table()

    class Rows(keras.utils.Sequence):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]

    model = compiled(classifier())
    history = model.fit(Rows(), validation_data=Rows(), epochs=2, shuffle=False, verbose=0)
    return finished(model, history, (Rows(),), Rows())


def generator():
    """A Python generator without end, whose batches are of many sizes."""
    x, y = table()

    def generate():
        while True:
            for low, high in ((0, 25), (25, 37), (37, 38), (38, 40), (40, 80), (80, 101)):
                yield x[low:high], y[low:high]

    model = compiled(classifier())
    history = model.fit(generate(), steps_per_epoch=5, epochs=2, verbose=0)
    result = result_of(model, history)
    result["evaluate"] = numbers(model.evaluate(generate(), steps=7, verbose=0))
    result["predict"] = model.predict(((x,) for x, _ in generate()), steps=6, verbose=0)
    return result


def small_batches():
    """A batch size below the number of ranks: nine rows, two at a time."""
    x, y = table(9)
    model = compiled(classifier(), optimizer=momentum(0.02))
    history = model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    return finished(model, history, (x, y), x, batch_size=2)


def targets_of_two_axes():
    """Images and regression targets of several columns, as float64 and uint8 arrays."""
    random = np.random.RandomState(0)
    x = random.randint(0, 255, size=(38, 5, 5, 1)).astype("uint8")
    y = random.normal(size=(38, 2))
    keras.utils.set_random_seed(7)
    model = keras.Sequential([
        layers.Input((5, 5, 1)), layers.Rescaling(1 / 255), layers.Conv2D(3, 3, activation="relu"),
        layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(2),
    ])  # fmt: skip
    model = compiled(model, loss="mse", metrics=("mae",))
    history = model.fit(x, y, batch_size=9, epochs=2, verbose=0)
    return finished(model, history, (x, y), x, batch_size=9)


def two_inputs():
    """A model of two inputs and one output."""
    keras.utils.set_random_seed(7)
    left, right = layers.Input((4,)), layers.Input((2,))
    joined = layers.Concatenate()([layers.Dense(6, activation="tanh")(left), right])
    return compiled(keras.Model([left, right], layers.Dense(3)(joined)))


def finished(model, history, arguments, inputs, **options):
    """The result of a training, with what `evaluate` and `predict` make of the same data."""
    result = result_of(model, history)
    result["evaluate"] = numbers(model.evaluate(*arguments, verbose=0, **options))
    result["predict"] = numbers(model.predict(inputs, verbose=0, **options))
    return result


def shards(parts=(40, 21, 40), shuffle=False, batch=BATCH, explicit_batch=True):
    """Each rank holds rows of its own; one rank holds all, in the order in which the ranks use theirs."""
    from matex_tf.core import world
    from matex_tf.core.row_partition import Interleaving

    ranks = world.current()
    x, y = table(sum(parts))
    turns = Interleaving(parts)
    steps = turns.batches(batch)
    if not explicit_batch:
        batch = -(-turns.total // steps)  # what Keras makes of a number of steps
    order = turns.order(batch)
    if ranks.size == 1:
        x, y = x[order], y[order]
    else:
        start = sum(parts[: ranks.rank])
        x, y = x[start : start + parts[ranks.rank]], y[start : start + parts[ranks.rank]]
    model = compiled(classifier())
    sizes = {"batch_size": batch} if explicit_batch else {"steps_per_epoch": steps}
    epochs = 3 if explicit_batch else 1
    history = model.fit(x, y, epochs=epochs, shuffle=shuffle, validation_data=(x, y), verbose=0, **sizes)
    result = result_of(model, history)
    result["evaluate"] = numbers(model.evaluate(x, y, batch_size=batch, verbose=0))
    mine = np.asarray(model.predict(x, batch_size=batch, verbose=0)).reshape(-1, 3)
    assert len(mine) == len(x)
    joined = ranks.allgather_rows(mine, "join predictions")
    result["predict"] = joined if ranks.size > 1 else joined[np.argsort(order)]
    return result


def shards_in_turn(batch=30):
    """`train_on_batch` with rows that each rank brings along."""
    from matex_tf.core import world
    from matex_tf.core.row_partition import span

    ranks = world.current()
    x, y = table(100)
    model = compiled(classifier())
    logs = []
    for start in range(0, 100, batch):
        rows = np.arange(100)[start : start + batch]
        low, high = span(len(rows), ranks.rank, ranks.size)
        logs.append(numbers(model.train_on_batch(x[rows[low:high]], y[rows[low:high]], return_dict=True)))
    return result_of(model, logs=logs)


def at_the_source(kind="map", rows=96, batch=24):
    """A tf.data pipeline with `--data source`, and how many rows this rank worked on.

    Args:
        kind: "map", rows in order; "shuffle", shuffled in front of the map; "uneven", a batch that p does not divide;
            "files", one file a class.
    """
    import dataclasses
    import tempfile

    from matex_tf import settings
    from matex_tf.core import world

    before = settings.current()
    settings.use(dataclasses.replace(before, data="source" if world.current().size > 1 else "exact"))
    worked = []
    try:
        x, y = table(rows)
        batch = 25 if kind == "uneven" else batch

        def work(x, y):
            def note(value):
                worked.append(1)
                return value

            return tf.ensure_shape(tf.numpy_function(note, [x], tf.float32), [6]), y

        keras.utils.set_random_seed(7)
        if kind == "files":
            folder = tempfile.mkdtemp()
            for part in range(8):
                lines = [",".join(map(str, [*x[i], y[i]])) for i in range(part, rows, 8)]
                with open(f"{folder}/part-{part}.csv", "w") as file:
                    file.write("\n".join(lines))
            files = tf.data.Dataset.list_files(f"{folder}/*.csv", shuffle=False)
            data = files.interleave(tf.data.TextLineDataset)

            def parse(line):
                fields = tf.strings.to_number(tf.strings.split(line, ","))
                return work(tf.ensure_shape(fields, [7])[:6], tf.cast(fields[6], tf.int32))

            data = data.map(parse)
        else:
            data = tf.data.Dataset.from_tensor_slices((x, y))
            data = data.shuffle(rows, seed=3) if kind == "shuffle" else data
            data = data.map(work)
        data = data.batch(batch).prefetch(2)
        model = compiled(classifier())
        history = model.fit(data, epochs=2, verbose=0)
        own = len(worked)
        result = result_of(model, history)
        result["evaluate"] = numbers(model.evaluate(data, verbose=0))
    finally:
        settings.use(before)
    return {**result, "worked": own}


def not_at_the_source(kind):
    """What `--data source` cannot do: predict, batches that come from elsewhere."""
    import dataclasses

    from matex_tf import settings

    before = settings.current()
    settings.use(dataclasses.replace(before, data="source"))
    try:
        x, y = table(96)
        model = compiled(classifier())
        if kind == "predict":
            model.predict(tf.data.Dataset.from_tensor_slices(x).batch(8), verbose=0)
        else:
            batches = [(x[:50], y[:50]), (x[50:], y[50:])]
            spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32))
            data = tf.data.Dataset.from_generator(lambda: batches, output_signature=spec).map(lambda x, y: (x, y))
            model.fit(data, verbose=0)
    finally:
        settings.use(before)


def generators_without_a_seed():
    """Numbers of generators that a script makes without a seed, and whether a thread and tempfile have their own."""
    from matex_tf.patches.common import seeds

    seeds.use(3)  # as a job begins
    try:
        drawn = [
            np.random.default_rng().random(),
            np.random.RandomState().rand(),
            np.random.Generator(np.random.PCG64()).random(),
            random.Random().random(),
            float(tf.random.Generator.from_non_deterministic_state().uniform([])),
        ]
        np.random.seed()
        random.seed()
        drawn += [np.random.rand(), random.random()]
        with ThreadPoolExecutor(1) as threads:
            apart = [threads.submit(lambda: np.random.default_rng().random()).result(), tempfile.mktemp()]
        return drawn, apart
    finally:
        seeds.use(0)
