"""Random draws in steps: layers of Keras, functions of Keras and TensorFlow, generators."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.support.cases.common import compiled, crossentropy, momentum, numbers, result_of, table


def noisy(columns=6, classes=3, seed=7):
    """A classifier with several kinds of noise."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([
        keras.Input((columns,)), layers.GaussianNoise(0.1), layers.Dense(16, activation="tanh"), layers.Dropout(0.4),
        layers.Dense(8, activation="tanh"), layers.GaussianDropout(0.2), layers.AlphaDropout(0.1),
        layers.Dense(classes),
    ])  # fmt: skip


def fit(how="fit", accumulate=None, **options):
    """A model with noise, trained on batches that are ragged, with fewer rows than ranks in the last one."""
    x, y = table(62)  # 62 rows: batches of 20, and one of 2
    model = compiled(noisy(), optimizer=momentum(gradient_accumulation_steps=accumulate), **options)
    if how == "fit":
        return result_of(model, model.fit(x, y, batch_size=20, epochs=3, verbose=0, shuffle=True))
    losses = []
    for _ in range(3):
        for first in range(0, 62, 20):
            losses.append(numbers(model.train_on_batch(x[first : first + 20], y[first : first + 20])))
    return result_of(model, losses=losses[-1])


def of_ops(x, generator, keras_generator):
    """What is drawn for a batch x of shape (rows, 6), each with one entry for each row."""
    rows = tf.shape(x)[0]
    seed = [3, 4]
    positive = tf.abs(x) + 0.5
    stateless = {
        "stateless uniform": tf.random.stateless_uniform(tf.shape(x), seed),
        "stateless uniform, one": tf.random.stateless_uniform([rows], seed),
        "stateless uniform, half": tf.random.stateless_uniform([rows, 3], seed, dtype=tf.float16),
        "stateless uniform, double": tf.random.stateless_uniform([rows, 3], seed, dtype=tf.float64),
        "stateless integers": tf.random.stateless_uniform([rows, 5], seed, 0, 1000, tf.int32),
        "stateless long integers": tf.random.stateless_uniform([rows, 5], seed, 0, 1000, tf.int64),
        "stateless bits": tf.random.stateless_uniform([rows, 5], seed, None, None, tf.int32),
        "stateless normal": tf.random.stateless_normal([rows, 2, 3], seed),
        "stateless truncated": tf.random.stateless_truncated_normal([rows, 7], seed),
        "stateless truncated, double": tf.random.stateless_truncated_normal([rows, 7], seed, dtype=tf.float64),
        "stateless gamma": tf.random.stateless_gamma([rows, 6], seed, positive),
        "stateless gamma, one parameter": tf.random.stateless_gamma([rows, 3], seed, 0.7),
        "stateless poisson": tf.random.stateless_poisson([rows, 6], seed, positive, tf.float32),
        "stateless binomial": tf.random.stateless_binomial([rows, 6], seed, 9.0, tf.sigmoid(x)),
        "stateless categorical": tf.random.stateless_categorical(x, 5, seed),
    }
    stateful = {
        "uniform": tf.random.uniform(tf.shape(x)),
        "uniform, op seed": tf.random.uniform([rows, 3], seed=5),
        "integers": tf.random.uniform([rows], maxval=100, dtype=tf.int32, seed=6),
        "normal": tf.random.normal([rows, 3]),
        "truncated": tf.random.truncated_normal([rows, 3]),
        "gamma": tf.random.gamma([], positive),
        "gamma, samples first": tf.transpose(tf.random.gamma([3], positive[:, 0])),
        "gamma, shape": tf.random.gamma([rows], 0.7),
        "poisson": tf.random.poisson([], positive),
        "categorical": tf.random.categorical(x, 4),
        "samples first": tf.transpose(tf.random.normal([3, rows])),
        "tf dropout": tf.nn.dropout(x, 0.5),
        "after": tf.random.uniform([rows]),
    }
    of_generator = {
        "generator normal": generator.normal([rows, 3]),
        "generator uniform": generator.uniform([rows]),
        "generator integers": generator.uniform([rows, 2], maxval=50, dtype=tf.int32),
        "generator truncated": generator.truncated_normal([rows, 2]),
        "generator binomial": generator.binomial([rows, 6], 9.0, tf.sigmoid(x)),
        "generator after": generator.normal([rows]),
    }
    joined = tf.concat([x, 2 * x], axis=0)
    noise = tf.random.stateless_uniform(tf.shape(joined), seed)
    steps = tf.reshape(tf.random.stateless_uniform(tf.shape(tf.reshape(x, [-1, 2])), seed), tf.shape(x))
    placed = {
        "joined": tf.concat([noise[:rows], noise[rows:]], axis=1),
        "reshaped": steps,
        "multiplied": tf.reshape(tf.random.stateless_normal([rows * 3, 2], seed), tf.shape(x)),
        "columns alone": tf.zeros([rows, 1]) + tf.random.stateless_uniform([1, tf.shape(x)[1]], seed),
        "of the model": tf.zeros([rows, 1]) + keras.random.normal([4], seed=keras_generator),
        "of the model, by number": tf.zeros([rows, 1]) + tf.random.normal([5]),
    }
    random = keras.random
    of_keras = {
        "keras normal": random.normal((rows, 3), seed=keras_generator),
        "keras uniform": random.uniform(keras.ops.shape(x), seed=keras_generator),
        "keras without seed": random.uniform(keras.ops.shape(x)),
        "keras randint": random.randint((rows, 3), 0, 77, seed=keras_generator),
        "keras truncated": random.truncated_normal((rows, 3), seed=keras_generator),
        "keras gamma": random.gamma((rows, 3), 0.7, seed=keras_generator),
        "keras beta": random.beta((rows, 3), 0.7, 0.5, seed=keras_generator),
        "keras binomial": random.binomial((rows, 3), 9.0, 0.5, seed=keras_generator),
        "keras categorical": random.categorical(x, 3, seed=keras_generator),
        "keras dropout": random.dropout(x, 0.5, seed=keras_generator),
        "keras dropout of columns": random.dropout(x, 0.5, noise_shape=(1, 6), seed=keras_generator),
        "keras dropout of rows": random.dropout(x, 0.5, noise_shape=(None, 1), seed=keras_generator),
    }
    return {**stateless, **stateful, **of_generator, **placed, **of_keras}


