"""Training loops of the script's own, as Keras' guide writes them."""

from __future__ import annotations

import dataclasses
import glob
import importlib
import os
import time
import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from matex_tf.core import world
from tests.support.cases.common import classifier, crossentropy, momentum, table


def pipeline(rows=101, batch_size=25, shuffle=True, **options):
    """Batches of rows that can be learned."""
    data = tf.data.Dataset.from_tensor_slices(table(rows))
    if shuffle:
        data = data.shuffle(64, seed=3)
    return data.batch(batch_size, **options)


def weights(model, *more):
    return [np.array(weight) for weight in model.get_weights()] + [np.array(variable) for variable in more]


def in_float64():
    """Losses and weights of an eager loop that computes in float64."""
    rows, targets = (np.random.default_rng(number).normal(size=(13, 2)) for number in (1, 2))
    kernel, losses = tf.Variable([[0.5, 0.25], [1.0, 0.125]], dtype=tf.float64), []
    optimizer = keras.optimizers.SGD(0.1)
    for x, y in tf.data.Dataset.from_tensor_slices((rows, targets)).batch(5).repeat(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ kernel - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        losses.append(float(loss))
    return losses, kernel.numpy()


def guide(compiled=False, optimizer="momentum", rows=101, batch_size=25, apply="apply", clip=False, epochs=3):
    """Training and validation, metrics read and reset at the end of each epoch.

    Args:
        compiled: whether the steps are tf.functions.
        optimizer: "momentum", "adam", "clipped", "accumulating", "scaled".
        apply: the optimizer's method: "apply" or "apply_gradients".
        clip: whether the script clips the gradients itself.
    """
    model = classifier()
    made = {
        "momentum": lambda: momentum(),
        "adam": lambda: keras.optimizers.Adam(0.02),
        "clipped": lambda: momentum(0.5, global_clipnorm=0.1),
        "accumulating": lambda: momentum(0.1, gradient_accumulation_steps=2),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(momentum()),
    }[optimizer]()
    loss_fn = crossentropy()
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    mean_loss = keras.metrics.Mean()
    val_accuracy = keras.metrics.SparseCategoricalAccuracy()
    train, val = pipeline(rows, batch_size), pipeline(38, 12, shuffle=False)

    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
            target = made.scale_loss(loss) if optimizer == "scaled" else loss
        grads = tape.gradient(target, model.trainable_weights)
        if clip:
            grads, _ = tf.clip_by_global_norm(grads, 0.3)
        if apply == "apply":
            made.apply(grads, model.trainable_weights)
        else:
            made.apply_gradients(zip(grads, model.trainable_weights))  # noqa: B905
        accuracy.update_state(y, logits)
        mean_loss.update_state(loss)
        return loss

    def val_step(x, y):
        val_accuracy.update_state(y, model(x, training=False))

    if compiled:
        train_step, val_step = tf.function(train_step), tf.function(val_step)
    said = []
    for _ in range(epochs):
        for x, y in train:
            train_step(x, y)
        said.append([float(accuracy.result()), float(mean_loss.result())])
        accuracy.reset_state()
        mean_loss.reset_state()
        for x, y in val:
            val_step(x, y)
        said.append(float(val_accuracy.result()))
        val_accuracy.reset_state()
    return {"weights": weights(model), "optimizer": [np.array(v) for v in made.variables], "said": said}


def one_step(model, optimizer, loss_fn, x, y, *metrics):
    """A step of training; feeds metrics with labels and logits, and a mean with the loss."""
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    for metric in metrics:
        if type(metric) is keras.metrics.Mean:
            metric.update_state(loss)
        else:
            metric.update_state(y, logits)


def left_in_the_middle():
    """Sums of whole epochs of a pipeline that is shuffled, repeated, and left in the middle in between: by Keras, and
    by a loop. A batch takes long to make. So rank 0, which leaves at once, has not begun the next epoch then, and the
    others have, which wait first."""
    keras.config.set_floatx("float64")
    x, heavy, late = np.arange(40.0)[:, None], tf.ones([600, 600]), 0.5 * (world.of_job().rank > 0)
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="ones")])
    model.compile(loss="mae")
    data = tf.data.Dataset.from_tensor_slices((x, 0 * x)).shuffle(40, seed=5).repeat()
    data = data.map(lambda a, b: (a + 0 * tf.cast(tf.reduce_sum(heavy @ heavy), a.dtype), b)).batch(8).prefetch(2)

    @tf.function
    def step(a):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(a))
        model.trainable_variables[0].assign_sub(0 * tape.gradient(loss, model.trainable_variables)[0])
        return loss

    losses, sums = [], []
    for count in (4, 5, 4, 4, 5):
        waits = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: time.sleep(late * (batch == 3)))
        losses.append(model.evaluate(data, steps=count, verbose=0, callbacks=[waits]))
        sums.append(0.0)
        for number, (a, _) in enumerate(data):
            sums[-1] += float(step(a))
            if number == count - 1:
                time.sleep(late)
                break
    return [losses[1], losses[4], sums[1], sums[4]]


