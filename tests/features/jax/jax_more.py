"""Trainings of Keras on JAX, which `jax_rank.py` runs: what scripts do less often."""

from __future__ import annotations

import keras
import numpy as np
from jax_cases import ROWS, data, images, mlp, small, targets, weights_of
from keras import layers, ops

from matex_tf.core import world


class Vae(keras.Model):
    """Draws random numbers by a generator of its own; steps for tests and predictions of its own."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = layers.Dense(4), layers.Dense(6)
        self.seeds = keras.random.SeedGenerator(11)
        self.tracker = keras.metrics.Mean(name="divergence")

    def call(self, x, training=False):
        mean, spread = ops.split(self.encoder(x), 2, axis=-1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        self.add_loss(0.1 * ops.mean(ops.square(mean) + ops.exp(spread) - spread))
        return self.decoder(mean + ops.exp(0.5 * spread) * noise)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, x, y_pred, sample_weight, training)
        self.tracker.update_state(loss)
        return loss

    def test_step(self, state, batch):
        trainable, others, metrics = state
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        predicted, others = self.stateless_call(trainable, others, x, training=False)
        loss = ops.mean(ops.abs(x - predicted))
        return {"own": loss, "largest": ops.max(predicted)}, (trainable, others, metrics)

    def predict_step(self, state, batch):
        trainable, others = state
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        predicted, others = self.stateless_call(trainable, others, x)
        return {"made": predicted, "norms": ops.norm(predicted, axis=1)}, others


def own_steps(folder):
    x, _ = data()
    model = Vae()
    model.compile("adam", "mse")
    history = model.fit(x, batch_size=16, epochs=2, verbose=0, validation_data=(x[:9],)).history
    return [history, model.predict(x, batch_size=11, verbose=0), model.evaluate(x, verbose=0, return_dict=True),
            model.test_on_batch(x[:5], return_dict=True), weights_of(model)]  # fmt: skip


def states(folder):
    """Layers that keep states of rows and of batches, and one that is adapted to the data."""
    x, y = targets()
    steps = np.random.default_rng(2).normal(size=(48, 5, 3)).astype("float32")
    inputs = layers.Input(batch_shape=(16, 5, 3))
    recurrent = keras.Model(inputs, layers.Dense(1)(layers.GRU(4, stateful=True)(inputs)))
    recurrent.compile("sgd", "mse")
    results = [recurrent.fit(steps, steps[:, 0, :1], batch_size=16, shuffle=False, verbose=0).history]
    results.append([np.asarray(state) for state in recurrent.layers[1].states])
    normal = layers.Normalization()
    normal.adapt(x)
    model = keras.Sequential([normal, layers.GroupNormalization(2), layers.Dense(8),
                              layers.BatchNormalization(), layers.Dense(3)])  # fmt: skip
    model.compile(keras.optimizers.SGD(0.05), "mse")
    results += [model.fit(x, y, batch_size=12, epochs=2, verbose=0).history, weights_of(model)]
    return results


def low_rank(folder):
    """LoRA, a model inside of another, weights that are shared, constraints, a model that is loaded and trained on."""
    x, y = targets()
    inner = keras.Sequential([layers.Dense(8, "gelu", kernel_constraint="max_norm"), layers.Dense(8)])
    left, right = layers.Input((6,)), layers.Input((6,))
    outer = keras.Model([left, right], layers.Dense(3, name="last")(layers.Subtract()([inner(left), inner(right)])))
    outer.compile("adam", "mse")
    results = [outer.fit([x, x[::-1]], y, batch_size=16, verbose=0).history]
    inner.layers[1].enable_lora(2)
    outer.get_layer("last").enable_lora(1)
    outer.compile("adam", "mse")
    results.append(outer.fit([x, x[::-1]], y, batch_size=16, epochs=2, verbose=0).history)
    outer.save(folder / "lora.keras")
    again = keras.models.load_model(folder / "lora.keras")
    results.append(again.fit([x, x[::-1]], y, batch_size=16, verbose=0).history)
    return [*results, weights_of(outer), weights_of(again)]


def few_rows(folder):
    """Batches of one row, of all rows, of none that are left; fewer rows than ranks; steps that end an epoch early."""
    x, y = data()
    results = []
    for rows, batch in ((3, 1), (2, 32), (ROWS, ROWS), (1, 1)):
        model = mlp()
        results += [model.fit(x[:rows], y[:rows], batch_size=batch, epochs=2, verbose=0).history, weights_of(model)]
    model = mlp()
    results.append(model.fit(x, y, batch_size=10, steps_per_epoch=2, epochs=2, verbose=0, shuffle="batch",
                             validation_data=(x, y), validation_steps=2, validation_batch_size=7).history)  # fmt: skip
    return [*results, model.predict(x, batch_size=5, steps=3, verbose=0), weights_of(model)]


def odd_batches(folder):
    """Arrays of a batch that have other numbers of rows, numbers, nothing at all; predictions that have no rows."""
    x, y = data()

    class Pairs(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs):
            return self.dense(inputs["x"]) + ops.mean(inputs["bank"]) * inputs["scale"]

    def batches(labels=True):
        for begin in (0, 16, 32):
            inputs = {"x": x[begin : begin + 16], "bank": x[:7], "scale": np.float32(begin)}
            yield (inputs, y[begin : begin + 16]) if labels else (inputs,)

    model = Pairs()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    results = [model.fit(batches(), verbose=0).history, model.predict(batches(False), verbose=0)]

    class Sums(keras.Model):
        def call(self, x):
            return ops.sum(x, axis=0, keepdims=True), x * 2

    sums = Sums()
    results += [sums.predict(x[:48], batch_size=16, verbose=0), sums.predict_on_batch(x[:7])]
    return [*results, weights_of(model)]


def wide(folder):
    """Numbers of 64 bits, in a policy; numbers of half precision as inputs; images of bytes."""
    x, y = images()
    results = []
    for kind in ("uint8", "float16", "float64", "int32"):
        model = keras.Sequential(
            [layers.Rescaling(0.5), layers.Conv2D(2, 3, strides=2), layers.Flatten(), layers.Dense(1)]
        )
        model.compile("rmsprop", "binary_crossentropy", metrics=["binary_accuracy"])
        results.append(model.fit((x * 5 + 9).astype(kind), y, batch_size=20, epochs=2, verbose=0).history)
    return [*results, weights_of(model)]


def sparse_rows(folder):
    """Rows of a sparse matrix of SciPy."""
    import scipy.sparse

    x, y = data(40)
    x = scipy.sparse.csr_matrix(np.where(np.abs(x) > 1, x, 0))
    model = mlp(0.0)
    return [model.fit(x, y, batch_size=16, epochs=2, verbose=0).history, model.predict(x, verbose=0), weights_of(model)]


class Hears(keras.callbacks.Callback):
    """Hears all, and asks the model in the midst of it."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def on_predict_batch_end(self, batch, logs=None):
        self.heard.append((batch, np.asarray(logs["outputs"]).shape, float(np.sum(logs["outputs"]))))

    def on_test_batch_end(self, batch, logs=None):
        self.heard.append((batch, dict(logs)))

    def on_train_batch_begin(self, batch, logs=None):
        self.heard.append((batch, [float(np.sum(np.abs(weight))) for weight in self.model.get_weights()]))

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.01 / (epoch + 1)