class Drawing(keras.Model):
    """A model that predicts what `draw` draws for a batch."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def predict_step(self, data):
        return self.draw(data[0] if isinstance(data, tuple) else data)


def drawn_by_ops():
    """What ops draw for the rows of three batches of 20."""
    keras.utils.set_random_seed(7)
    x, _ = table(60)
    generator = tf.random.Generator.from_seed(11)
    keras_generator = keras.random.SeedGenerator(12)
    model = Drawing(lambda x: of_ops(x, generator, keras_generator))
    model.keras_generator = keras_generator
    return {name: np.asarray(value) for name, value in model.predict(x, batch_size=20, verbose=0).items()}


class Adversaries(keras.Model):
    """The GAN of Keras' guides: noise for made-up rows, joined with real ones, and noise on the labels of both."""

    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.Input((4,)), layers.Dense(6)])
        self.judge = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.3), layers.Dense(1)]
        )
        self.made_with = keras.random.SeedGenerator(5)

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data):
        rows = keras.ops.shape(data)[0]
        noise = keras.random.normal((rows, 4), seed=self.made_with)
        joined = keras.ops.concatenate([self.maker(noise), data], axis=0)
        labels = keras.ops.concatenate([keras.ops.ones((rows, 1)), keras.ops.zeros((rows, 1))], axis=0)
        labels += 0.05 * tf.random.uniform(tf.shape(labels))
        with tf.GradientTape() as tape:
            judged = self.loss(labels, self.judge(joined, training=True))
        variables = self.judge.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(judged, variables), variables, strict=True))
        noise = tf.random.normal((rows, 4))
        with tf.GradientTape() as tape:
            made = self.loss(tf.zeros((rows, 1)), self.judge(self.maker(noise), training=True))
        variables = self.maker.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(made, variables), variables, strict=True))
        return {"judged": judged, "made": made}


class Autoencoder(keras.Model):
    """A variational autoencoder that skips a layer for some rows."""

    def __init__(self):
        super().__init__()
        self.encoder, self.depth, self.decoder = layers.Dense(8), layers.Dense(8, "tanh"), layers.Dense(6)
        self.noise = keras.random.SeedGenerator(5)

    def call(self, x):
        mean, scale = keras.ops.split(self.encoder(x), 2, axis=1)
        code = mean + keras.ops.exp(0.5 * scale) * keras.random.normal(keras.ops.shape(mean), seed=self.noise)
        kept = keras.random.uniform((keras.ops.shape(x)[0], 1), seed=self.noise) < 0.7
        deep = self.depth(keras.ops.concatenate([code, code], axis=1))
        return self.decoder(keras.ops.where(kept, deep, 0.0))


