"""Scripts that cannot be trained on many ranks: rank 1 does something else, or the model cannot be exchanged."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf.core import world
from tests.support.cases.common import by_patches, classifier, compiled, table


def odd():
    """Whether this is the rank that goes another way."""
    return world.rank() == 1


def layer_count():
    """A layer more on rank 1."""
    x, y = table()
    keras.utils.set_random_seed(7)
    more = [layers.Dense(8, name="one_more")] if odd() else []
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, name="first"), *more, layers.Dense(3, name="last")])
    compiled(model).fit(x, y, batch_size=25, verbose=0)


def layer_shape():
    """A wider layer on rank 1."""
    x, y = table()
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(9 if odd() else 8, name="first"), layers.Dense(3)])
    compiled(model).fit(x, y, batch_size=25, verbose=0)


def columns(kind="arrays"):
    """Seven columns on rank 1, six elsewhere, and a model that takes what comes."""
    x, y = table(columns=7 if odd() else 6)
    model = compiled(keras.Sequential([layers.Dense(8), layers.Dense(3)]))
    if kind == "arrays":
        model.fit(x, y, batch_size=25, verbose=0)
    else:
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(25), verbose=0)


def dtype(kind="arrays"):
    """Whole numbers on rank 1."""
    x, y = table()
    x = x.astype("int64") if odd() else x
    model = compiled(classifier())
    if kind == "arrays":
        model.fit(x, y, batch_size=25, verbose=0)
    else:
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(25), verbose=0)


@by_patches
def states(how):
    """A recurrent layer that keeps a state for each row of a batch."""
    x = np.zeros((16, 5, 1), "float32")
    lstm = keras.layers.LSTM(4, stateful=True, name="keeps")
    model = keras.Sequential([keras.Input(batch_shape=(8, 5, 1)), lstm, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if how == "fit":
        model.fit(x, x[:, 0], batch_size=8, verbose=0)
    else:
        model.predict(x, batch_size=8, verbose=0)


@by_patches
def bypass():
    """A `train_step` that changes weights by what it sees of the rows, without a gradient."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = classifier()

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            x, y = data
            loss = self.compute_loss(x, y, self(x, training=True))
            for variable in self.trainable_variables:
                variable.assign(variable + 0.1 * tf.reduce_mean(x))
            return {"loss": loss}

    x, y = table()
    compiled(Own(), metrics=None).fit(x, y, batch_size=25, epochs=2, verbose=0)


@by_patches
def complex_gradient():
    """A weight of complex numbers."""

    class Wave(layers.Layer):
        def build(self, shape):
            self.wave = tf.Variable(tf.complex([1.0] * 6, [0.5] * 6), name="wave")

        def call(self, x):
            return tf.math.real(tf.cast(x, tf.complex64) * self.wave)

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.wave, self.last = Wave(), layers.Dense(3)

        def call(self, x):
            return self.last(self.wave(x))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = [*self.trainable_variables, self.wave.wave]
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    x, y = table()
    compiled(Own(), optimizer=keras.optimizers.SGD(0.1), metrics=None).fit(x, y, batch_size=25, verbose=0)


def shorter_generator():
    """A generator that is one batch shorter on rank 1."""
    x, y = table(100)

    def generate():
        for low in range(0, 75 if odd() else 100, 25):
            yield x[low : low + 25], y[low : low + 25]

    compiled(classifier()).fit(generate(), verbose=0)


def smaller_batch():
    """A pipeline whose second batch has fewer rows on rank 1."""
    x, y = table(100)

    def generate():
        yield x[:25], y[:25]
        end = 45 if odd() else 50
        yield x[25:end], y[25:end]

    compiled(classifier()).fit(generate(), verbose=0)


def leaves_loop():
    """Rank 1 leaves a loop over `train_on_batch` early, and evaluates."""
    x, y = table(100)
    model = compiled(classifier())
    for step in range(4):
        if odd() and step == 2:
            break
        model.train_on_batch(x[step * 25 :][:25], y[step * 25 :][:25])
    model.evaluate(x, y, verbose=0)


def other_epochs():
    """Rank 1 trains for one epoch less, and predicts."""
    x, y = table(100)
    model = compiled(classifier())
    model.fit(x, y, batch_size=25, epochs=1 if odd() else 2, verbose=0)
    model.predict(x, verbose=0)


def other_rate():
    """Rank 1 has another learning rate: weights would part ways after the first step."""
    x, y = table(100)
    model = compiled(classifier(), optimizer=keras.optimizers.SGD(0.2 if odd() else 0.1))
    model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    return [np.array(weight) for weight in model.get_weights()]


def other_optimizer():
    """Rank 1 has an optimizer with other variables."""
    x, y = table(100)
    model = compiled(classifier(), optimizer=keras.optimizers.Adam(0.1) if odd() else keras.optimizers.SGD(0.1))
    model.fit(x, y, batch_size=25, epochs=2, verbose=0)


def raises_in_callback():
    """A callback that raises on every rank: the script's own exception comes out, unchanged."""

    def fail(epoch, logs):
        raise KeyError("the script's own")

    x, y = table(100)
    callback = keras.callbacks.LambdaCallback(on_epoch_end=fail)
    compiled(classifier()).fit(x, y, batch_size=25, callbacks=[callback], verbose=0)


def loop(how):
    """A training loop of the script's own in which rank 1 goes another way.

    Args:
        how: "layer", "shorter", "leaves", "smaller", "metric", "optimizer".
    """
    keras.utils.set_random_seed(7)
    more = [layers.Dense(8, name="one_more")] if how == "layer" and odd() else []
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8), *more, layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    all_x, all_y = table(100)

    def generate():  # so that nobody sees beforehand that the pipelines differ
        for low in range(0, 75 if how == "shorter" and odd() else 100, 25):
            high = low + (20 if how == "smaller" and odd() and low else 25)
            yield all_x[low:high], all_y[low:high]

    signature = tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32)
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    data = data.batch(1).map(lambda x, y: (x[0], y[0]))
    for number, (x, y) in enumerate(data):
        if how == "leaves" and odd() and number == 2:
            break
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        variables = model.trainable_variables[:2] if how == "optimizer" and odd() else model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        accuracy.update_state(y, logits)
        if how == "metric" and odd():
            accuracy.result()
    accuracy.result()


def session(how):
    """A session in which rank 1 goes another way.

    Args:
        how: "variable", "leaves".
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as run:
        x = v1.placeholder(tf.float32, [None, 6])
        w = v1.get_variable("w", [6, 4 if how == "variable" and odd() else 3], initializer=v1.ones_initializer())
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((x @ w) ** 2))
        run.run(v1.global_variables_initializer())
        for number in range(3):
            if how == "leaves" and odd() and number == 2:
                break
            run.run(train, {x: table(10)[0]})
        v1.train.Saver().save(run, "model")


def own_function(which):
    """A model class that makes the function itself that Keras calls for each batch."""

    def make(self, force=False):
        setattr(self, f"{which}_function", lambda iterator: {"loss": 0.0})

    kind = type("Own", (keras.Sequential,), {f"make_{which}_function": make})
    model = compiled(kind([keras.Input((6,)), layers.Dense(3)]))
    (model.fit if which == "train" else model.evaluate)(*table(), batch_size=25, verbose=0)
