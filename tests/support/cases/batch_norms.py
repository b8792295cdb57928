"""BatchNormalization in all its forms, with its moving statistics after every step."""

from __future__ import annotations

import contextlib
import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from tests.support.cases.common import compiled, crossentropy, momentum, result_of, table


@contextlib.contextmanager
def over(rows):
    """Inside, BatchNormalization runs over the rows of the batch, or of the rank."""
    before = settings.use(dataclasses.replace(settings.current(), batch_norm=rows))
    try:
        yield
    finally:
        settings.use(before)


class Statistics(keras.callbacks.Callback):
    """The state of every BatchNormalization after each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        norms = [one for one in self.model._flatten_layers() if isinstance(one, layers.BatchNormalization)]
        self.seen.append([np.array(variable) for one in norms for variable in one.non_trainable_variables])


def _words():
    random = np.random.RandomState(0)
    return random.randint(1, 9, (101, 6)) * (np.arange(6) < random.randint(1, 7, (101, 1))), random.randint(0, 3, 101)


def _dense(**how):
    norm = layers.BatchNormalization(momentum=0.8, **how)
    return [keras.Input((6,)), layers.Dense(8), norm, layers.ReLU(), layers.Dense(3)], table()


def _images(**how):
    random = np.random.RandomState(0)
    x = random.normal(20.0, 3.0, size=(101, 6, 6, 2)).astype("float32")
    norms = [layers.BatchNormalization(**how), layers.BatchNormalization(axis=1)]
    body = [layers.Conv2D(3, 2), norms[0], layers.ReLU(), layers.Conv2D(4, 2), norms[1], layers.Flatten()]
    return [keras.Input((6, 6, 2)), *body, layers.Dense(3)], (x, random.randint(0, 3, 101))


def _masked(**how):
    norm = layers.BatchNormalization(**how)
    body = [layers.Embedding(9, 4, mask_zero=True), norm, layers.LSTM(5), layers.Dense(3)]
    return [keras.Input((6,), dtype="int32"), *body], _words()


def _times(**how):
    norm = layers.TimeDistributed(layers.BatchNormalization(**how))
    body = [layers.Embedding(9, 4), norm, layers.Flatten(), layers.Dense(3)]
    return [keras.Input((6,), dtype="int32"), *body], _words()


def _frozen(**how):
    body, data = _dense(**how)
    body[2].trainable = False
    return [*body[:4], layers.Dense(5), layers.BatchNormalization(), body[4]], data


FORMS = {
    "dense": (_dense, {}, {}),
    "images": (_images, {}, {}),
    "masked": (_masked, {}, {}),
    "masked, synchronized": (_masked, {"synchronized": True}, {}),
    "each time step": (_times, {}, {}),
    "frozen": (_frozen, {}, {}),
    "renorm": (_dense, {"renorm": True}, {}),
    "mixed precision": (_dense, {"dtype": "mixed_float16"}, {}),
    "float64": (_dense, {"dtype": "float64"}, {}),
    "eager": (_dense, {}, {"run_eagerly": True}),
    "several steps": (_dense, {}, {"steps_per_execution": 3}),
}


def fitted(form, batch_norm="batch"):
    """Two epochs in batches of 25, the last of one row; losses, weights, slots, and the statistics after each step."""
    make, how, options = FORMS[form]
    keras.utils.set_random_seed(7)
    body, (x, y) = make(**how)
    model = compiled(keras.Sequential(body), optimizer=momentum(0.02), **options)
    statistics = Statistics()
    with over(batch_norm):
        history = model.fit(x, y, batch_size=25, epochs=2, callbacks=[statistics], verbose=0)
    return {**result_of(model, history), "statistics": statistics.seen, "predict": model.predict(x[:40], verbose=0)}


def accumulated():
    """Gradients of three steps make an update, with Adam."""
    keras.utils.set_random_seed(7)
    body, (x, y) = _dense()
    model = compiled(keras.Sequential(body), optimizer=keras.optimizers.SGD(0.02, gradient_accumulation_steps=3))
    return result_of(model, model.fit(x, y, batch_size=17, epochs=2, verbose=0))


def on_batches():
    """`train_on_batch`, then `test_on_batch`."""
    keras.utils.set_random_seed(7)
    body, (x, y) = _dense()
    model = compiled(keras.Sequential(body), optimizer=momentum(0.02))
    losses = [model.train_on_batch(x[low : low + 20], y[low : low + 20]) for low in range(0, 100, 20)]
    return {"losses": losses[-1:], "weights": model.get_weights(), "tested": model.test_on_batch(x, y)}


def in_a_loop(compiled_step):
    """A loop of the script's own."""
    keras.utils.set_random_seed(7)
    body, (x, y) = _dense()
    model, optimizer, loss_fn = keras.Sequential(body), momentum(0.02), crossentropy()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    run = tf.function(step) if compiled_step else step
    for _ in range(2):
        for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(25):
            run(*batch)
    return model.get_weights()


def penalized():
    """A gradient of a gradient goes through the layer: a penalty on how steep the output is."""

    class Steep(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x, training=None):
            return self.inner(x, training=training)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    out = self.inner(x, training=True)
                    top = tf.reduce_mean(out)
                slope = inner.gradient(top, x) * tf.cast(tf.shape(x)[0], tf.float32)
                loss = tf.reduce_mean(tf.reduce_sum(tf.square(slope), 1)) + tf.reduce_mean(tf.square(out))
            variables = self.inner.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    keras.utils.set_random_seed(7)
    body, (x, y) = _dense()
    body[3] = layers.Activation("tanh")
    model = Steep(keras.Sequential(body))
    model.compile(optimizer=momentum(0.02))
    history = model.fit(x[:96], y[:96], batch_size=24, epochs=2, verbose=0)
    return {"loss": history.history["loss"], "weights": model.get_weights()}
