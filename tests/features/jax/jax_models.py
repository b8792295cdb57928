"""Trainings of Keras on JAX, which `jax_rank.py` runs: layers, losses, metrics, optimizers."""

from __future__ import annotations

import keras
import numpy as np
from jax_cases import ROWS, data, images, small, targets, weights_of
from keras import layers, ops


def precision(folder):
    """Half precision with a loss scale, an average of weights, gradients of several steps."""
    x, y = targets()
    results = []
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.config.set_dtype_policy(policy)
        try:
            model = small(keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3))
            results += [model.fit(x, y, batch_size=16, epochs=2, verbose=0).history, weights_of(model)]
        finally:
            keras.config.set_dtype_policy("float32")
    model = small(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3, use_ema=True))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    results += [model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[swap]).history, weights_of(model)]
    return results


def all_optimizers(folder):
    x, y = targets()
    results = []
    for name, options in (
        ("Adam", {"amsgrad": True}), ("AdamW", {"global_clipnorm": 0.1, "weight_decay": 0.1}), ("Adafactor", {}),
        ("Lion", {"clipnorm": 0.5}), ("Muon", {}), ("Nadam", {"clipvalue": 0.01}), ("Ftrl", {}), ("Lamb", {}),
        ("SGD", {"momentum": 0.9, "nesterov": True}), ("ScheduleFreeAdamW", {}),
    ):  # fmt: skip
        if not hasattr(keras.optimizers, name):
            continue
        rate = keras.optimizers.schedules.CosineDecay(0.05, 10)
        model = small(getattr(keras.optimizers, name)(rate, **options))
        model.fit(x, y, batch_size=20, epochs=2, verbose=0)
        results.append(weights_of(model))
    return results


class Counting(keras.metrics.Metric):
    """A metric with two states."""

    def __init__(self):
        super().__init__(name="counting")
        self.rows = self.add_weight(name="rows", initializer="zeros")
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.rows.assign(self.rows + ops.cast(ops.shape(y_true)[0], "float32"))
        self.most.assign(ops.maximum(self.most, ops.max(y_pred)))

    def result(self):
        return self.rows + self.most


def metrics(folder):
    """Metrics with states, weights of rows and of classes."""
    x, y = targets()
    model = keras.Sequential([layers.Dense(3, "softmax")])
    model.compile(
        "adam", "categorical_crossentropy",
        metrics=[Counting(), "accuracy", keras.metrics.AUC(), keras.metrics.F1Score(), keras.metrics.R2Score(),
                 keras.metrics.OneHotMeanIoU(3), keras.metrics.PearsonCorrelation()],
        weighted_metrics=[keras.metrics.CategoricalAccuracy(name="weighted"), keras.metrics.Precision()],
    )  # fmt: skip
    weights = np.linspace(0, 2, ROWS).astype("float32")
    results = [
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, sample_weight=weights, validation_data=(x, y, weights)),
        model.fit(x, y, batch_size=16, verbose=0, class_weight={0: 1.0, 1: 3.0, 2: 0.5}, validation_split=0.2),
    ]
    return [*[one.history for one in results], model.evaluate(x, y, verbose=0, return_dict=True), weights_of(model)]