def forms(form, rows=101, batch_size=25, epochs=2, optimizer=None):
    """The forms that a loop over batches can have.

    Args:
        form: of the loop; see below.
    """
    model, loss_fn = classifier(), crossentropy()
    optimizer = momentum() if optimizer is None else keras.optimizers.get(optimizer)
    metrics = [keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()]
    step = tf.function(lambda x, y: one_step(model, optimizer, loss_fn, x, y, *metrics), reduce_retracing=True)
    data = pipeline(rows, batch_size)
    steps = -(-rows // batch_size)
    said = []

    @tf.function
    def whole_epoch():
        for x, y in data:
            one_step(model, optimizer, loss_fn, x, y, *metrics)

    @tf.function
    def epoch_of(iterator):
        for x, y in iterator:
            one_step(model, optimizer, loss_fn, x, y, *metrics)

    @tf.function
    def step_of(iterator):
        x, y = next(iterator)
        step(x, y)

    @tf.function
    def steps_of(iterator, count):
        for _ in tf.range(count):
            x, y = iterator.get_next()
            one_step(model, optimizer, loss_fn, x, y, *metrics)

    for _ in range(epochs):
        if form == "enumerate":
            for number, (x, y) in enumerate(data):
                step(x, y)
                if number == 2:
                    said.append(float(metrics[0].result()))
        elif form == "next":
            iterator = iter(data)
            for _ in range(steps):
                step(*next(iterator))
        elif form == "numpy":
            for x, y in data.as_numpy_iterator():
                step(tf.constant(x), tf.constant(y))
        elif form == "dict":
            for batch in data.map(lambda x, y: {"x": x, "y": y, "one": 1}):
                step(batch["x"], batch["y"])
        elif form == "prefetched":
            for x, y in data.map(lambda x, y: (x * 1.0, y)).cache().prefetch(2):
                step(x, y)
        elif form == "break":
            for number, (x, y) in enumerate(data.repeat()):
                if number == steps:
                    break
                step(x, y)
        elif form == "zip":
            for (x, _), (_, y) in tf.data.Dataset.zip((pipeline(rows, batch_size), pipeline(rows, batch_size))):
                step(x, y)
        elif form == "nested":
            for x, y in data:
                step(x, y)
                for u, v in pipeline(20, 7, shuffle=False):
                    metrics[0].update_state(v, model(u))
                metrics[1].update_state(loss_fn(y, model(x)))
        elif form == "whole":
            whole_epoch()
        elif form == "iterator":
            epoch_of(iter(data))
        elif form == "step_of":
            iterator = iter(data)
            for _ in range(steps):
                step_of(iterator)
        elif form == "steps_of":
            steps_of(iter(data), tf.constant(steps))
        elif form == "padded":
            lists = tf.data.Dataset.from_tensor_slices(table(rows)).padded_batch(batch_size, padded_shapes=([8], []))
            for x, y in lists:
                step(x[:, :6], y)
        elif form == "arrays":
            x, y = table(rows)
            for low in range(0, rows, batch_size):
                step(tf.constant(x[low : low + batch_size]), tf.constant(y[low : low + batch_size]))
        else:
            raise AssertionError(form)
        said.append([float(metric.result()) for metric in metrics])
        for metric in metrics:
            metric.reset_state()
    return {"weights": weights(model), "said": said, "iterations": int(optimizer.iterations.numpy())}


def sees(form):
    """How many rows a rank sees in each batch of a loop.

    Args:
        form: "training", "looking" (neither gradients nor metrics), "unbatched", "generator".
    """
    w = tf.Variable(1.0)
    data = pipeline(40, 16, shuffle=False)
    if form == "unbatched":
        data = data.unbatch()
    if form == "generator":
        batches = list(pipeline(40, 16, shuffle=False).as_numpy_iterator())
        data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=data.element_spec)
    seen, kept = [], []
    for _ in range(2):
        for x, y in data:
            seen.append(x.shape[0])
            kept.append(y.numpy())
            if form != "looking":
                with tf.GradientTape() as tape:
                    loss = w * tf.reduce_mean(x)
                w.assign_sub(0.1 * tape.gradient(loss, w))
    return {"seen": seen, "kept": kept, "w": w.numpy()}