def own_steps():
    """Models with noise of their own, trained on ragged batches."""
    x, _ = table(62)
    keras.utils.set_random_seed(7)
    gan = Adversaries()
    gan.compile(momentum(), momentum())
    gan_history = gan.fit(x, batch_size=20, epochs=2, verbose=0)
    keras.utils.set_random_seed(7)
    coder = Autoencoder()
    coder.compile(momentum(), "mse")
    coder_history = coder.fit(x, x, batch_size=20, epochs=2, verbose=0)
    return [result_of(gan, gan_history), result_of(coder, coder_history)]


def recurrent():
    """Recurrent layers one after another, with dropout between them and within."""
    x, y = table(62, 12)
    keras.utils.set_random_seed(7)
    model = keras.Sequential([
        keras.Input((4, 3)), layers.LSTM(4, return_sequences=True), layers.Dropout(0.4),
        layers.SimpleRNN(3, dropout=0.3),
    ])  # fmt: skip
    compiled(model)
    return result_of(model, model.fit(x.reshape(62, 4, 3), y, batch_size=20, epochs=2, verbose=0))


def loop(form):
    """A loop of the script's own over ragged batches."""
    x, y = table(62)
    model, optimizer, loss_fn = noisy(), momentum(), crossentropy()
    pairs = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)

    def step(x, y):
        with tf.GradientTape() as tape:
            noise = tf.random.normal(tf.shape(x), stddev=0.1, seed=3) + tf.random.normal([5, 6], stddev=0.1)[0]
            each = tf.random.uniform([tf.shape(x)[0], 1], -0.1, 0.1, seed=4)
            loss = loss_fn(y, model(x + noise + each, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    if form == "compiled":
        step = tf.function(step)
    elif form == "any number of rows":
        step = tf.function(step, input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32)])
    elif form == "dataset":

        @tf.function
        def whole(pairs):
            for x, y in pairs:
                step(x, y)

    for _ in range(3):
        if form == "dataset":
            whole(pairs)
        else:
            for pair in pairs:
                step(*pair)
    return {"weights": [np.array(weight) for weight in model.get_weights()]}


def monte_carlo():
    """Predictions and losses of a model that drops out whenever it is called."""
    x, y = table(60)
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,))
    hidden = layers.Dropout(0.4)(layers.Dense(8)(inputs), training=True)
    model = compiled(keras.Model(inputs, layers.Dense(3)(hidden)))
    predicted = [model.predict(x, batch_size=size, verbose=0) for size in (16, 20)]
    return {"predicted": predicted, "evaluated": numbers(model.evaluate(x, y, batch_size=16, verbose=0))}


def _sequence(rows):
    return (rows, 5, 4)


def _image(rows):
    return (rows, 8, 8, 3)


