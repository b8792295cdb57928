"""Models of Keras 2: tf_keras, beside the Keras 3 that the ranks have imported, or that of TensorFlow before 2.16."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import log_once
from matex_tf.state import run_state
from tests.support.cases.common import numbers, table, weights_for
from tests.support.cases.pipe import chosen


def keras2():
    """The package; the patches are applied when it is imported."""
    if importlib.util.find_spec("tf_keras") is None and tf.__version__ < "2.16":
        return tf.keras
    import tf_keras

    return tf_keras


def classifier(seed=7, inner=()):
    """Two dense layers with logits, and others between them."""
    keras = keras2()
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            *inner,
            keras.layers.Dense(3),
        ]
    )


def compiled(model, optimizer=None, loss=None, **options):
    """The model, compiled for classes unless said otherwise."""
    keras = keras2()
    options.setdefault("metrics", ["accuracy"])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9) if optimizer is None else optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss,
        **options,
    )
    return model


def result_of(model, history=None, **more):
    """Weights, the state of the optimizer, and the history of a model."""
    optimizer = getattr(model.optimizer, "optimizer", model.optimizer)  # what Keras 2 makes of one of TensorFlow 1
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    result = {"weights": model.get_weights(), "optimizer": [np.array(one) for one in variables], **more}
    if history is not None:
        result["history"] = numbers(history.history)
    return result


def fit(
    optimizer=None,
    loss=None,
    with_weights=False,
    class_weight=None,
    with_validation=False,
    inner=(),
    rows=101,
    **options,
):
    """A training on arrays.

    Args:
        optimizer: a name in `tf_keras.optimizers`, and its arguments.
        loss: a name in `tf_keras.losses`, and its arguments.
        class_weight: as pairs.
        inner: names of layers between the two dense ones, each with its arguments.
    """
    keras = keras2()
    x, y = table(rows)
    layers = [getattr(keras.layers, name)(**given) for name, given in inner]
    compile_options = {name: options.pop(name) for name in ("run_eagerly", "steps_per_execution") if name in options}
    model = compiled(
        classifier(inner=layers), made(keras.optimizers, optimizer), made(keras.losses, loss), **compile_options
    )
    if with_weights:
        options["sample_weight"] = weights_for(rows)
    if with_validation:
        options["validation_data"] = (*table(38, seed=1), weights_for(38)[::-1])
    if class_weight:
        options["class_weight"] = dict(class_weight)
    history = model.fit(x, y, **{"batch_size": 25, "epochs": 2, "verbose": 0, **options})
    return result_of(model, history)


def per_rank(kind, rows=101):
    """Batches of 5 rows for each rank, and on one rank of as many as on two."""
    ranks = world.current()
    x, y = table(rows)
    given = settings.Settings() if ranks.is_single else settings.Settings().changed(batch="per-rank")
    size = 10 if ranks.is_single else 5
    before = settings.use(given)
    try:
        model = compiled(classifier())
        data = (x, y) if kind == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)).batch(size),)
        more = {"batch_size": size} if kind == "arrays" else {}
        history = model.fit(*data, epochs=2, verbose=0, shuffle=False, **more)
        return result_of(model, history, evaluated=model.evaluate(x, y, verbose=0))
    finally:
        settings.use(before)


def alone(strategy, **chosen):
    """A linear regression by SGD with `--strategy local` or `gossip`: the weights in the end, and the losses."""
    keras = keras2()
    random = np.random.RandomState(0)
    x, y = random.normal(size=(56, 3)).astype("float32"), random.normal(size=(56, 1)).astype("float32")
    before = settings.use(settings.Settings().changed(strategy=strategy, seed=1, notes=False, **chosen))
    try:
        start = keras.initializers.Constant(0.5)
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer=start)]
        model = keras.Sequential([keras.layers.Input((3,)), *layers])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        return {"end": model.get_weights()[0][:, 0], "losses": history["loss"]}
    finally:
        settings.use(before)


def made(module, described):
    """What a name with dots and arguments stands for; None for None."""
    if described is None:
        return None
    name, given = described
    if "inner" in given:
        given = {**given, "inner_optimizer": made(module, given["inner"])}
        given.pop("inner")
        return keras2().mixed_precision.LossScaleOptimizer(**given)
    for part in name.split("."):
        module = getattr(module, part)
    return module(**given)


def over_rows(loss, given=()):
    """A loss of Keras 2 that looks across rows, and metrics that do: one label of many is neither 0 nor 1."""
    keras = keras2()
    x, y = table(53)
    targets = np.eye(3, dtype="float32")[y]
    if loss.endswith("Hinge"):
        targets[7] = -1
    seen = [keras.metrics.CosineSimilarity(axis=0), keras.metrics.SquaredHinge()]
    model = compiled(classifier(), loss=getattr(keras.losses, loss)(**dict(given)), metrics=seen)
    history = model.fit(x, targets, batch_size=13, epochs=2, verbose=0)
    return result_of(model, history, tested=numbers(model.evaluate(x, targets, batch_size=20, verbose=0)))


def depends(kind):
    """A model whose rows depend on one another, or whose step adds up over the batch; trained on two batches."""
    keras = keras2()

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.left = keras.layers.Dense(4)

        def call(self, x):
            left = self.left(x)
            return tf.reduce_sum(left, 1, True) + (tf.tensordot(left, left, 2) if kind == "rows" else 0.0)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                squares = tf.square(self(x, training=True) - y)
                loss = tf.reduce_sum(squares) if kind == "sum" else tf.reduce_mean(squares)
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"loss": loss}

    x, _ = table(12)
    keras.utils.set_random_seed(7)
    model = Own()
    model.compile(keras.optimizers.SGD(0.01))
    return model, model.fit(x, x[:, :1], batch_size=6, epochs=1, verbose=0)


def across_rows(kind):
    """What such a model learns."""
    model, history = depends(kind)
    return result_of(model, history)


def virtual_batches():
    """A layer that normalizes five rows at a time, and a loss of Keras over a column of the batch in a step of the
    script's own."""
    keras = keras2()

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3, use_bias=False)
            self.norm = keras.layers.BatchNormalization(virtual_batch_size=5)

        def call(self, x, training=False):
            return self.norm(self.dense(x), training=training)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                columns = keras.losses.cosine_similarity(tf.one_hot(y, 3), self(x, training=True), axis=0)
                loss = tf.reduce_mean(columns)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x, y = table(60)
    keras.utils.set_random_seed(7)
    model = Own()
    model.compile(keras.optimizers.SGD(0.1))
    return result_of(model, model.fit(x, y, batch_size=20, epochs=2, verbose=0))