def without_optimizer(compiled=False, how="tape"):
    """Weights that the script itself updates.

    Args:
        how: "tape" (`tape.gradient`), "gradients" (`tf.gradients`, which the script averages by name).
    """
    import matex_tf

    w, b = tf.Variable(tf.zeros([6, 3])), tf.Variable(tf.zeros([3]))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w + b))
        if how == "gradients":
            grads = matex_tf.average(tf.gradients(loss, [w, b]))
        else:
            grads = tape.gradient(loss, {"w": w, "b": b})
            grads = [grads["w"], grads["b"]]
        w.assign_sub(0.3 * grads[0])
        b.assign_sub(0.3 * grads[1])
        return matex_tf.average(loss)

    if compiled or how == "gradients":
        step = tf.function(step)
    losses = [float(step(x, y)) for _ in range(2) for x, y in pipeline()]
    return {"weights": [w.numpy(), b.numpy()], "losses": losses}


def gan(compiled=True):
    """Two networks and two optimizers in one step; a fixed noise stands for the random one."""
    keras.utils.set_random_seed(7)
    generator = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(6)])
    critic = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    optimizers = [momentum(0.05), momentum(0.03)]
    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
    means = [keras.metrics.Mean(), keras.metrics.Mean()]

    def step(real):
        with tf.GradientTape() as generator_tape, tf.GradientTape() as critic_tape:
            fake = critic(generator(real[:, ::-1]))
            true = critic(real)
            losses = [
                loss_fn(tf.ones_like(fake), fake),
                loss_fn(tf.ones_like(true), true) + loss_fn(tf.zeros_like(fake), fake),
            ]
        for tape, loss, net, optimizer, mean in zip(
            (generator_tape, critic_tape), losses, (generator, critic), optimizers, means, strict=True
        ):
            grads = tape.gradient(loss, net.trainable_variables)
            optimizer.apply_gradients(zip(grads, net.trainable_variables, strict=True))
            mean.update_state(loss)

    run = tf.function(step) if compiled else step
    for x, _ in list(pipeline(20, 20)) and pipeline():
        run(x)
    return {"weights": weights(generator) + weights(critic), "said": [float(mean.result()) for mean in means]}


def penalty():
    """A gradient by inputs inside of a gradient by weights, as in WGAN-GP; `add_loss`; a regularizer."""

    class Noted(layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * tf.reduce_mean(x * x))
            return x

    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh", kernel_regularizer="l2"), Noted(), layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = model(x, training=True)
            slope = tf.sqrt(tf.reduce_sum(inner.gradient(out, x) ** 2, axis=1) + 1e-6)
            loss = tf.reduce_mean((out[:, 0] - tf.cast(y, tf.float32)) ** 2) + tf.reduce_mean((slope - 1.0) ** 2)
            loss += tf.add_n(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for _ in range(2):
        for x, y in pipeline():
            step(x, y)
    return weights(model)


def losses(kind, compiled=True):
    """Losses that are no plain mean over rows.

    Args:
        kind: "sum", "none" (a loss for each word, which the tape adds up), "masked", "weighted".
    """
    random = np.random.RandomState(0)
    words = random.randint(1, 20, (38, 7))
    words[np.arange(7)[None] >= random.randint(1, 8, 38)[:, None]] = 0
    keras.utils.set_random_seed(7)
    model = keras.Sequential([
        keras.Input((7,), dtype="int32"), layers.Embedding(20, 4, mask_zero=True),
        layers.LSTM(5, return_sequences=True), layers.Dense(3),
    ])  # fmt: skip
    is_sum = kind in ("sum", "none")
    loss_fn = crossentropy(**({"reduction": kind} if is_sum else {}))
    optimizer = momentum(0.002 if is_sum else 0.1)

    def step(x):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            weight = tf.cast(x[:, 0] % 3, tf.float32) if kind == "weighted" else None
            mean = tf.reduce_mean(logits, axis=1) if kind == "weighted" else logits
            loss = loss_fn(x[:, 0] % 3 if kind == "weighted" else x % 3, mean, sample_weight=weight)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    run = tf.function(step) if compiled else step
    for _ in range(2):
        for x in tf.data.Dataset.from_tensor_slices(words).batch(12):
            run(x)
    return weights(model)


def normalized():
    """BatchNormalization that is synchronized, and the plain one."""
    keras.utils.set_random_seed(7)
    norms = [layers.BatchNormalization(momentum=0.8, synchronized=world.size() > 1), layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8), norms[0], layers.ReLU(), layers.Dense(3)])
    side = keras.Sequential([keras.Input((6,)), norms[1], layers.Dense(3)])
    optimizer, loss_fn = momentum(), crossentropy()
    step = tf.function(lambda x, y: [one_step(net, made, loss_fn, x, y) for net, made in pairs])
    pairs = [(model, optimizer), (side, momentum())]
    for _ in range(2):
        for x, y in pipeline(100, 25):
            step(x, y)
    return {"synchronized": weights(model), "plain": weights(side)}