#: Every layer of Keras that draws: its arguments, and the shape of what it gets. Where this Keras has it.
LAYERS = {
    "Dropout": ({"rate": 0.5}, _sequence),
    "SpatialDropout1D": ({"rate": 0.5}, _sequence),
    "SpatialDropout2D": ({"rate": 0.5}, _image),
    "SpatialDropout3D": ({"rate": 0.5}, lambda rows: (rows, 2, 2, 2, 3)),
    "GaussianNoise": ({"stddev": 0.5}, _sequence),
    "GaussianDropout": ({"rate": 0.5}, _sequence),
    "AlphaDropout": ({"rate": 0.5}, _sequence),
    "LSTM": ({"units": 3, "dropout": 0.3, "recurrent_dropout": 0.3}, _sequence),
    "GRU": ({"units": 3, "dropout": 0.3, "recurrent_dropout": 0.3}, _sequence),
    "SimpleRNN": ({"units": 3, "dropout": 0.3, "recurrent_dropout": 0.3}, _sequence),
    "ConvLSTM1D": (
        {"filters": 2, "kernel_size": 2, "dropout": 0.3, "recurrent_dropout": 0.3},
        lambda rows: (rows, 3, 4, 2),
    ),
    "ConvLSTM2D": (
        {"filters": 2, "kernel_size": 2, "dropout": 0.3, "recurrent_dropout": 0.3},
        lambda rows: (rows, 3, 4, 4, 2),
    ),
    "ConvLSTM3D": (
        {"filters": 2, "kernel_size": 2, "dropout": 0.3, "recurrent_dropout": 0.3},
        lambda rows: (rows, 2, 3, 3, 3, 2),
    ),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 3, "dropout": 0.3}, _sequence),
    "GroupQueryAttention": (
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2, "dropout": 0.3},
        _sequence,
    ),
    "Attention": ({"dropout": 0.3}, _sequence),
    "AdditiveAttention": ({"dropout": 0.3}, _sequence),
    "AugMix": ({}, _image),
    "CutMix": ({}, _image),
    "MixUp": ({}, _image),
    "Mosaic": ({}, _image),
    "RandAugment": ({}, _image),
    "RandomBrightness": ({"factor": 0.3}, _image),
    "RandomColorDegeneration": ({"factor": 0.5}, _image),
    "RandomColorJitter": (
        {"brightness_factor": 0.3, "contrast_factor": 0.3, "saturation_factor": 0.3, "hue_factor": 0.3},
        _image,
    ),
    "RandomContrast": ({"factor": 0.3}, _image),
    "RandomCrop": ({"height": 5, "width": 6}, _image),
    "RandomElasticTransform": ({"factor": 0.7, "scale": 0.7}, _image),
    "RandomErasing": ({"factor": 1.0}, _image),
    "RandomFlip": ({}, _image),
    "RandomGaussianBlur": ({"sigma": 0.7}, _image),
    "RandomGrayscale": ({"factor": 0.5}, _image),
    "RandomHue": ({"factor": 0.4}, _image),
    "RandomInvert": ({"factor": 0.5}, _image),
    "RandomPerspective": ({"factor": 1.0}, _image),
    "RandomPosterization": ({"factor": 4}, _image),
    "RandomRotation": ({"factor": 0.3}, _image),
    "RandomSaturation": ({"factor": 0.4}, _image),
    "RandomSharpness": ({"factor": 0.7}, _image),
    "RandomShear": ({"x_factor": 0.3, "y_factor": 0.3}, _image),
    "RandomTranslation": ({"height_factor": 0.3, "width_factor": 0.3}, _image),
    "RandomZoom": ({"height_factor": 0.3, "width_factor": 0.3}, _image),
    "Solarization": ({"addition_factor": 0.3}, _image),
    "SimpleRNNCell": ({"units": 3, "dropout": 0.3}, lambda rows: (rows, 4)),
    "LSTMCell": ({"units": 3, "dropout": 0.3}, lambda rows: (rows, 4)),
    "GRUCell": ({"units": 3, "dropout": 0.3}, lambda rows: (rows, 4)),
}
#: Layers with a seed that draw nothing on this backend.
OTHERS = {"JaxLayer"}
#: Those that draw for rows only where the number of rows is known while a step is traced, which it is on one rank for
#: batches that all have as many.
BY_SHAPE = {"RandomElasticTransform"}
#: Those that draw by Python's `random` while a step is traced: alike on every rank, and other numbers on one.
BY_TRACE = {"AugMix"}


def layers_that_draw():
    """Names of the layers of this Keras that take a seed or a rate of dropout."""
    found = {}
    for name, one in vars(layers).items():
        if isinstance(one, type) and issubclass(one, layers.Layer):
            found.setdefault(one, name)
    return sorted(
        name for one, name in found.items() if {"seed", "dropout"} & set(inspect.signature(one.__init__).parameters)
    )


def drawn_by_layers(part=0, parts=1, names=()):
    """What layers give, in training, for the rows of batches of 7, 7 and 1.

    The names of layers that draw, and that are not known here, are among the results.
    """
    results = {"unknown": sorted(set(layers_that_draw()) - set(LAYERS) - OTHERS)}
    for name in list(names or LAYERS)[part::parts]:
        if not hasattr(layers, name) or name in BY_SHAPE | BY_TRACE:
            continue
        arguments, shape = LAYERS[name]
        values = np.random.RandomState(0).uniform(0, 255 if shape is _image else 1, shape(15)).astype("float32")
        keras.utils.set_random_seed(7)
        layer = getattr(layers, name)(**arguments, seed=3)
        if name.endswith("Cell"):
            layer = layers.RNN(layer)
            values = np.stack([values, values], axis=1)

        def drawn(x, layer=layer, name=name):
            if name in ("Attention", "AdditiveAttention"):
                return layer([x, x], training=True)
            return layer(x, x, training=True) if "Attention" in name else layer(x, training=True)

        model = Drawing(drawn)
        model.layer = layer
        results[name] = np.asarray(model.predict(values, batch_size=7, verbose=0))
    return results