def told(kind):
    """What `fit` says of such a model if its steps are not partitioned."""
    run_state.part(log_once.Said).clear()
    before = settings.use(settings.current().changed(partitioner=False))
    try:
        depends(kind)
    finally:
        settings.use(before)
    return list(run_state.part(log_once.Said))


def on_batches():
    """`evaluate`, `predict`, `train_on_batch` and their kin; their numbers are those of the batch."""
    x, y = table()
    model = compiled(classifier())
    seen = []
    for epoch in range(2):
        for low in range(0, 101, 25):
            rows = slice(low, low + 25)
            weight = weights_for(101)[rows] if epoch else None
            seen.append(model.train_on_batch(x[rows], y[rows], sample_weight=weight, reset_metrics=False))
    seen.append(model.train_on_batch(x[:2], y[:2], return_dict=True))
    seen.append(model.test_on_batch(x[:30], y[:30]))
    seen.append(model.test_on_batch(x[:2], y[:2], reset_metrics=False, return_dict=True))
    seen.append(model.evaluate(x, y, batch_size=25, verbose=0))
    predicted = [
        model.predict(x, batch_size=40, verbose=0),
        model.predict_on_batch(x[:7]),
        model.predict(x[:2], verbose=0),
    ]
    return result_of(model, seen=numbers(seen), predicted=predicted)