def dropout():
    """Masks that this rank draws for its rows, and the weights in the end."""
    keras.utils.set_random_seed(7)
    drop = layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), drop, layers.Dense(3)])
    optimizer, loss_fn, masks = momentum(), crossentropy(), []
    for x, y in pipeline(48, 24):
        masks.append(drop(tf.ones([len(x), 16]), training=True).numpy())
        one_step(model, optimizer, loss_fn, x, y)
    return {"weights": weights(model), "masks": masks[1:]}


def files(tmp):
    """Checkpoints, a saved model and summaries: what is written, and what a restored model says."""
    model, optimizer, loss_fn = classifier(), momentum(), crossentropy()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, f"{tmp}/kept", max_to_keep=2)
    writer = tf.summary.create_file_writer(f"{tmp}/logs")
    said = []
    for _ in range(3):
        for x, y in pipeline():
            one_step(model, optimizer, loss_fn, x, y)
        said.append(os.path.basename(manager.save()))
        with writer.as_default():
            tf.summary.scalar("loss", 1.0, step=0)
    said.append([os.path.basename(path) for path in manager.checkpoints])
    writer.flush()
    said.append(os.path.basename(checkpoint.save(f"{tmp}/single/one")))
    said.append(os.path.basename(checkpoint.write(f"{tmp}/single/two")))
    model.save(f"{tmp}/model.keras")
    module = tf.Module()
    module.model = model
    importlib.import_module("tensorflow.saved_model")  # replaces the module tf.saved_model, as Keras' export does
    module.serve = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec([None, 6])])
    tf.saved_model.save(module, f"{tmp}/saved")
    other = classifier(seed=8)
    tf.train.Checkpoint(model=other).restore(manager.latest_checkpoint).expect_partial()
    x, _ = table(10, seed=1)
    served = tf.saved_model.load(f"{tmp}/saved")
    found = sorted(os.path.relpath(path, tmp) for path in glob.glob(f"{tmp}/**/*.index", recursive=True))
    return {
        "said": said,
        "found": found,
        "logs": len(os.listdir(f"{tmp}/logs")),
        "drafts": glob.glob(f"{tmp}/**/*temp*", recursive=True),
        "weights": weights(model),
        "restored": other(x).numpy(),
        "served": served.serve(x).numpy(),
        "loaded": keras.models.load_model(f"{tmp}/model.keras")(x).numpy(),
    }