def hearing(folder):
    x, y = data()
    model, heard = mlp(), Hears()
    results = [model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[heard], validation_split=0.2).history]
    model.predict(x, batch_size=20, verbose=0, callbacks=[heard])
    model.evaluate(x, y, batch_size=20, verbose=0, callbacks=[heard])
    model.save_weights(folder / "w.weights.h5")
    best = keras.callbacks.ModelCheckpoint(
        str(folder / "best.weights.h5"), "accuracy", save_best_only=True, save_weights_only=True
    )
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0)
    stops = keras.callbacks.EarlyStopping(
        "loss", patience=1, min_delta=9.0, restore_best_weights=True, start_from_epoch=1
    )
    results.append(model.fit(x, y, epochs=6, verbose=0, callbacks=[best, plateau, stops]).history)
    model.load_weights(folder / "w.weights.h5")
    return [*results, heard.heard, int(model.optimizer.iterations), weights_of(model)]


def optimizers_more(folder):
    x, y = targets()
    results = []
    for make in (
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, clipnorm=0.1),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=2.0**40, dynamic_growth_steps=2
        ),
        lambda: keras.optimizers.AdamW(
            0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2, global_clipnorm=0.05
        ),
        lambda: keras.optimizers.Adagrad(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    ):
        model = small(make(), metrics=["mse", "cosine_similarity"])
        results += [model.fit(x, y, batch_size=16, epochs=3, verbose=0).history, weights_of(model),
                    [np.asarray(one) for one in model.optimizer.variables if "seed" not in one.path]]  # fmt: skip
    return results


def pools(folder):
    """A PyDataset with threads and without, that grows with each epoch, and makes batches on a device."""
    x, y = data()

    class Grows(keras.utils.PyDataset):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.level = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            rows = slice(index, 2 * index + 9 + self.level)
            with keras.device("cpu:0"):  # of this rank
                return ops.convert_to_tensor(x[rows]), ops.convert_to_tensor(y[rows])

        def on_epoch_end(self):
            self.level += 1

    model, rows = mlp(), Grows(workers=3, max_queue_size=4)
    return [model.fit(rows, epochs=3, verbose=0, validation_data=Grows()).history, rows.level, weights_of(model)]


def inside(folder):
    """Values that a compiled step gives to Python: to that of rank 0 alone."""
    import jax

    seen = []

    class Tells(layers.Layer):
        def call(self, x):
            jax.debug.callback(lambda total: seen.append(float(total)), ops.sum(ops.abs(x)))
            return x

    x, y = targets()
    model = keras.Sequential([Tells(), layers.Dense(8), layers.Dense(3)])
    model.compile("sgd", "mse")
    history = model.fit(x, y, batch_size=16, verbose=0).history
    jax.effects_barrier()
    seen = world.current().broadcast(sorted(seen), "see what rank 0 was told")
    return [history, seen, weights_of(model)]


MORE = (own_steps, states, low_rank, few_rows, odd_batches, wide, sparse_rows, hearing, optimizers_more, pools, inside)