def source(kind):
    """The same rows as a tf.data pipeline, a generator or a `Sequence`, with five batches, the last ragged."""
    keras = keras2()
    x, y = table()
    batches = [(x[low : low + 25], y[low : low + 25]) for low in range(0, 101, 25)]
    if kind == "tf.data":
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).batch(25)
    if kind == "generator":

        def forever():
            while True:
                yield from batches

        return forever()

    class Batches(keras.utils.Sequence):
        def __len__(self):
            return len(batches)

        def __getitem__(self, place):
            return batches[place]

    return Batches()


def sources(kind, **options):
    """A training on what is not an array, and what is said of who makes the batches."""
    run_state.part(log_once.Said).clear()
    model = compiled(classifier(), steps_per_execution=options.pop("steps_per_execution", 1))
    if kind == "generator":
        options["steps_per_epoch"] = 5
    history = model.fit(source(kind), epochs=2, verbose=0, **options)
    predicted = None if kind == "generator" else model.predict(source("Sequence"), verbose=0)
    said = [line for line in run_state.part(log_once.Said) if "each rank makes every batch" in line]
    return result_of(model, history, predicted=predicted, said=said)


def augmented(tmp):
    """Pictures that `ImageDataGenerator` changes at random, from arrays and from a tree of files."""
    from PIL import Image

    keras, random = keras2(), np.random.RandomState(0)
    x, y = random.randint(0, 255, (30, 8, 8, 3)).astype("float32"), random.randint(0, 3, 30)
    for number, (picture, kind) in enumerate(zip(x, y, strict=True) if world.current().rank == 0 else ()):
        folder = Path(tmp) / f"kind{kind}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture.astype("uint8")).save(folder / f"{number}.png")
    world.current().barrier("the pictures are there")
    found = []
    for source in ("arrays", "files"):
        keras.utils.set_random_seed(3)
        made = keras.preprocessing.image.ImageDataGenerator(rescale=1 / 255, horizontal_flip=True, width_shift_range=2)
        if source == "arrays":
            flow = made.flow(x, y, batch_size=8)
        else:
            flow = made.flow_from_directory(tmp, (8, 8), batch_size=8, class_mode="sparse")
        layers = [keras.layers.Conv2D(2, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
        model = compiled(keras.Sequential([keras.layers.Input((8, 8, 3)), *layers]))
        found.append(result_of(model, model.fit(flow, epochs=2, verbose=0)))
    return found


def own_train_step():
    """A `train_step`, a `call` with a branch on a tensor, and a metric that is fed the mean loss of a batch."""
    keras = keras2()

    class Own(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.tracker = keras.metrics.Mean("own")

        def call(self, x, training=False):
            if tf.reduce_sum(tf.abs(x)) > 0:
                x = 2 * x
            return self.inner(x, training=training)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), from_logits=True)
                loss = tf.reduce_mean(losses)
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own": self.tracker.result(), "plain": loss}

        @property
        def metrics(self):
            return [self.tracker]

    x, y = table()
    model = Own(classifier())
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    history = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    return result_of(model, history)


def own_loop():
    """A loop of the script's own over a batched pipeline, with dropout, `BatchNormalization` and a metric."""
    keras = keras2()
    x, y = table(53)
    keras.utils.set_random_seed(7)
    inner = [keras.layers.Dense(5, use_bias=False), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.layers.Input((6,)), *inner, keras.layers.Dense(3)])
    optimizer, seen = keras.optimizers.Adam(0.01, global_clipnorm=0.1), keras.metrics.Mean()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            each = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
            loss = tf.reduce_mean(each)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.update_state(loss)
        return loss

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(53, seed=3).batch(13)
    losses = [[float(step(*batch)) for batch in data] for _ in range(2)]
    return {"losses": losses, "seen": float(seen.result()), "weights": model.get_weights()}