def own_data(how, epochs=2):
    """Batches of the rank's own rows, which together are the batch; rows in the order in which ranks use them.

    Args:
        how: "shard" (by the script), "arrays" (of which each rank has a part), "stream" (`to_tf_data`),
            "next_train_batch".
    """
    from matex_tf import DataSet
    from matex_tf.core.row_partition import Interleaving, span

    rows, size = 96, 24
    x, y = table(rows)
    if world.size() == 1 and how in ("stream", "next_train_batch"):  # in the order in which three ranks use them
        order = Interleaving([32, 32, 32]).order(size)
        x, y = x[order], y[order]
    model, optimizer, loss_fn = classifier(), momentum(), crossentropy()
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    rank, ranks = world.rank(), world.size()
    np.savez("data.npz", x=x, y=y)
    if how == "shard":
        data = tf.data.Dataset.from_tensor_slices((x, y)).shard(ranks, rank).batch(size // ranks)
    elif how == "arrays":
        batches = [np.arange(low, low + size)[slice(*span(size, rank, ranks))] for low in range(0, rows, size)]
        mine = np.concatenate(batches)
        data = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).batch(size // ranks)
    elif how == "stream":
        data = DataSet.open("data.npz", x="x", y="y").to_tf_data(size)
    else:
        shard = DataSet.open("data.npz", x="x", y="y")
        data = [shard.next_batch(size) for _ in range(rows // size)]
    for _ in range(epochs):
        for a, b in data if how != "next_train_batch" else (shard.next_batch(size) for _ in range(rows // size)):
            one_step(model, optimizer, loss_fn, tf.constant(a), tf.constant(b), accuracy)
    return {"weights": weights(model), "said": float(accuracy.result())}


def off():
    """`--shard-loops off`: each rank's batches are its own."""
    before = settings.use(dataclasses.replace(settings.current(), shard_loops=False))
    try:
        x, y = table(96)
        rank, ranks = world.rank(), world.size()
        mine = [np.arange(low, low + 24)[rank * 24 // ranks : (rank + 1) * 24 // ranks] for low in range(0, 96, 24)]
        mine = np.concatenate(mine)
        data = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).batch(24 // ranks)
        model, optimizer, loss_fn = classifier(), momentum(), crossentropy()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        for a, b in data:
            one_step(model, optimizer, loss_fn, a, b, accuracy)
        return {"weights": weights(model), "said": float(accuracy.result())}
    finally:
        settings.use(before)


def beside_fit():
    """A loop, `fit`, `evaluate` and a loop in a callback, on one model."""
    model, loss_fn = classifier(), crossentropy()
    model.compile(momentum(), crossentropy(), metrics=["accuracy"])
    x, y = table()
    labels = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            labels.append(np.concatenate([y for _, y in pipeline(30, 8, shuffle=False)]))

    for a, b in pipeline():
        one_step(model, model.optimizer, loss_fn, a, b)
    history = model.fit(x, y, batch_size=25, verbose=0, callbacks=[Look()]).history
    scores = model.evaluate(x, y, batch_size=25, verbose=0)
    for a, b in pipeline():
        one_step(model, model.optimizer, loss_fn, a, b)
    return {"weights": weights(model), "history": history, "scores": scores, "labels": labels}


def own_metric():
    """A metric of the script's own that cannot be added up."""

    class Worst(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="worst")
            self.worst = self.add_variable((), "zeros")

        def update_state(self, y_true, y_pred):
            self.worst.assign(tf.maximum(self.worst, tf.reduce_max(tf.abs(y_pred))))

        def result(self):
            return self.worst.value

    worst, model, loss_fn, optimizer = Worst(), classifier(), crossentropy(), momentum()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in pipeline():
            one_step(model, optimizer, loss_fn, x, y, worst)
        value = float(worst.result())
    return {"value": value, "warned": [str(one.message) for one in caught if "worst" in str(one.message)]}


def gone():
    """Variables of one name, of which rank 1 still holds one that is gone on the other ranks; at a checkpoint."""
    from matex_tf.patches.loops import replica_sync  # here: plain Keras runs other cases of this file

    made = [tf.Variable(float(number)) for number in range(3)]
    replica_sync.begin(made)
    if world.rank() != 1:
        del made[1]
    tf.train.Checkpoint(last=made[-1]).write("gone")
    return [float(made[0]), float(made[-1])]


def drift():
    """Weights that the script moves by something else than an averaged gradient; what is said at a checkpoint.

    Rank 1 still holds an older variable, which is gone on the other ranks.
    """
    from matex_tf.patches.loops import replica_sync  # here: plain Keras runs other cases of this file

    older = tf.Variable(tf.ones([3]))
    replica_sync.begin([older])
    if world.rank() != 1:
        del older
    model, loss_fn, optimizer = classifier(), crossentropy(), momentum()
    for x, y in pipeline():
        one_step(model, optimizer, loss_fn, x, y)
        model.trainable_variables[0].assign_add(tf.ones([6, 8]) * tf.reduce_mean(x))
    tf.train.Checkpoint(model=model).write("drifted")
    return weights(model)