class OwnLoss(keras.Model):
    """`compute_loss` and `compute_metrics` of its own, and a loss that a layer adds."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8, activity_regularizer="l2", kernel_regularizer="l1")
        self.last = layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="own")

    def call(self, x, training=False):
        hidden = self.first(x)
        self.add_loss(0.01 * ops.var(hidden))
        return self.last(hidden)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        closest = ops.min(ops.norm(y_pred[:, None] - y_pred[None] + 1e-3, axis=-1))  # over all pairs of rows
        loss = ops.mean(ops.square(y - y_pred)) + 0.1 * closest + sum(self.losses)
        self.tracker.update_state(loss)
        return loss

    @property
    def metrics(self):
        return [self.tracker]


def own_loss(folder):
    x, y = targets()
    model = OwnLoss()
    model.compile("adam")
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x[:7], y[:7]))
    return [history.history, model.predict(x[:1], verbose=0), weights_of(model)]


class Adversaries(keras.Model):
    """Two models with an optimizer each, in one step of the script's own."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)
        self.maker = keras.Sequential([layers.Input((4,)), layers.Dense(6)])
        self.judge = keras.Sequential([layers.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1)])
        self.build((None, 4))

    def compile(self):
        super().compile()
        self.first, self.second = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)
        self.first.build(self.maker.trainable_variables)
        self.second.build(self.judge.trainable_variables)

    def call(self, z):
        return self.judge(self.maker(z))

    def train_step(self, state, batch):
        import jax

        trainable, others, kept, metrics = state
        count = len(self.maker.trainable_variables)
        maker, judge = trainable[:count], trainable[count:]
        seed = [value for variable, value in zip(self.non_trainable_variables, others, strict=True)
                if variable is self.seeds.state][0]  # fmt: skip
        noise = jax.random.normal(jax.random.wrap_key_data(seed), (batch.shape[0], 4))

        def loss_of_judge(judge, maker):
            made, _ = self.maker.stateless_call(maker, [], noise)
            false, _ = self.judge.stateless_call(judge, [], made)
            true, _ = self.judge.stateless_call(judge, [], batch)
            return ops.mean(ops.softplus(false)) + ops.mean(ops.softplus(-true))

        first, gradients = jax.value_and_grad(loss_of_judge)(judge, maker)
        judge, _ = self.second.stateless_apply([v.value for v in self.second.variables], gradients, judge)
        second, gradients = jax.value_and_grad(lambda maker: -loss_of_judge(judge, maker))(maker)
        maker, _ = self.first.stateless_apply([v.value for v in self.first.variables], gradients, maker)
        others = [ops.convert_to_tensor(value + 1 if variable is self.seeds.state else value)
                  for variable, value in zip(self.non_trainable_variables, others, strict=True)]  # fmt: skip
        return {"judge": first, "maker": second}, ([*maker, *judge], others, kept, metrics)


def adversaries(folder):
    model = Adversaries()
    model.compile()
    return [model.fit(data()[0], batch_size=16, epochs=2, verbose=0).history, weights_of(model)]


def noises(folder):
    """Layers that draw random numbers, and layers that keep states."""
    x, y = images()
    model = keras.Sequential(
        [
            layers.RandomFlip(seed=1), layers.RandomRotation(0.1, seed=2), layers.RandomContrast(0.2, seed=3),
            layers.GaussianDropout(0.2, seed=4), layers.Conv2D(4, 3), layers.BatchNormalization(momentum=0.5),
            layers.SpatialDropout2D(0.2), layers.Flatten(), layers.AlphaDropout(0.1),
            layers.Dense(4), layers.SpectralNormalization(layers.Dense(2)), layers.UnitNormalization(),
        ]
    )  # fmt: skip
    model.compile("sgd", "sparse_categorical_crossentropy")
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return [history.history, model.predict(x, verbose=0, batch_size=10), weights_of(model)]


def sequences(folder):
    """Recurrence, attention, embeddings, masks, and lengths that differ from batch to batch."""
    draws = np.random.default_rng(3)
    tokens = draws.integers(0, 9, (ROWS, 7))
    labels = (tokens.sum(axis=1) % 2).astype("float32")
    inputs = layers.Input((None,), dtype="int32")
    h = layers.Embedding(9, 8, mask_zero=True)(inputs)
    h = layers.Bidirectional(layers.LSTM(4, return_sequences=True, recurrent_dropout=0.1))(h)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4, dropout=0.1)(h, h))
    h = layers.GRU(4)(h)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(h))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

    def batches():
        for begin, length in ((0, 7), (16, 5), (32, 7), (48, 3)):
            yield tokens[begin : begin + 16, :length], labels[begin : begin + 16]

    return [model.fit(batches(), verbose=0).history, model.predict(tokens, verbose=0), weights_of(model)]


MODELS = (precision, all_optimizers, metrics, own_loss, adversaries, noises, sequences)