def images():
    """Fused and plain `BatchNormalization`, and dropout, on images."""
    keras = keras2()
    x, y = table(54, columns=64)
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(3, 3, use_bias=False),  # a bias has no gradient in front of BatchNormalization
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(6, use_bias=False),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    history = compiled(model).fit(x.reshape(-1, 8, 8, 1), y, batch_size=13, epochs=2, verbose=0)
    return result_of(model, history, tested=model.evaluate(x.reshape(-1, 8, 8, 1), y, verbose=0))


def callbacks(tmp):
    """What callbacks see and write: logs of batches, checkpoints, CSV, an early stop; and saved models."""
    keras, folder = keras2(), Path(tmp)
    x, y = table()
    model, seen = compiled(classifier()), []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append({name: float(value) for name, value in logs.items()})
            if len(seen) == 18:
                self.model.stop_training = True

    path = folder / "at-{epoch}.keras"
    given = [
        Seen(),
        keras.callbacks.ModelCheckpoint(str(path)),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.TensorBoard(str(folder / "board")),
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
        keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
    ]
    history = model.fit(x, y, batch_size=25, epochs=6, verbose=0, callbacks=given, validation_split=0.1)
    model.save(str(folder / "whole.h5"))
    model.save(str(folder / "exported"), save_format="tf")
    model.save_weights(str(folder / "weights"))
    loaded = keras.models.load_model(str(folder / "whole.h5")).predict(x[:5], verbose=0)
    again = classifier()
    again.load_weights(str(folder / "weights"))
    files = sorted(file.name for file in folder.iterdir())
    log = (folder / "log.csv").read_text()
    boards = len(list((folder / "board").rglob("events*")))
    return result_of(
        model, history, seen=seen, loaded=loaded, again=again.get_weights(), files=files,
        log=[[float(number) for number in line.split(",")] for line in log.split()[1:]], boards=boards,
    )  # fmt: skip


def own_loss_and_metrics():
    """A loss that is a sum over the batch, a metric of a batch, one with a state that is a maximum; a mask."""
    keras = keras2()

    def spread(y_true, y_pred):
        return tf.reduce_sum(tf.square(y_pred - tf.cast(y_true, y_pred.dtype)))

    def best(y_true, y_pred):
        return tf.reduce_max(y_pred)

    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__("largest")
            self.largest = self.add_weight("largest", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            if tf.reduce_max(y_pred) > self.largest:
                self.largest.assign(tf.reduce_max(y_pred))

        def result(self):
            return tf.identity(self.largest)

    x, y = table(53)
    given = [best, Largest(), "mae", keras.metrics.AUC()]
    model = compiled(classifier(), keras.optimizers.Adam(0.01), spread, metrics=given)
    one_hot = np.eye(3, dtype="float32")[y]
    history = model.fit(x, one_hot, batch_size=13, epochs=2, verbose=0)
    keras.utils.set_random_seed(3)
    words = np.random.RandomState(1).randint(0, 5, (23, 4))
    words[5:10] = 0  # all that one rank of two has of a batch
    masked = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Embedding(5, 3, mask_zero=True),
            keras.layers.LSTM(4, return_sequences=True),
        ]
    )
    masked.compile("adam", "mse", metrics=["mae"])
    of_masked = masked.fit(words, np.ones([23, 4, 4]), batch_size=10, epochs=2, shuffle=False, verbose=0)
    return result_of(model, history, masked=numbers(of_masked.history), of_masked=masked.get_weights())


def unbuilt_and_eager(optimizer):
    """A model that has yet to make its variables, in eager steps and in a graph."""
    keras, found = keras2(), []
    x, y = table(53)
    for eager in (True, False):
        keras.utils.set_random_seed(3)
        body = [keras.layers.Dense(5, activation="tanh"), keras.layers.BatchNormalization()]
        model = keras.Sequential([*body, keras.layers.Dense(3)])
        given = (
            tf.compat.v1.train.AdamOptimizer(0.01) if optimizer == "of TensorFlow 1" else keras.optimizers.Adam(0.01)
        )
        model.compile(given, keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=eager)
        found.append(result_of(model, model.fit(x, y, batch_size=13, epochs=2, verbose=0)))
    return found


def odd_batches():
    """Batches of another rank than those before, and a metric that holds variables by itself."""
    keras = keras2()

    class Count(keras.metrics.Metric):
        def __init__(self):
            super().__init__("count")
            self.count = tf.Variable(0.0)

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

        def result(self):
            return tf.identity(self.count)

        def reset_state(self):
            self.count.assign(0)

    class Line(keras.Model):
        def __init__(self):
            super().__init__()
            self.slope = self.add_weight("slope", initializer="ones")
            self.count = Count()

        def call(self, x):
            return x * self.slope

    model = Line()
    model.compile("sgd", "mse", metrics=["mae", model.count])
    x = np.arange(1, 6, dtype="float32")
    found = [model.evaluate(x, x * 2, verbose=0), model.evaluate(x[:, None], x[:, None] * 2, verbose=0)]
    history = model.fit(x[:, None], x[:, None] * 2, verbose=0)
    return result_of(model, history, found=found, predicted=model.predict(x, verbose=0))


def coded(codec):
    """A fit whose gradients are rounded between two hosts."""
    with chosen(hosts="ab", codec=codec):
        return fit(inner=[("Dense", {"units": 8000})], epochs=1)  # little is sent as it is


def with_vocabulary():
    """Words by a vocabulary that a layer has learned, and draws of rows behind a `LayerNormalization`."""
    keras = keras2()
    keras.utils.set_random_seed(3)
    texts = np.array([[f"a{row % 7} b{row % 5} c{row % 3}"] for row in range(53)])
    words = keras.layers.TextVectorization(20, output_sequence_length=4)
    words.adapt(texts)
    start = {"kernel_initializer": keras.initializers.GlorotUniform(1)}
    model = keras.Sequential(
        [
            keras.layers.Input((1,), dtype="string"),
            words,
            keras.layers.Embedding(20, 6, embeddings_initializer=keras.initializers.RandomNormal(seed=2)),
            keras.layers.LayerNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.LayerNormalization(),
            keras.layers.GaussianNoise(0.2),
            keras.layers.Dense(3, **start),
        ]
    )
    compiled(model)
    history = model.fit(texts, np.arange(53) % 3, batch_size=13, epochs=2, verbose=0)
    floats = [np.array(weight) for weight in model.trainable_weights]
    return {"weights": floats, "history": numbers(history.history)}


def order_of_batches(steps):
    """A `Sequence` with two workers, and epochs that end late: what it has made, in order.

    Args:
        steps: of an epoch; None for one pass.
    """
    keras = keras2()

    class Numbered(keras.utils.Sequence):
        def __init__(self):
            self.ended = 0

        def __len__(self):
            return 4

        def __getitem__(self, place):
            return np.full((5, 2), place, "float32"), np.zeros((5, 1), "float32")

        def on_epoch_end(self):
            self.ended += 1

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 4 == 3:
                time.sleep(0.4)  # Keras would begin the next pass meanwhile

    class Line(keras.Model):
        def train_step(self, data):
            mean = tf.reduce_mean(data[0])
            return {"place": mean}

    keras.utils.set_random_seed(3)
    data, model = Numbered(), Line()
    model.compile()
    seen = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(float(logs["place"])))
    model.fit(data, epochs=3, steps_per_epoch=steps, workers=2, verbose=0, callbacks=[watch, Watch()])
    return {"seen": seen, "ended": data.ended}
