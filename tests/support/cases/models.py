"""Kinds of models, from layers in a row to train steps of their own."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.support.cases.common import (
    classifier,
    compiled,
    crossentropy,
    momentum,
    result_of,
    table,
    weights_for,
)


def train(model, x, y, **options):
    """Two epochs in batches of 25, the last of them with one row, and what comes of it."""
    history = model.fit(x, y, **{"batch_size": 25, "epochs": 2, "verbose": 0, **options})
    return result_of(model, history)


def many_ends(by_batch=False):
    """Functional, two inputs that share a layer, two outputs, weighted losses.

    Args:
        by_batch: whether the script gives the batches; the logs count those as large as the first by their rows.
    """
    x, y = table()
    keras.utils.set_random_seed(7)
    left, right = keras.Input((3,)), keras.Input((3,))
    shared = layers.Dense(5, activation="tanh")
    joined = layers.Multiply()([shared(left), shared(right)])
    model = keras.Model([left, right], [layers.Dense(3)(joined), layers.Dense(1)(joined)])
    compiled(model, loss=[crossentropy(), "mae"], loss_weights=[1.0, 0.5], metrics=[["accuracy"], ["mse"]])
    if by_batch:
        logs = []
        for low, high in ((0, 40), (40, 61), (61, 101)):
            inputs, labels = [x[low:high, :3], x[low:high, 3:]], [y[low:high], x[low:high, :1]]
            logs.append(model.train_on_batch(inputs, labels, return_dict=True))
        return {"logs": logs, "weights": model.get_weights()}
    return train(model, [x[:, :3], x[:, 3:]], [y, x[:, :1]], sample_weight=[weights_for(101), np.ones(101)])


class Lazy(keras.Model):
    """A subclassed model whose layers are built when it is first called."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(8, activation="tanh"), layers.Dense(3)

    def call(self, x, training=False):
        return self.second(self.first(x))


def subclassed():
    """Weights that do not exist before the first step."""
    x, y = table()
    keras.utils.set_random_seed(7)
    return train(compiled(Lazy()), x, y)


def subclassed_eagerly():
    """The same where no graph is traced."""
    x, y = table()
    keras.utils.set_random_seed(7)
    return train(compiled(Lazy(), run_eagerly=True), x, y, epochs=1)


def unbuilt_sequential():
    """A Sequential without an input shape."""
    x, y = table()
    keras.utils.set_random_seed(7)
    return train(compiled(keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])), x, y)


def embeddings(optimizer="SGD", **config):
    """Two embeddings, whose gradients are sparse, as in a recommender; some rows occur twice in a batch."""
    random = np.random.RandomState(0)
    users, items = random.randint(0, 13, 101), random.randint(0, 40, (101, 3))
    scores = random.normal(size=101).astype("float32")
    keras.utils.set_random_seed(7)
    user, item = keras.Input((), dtype="int32"), keras.Input((3,), dtype="int32")
    vectors = layers.Embedding(13, 4)(user), layers.GlobalAveragePooling1D()(layers.Embedding(40, 4)(item))
    score = layers.Add()([layers.Dot(1)(list(vectors)), layers.Dense(1)(vectors[0])])
    model = keras.Model([user, item], score)
    rule = getattr(keras.optimizers, optimizer)(**config)
    return train(compiled(model, optimizer=rule, loss="mse", metrics=("mae",)), [users, items], scores)


def frozen():
    """Layers that do not learn, one of them thawed between two fits."""
    x, y = table()
    model = classifier()
    model.layers[0].trainable = False
    first = train(compiled(model), x, y, epochs=2)
    model.layers[0].trainable = True
    return [first, train(compiled(model, optimizer=momentum(0.01)), x, y, epochs=2)]


class Tracked(keras.Model):
    """A `train_step` as in Keras' guide: a loss tracker that is fed the mean of the batch, and a metric."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.tracker = keras.metrics.Mean(name="loss")
        self.distance = keras.metrics.MeanAbsoluteError(name="distance")

    def call(self, x):
        return self.inner(x)

    @property
    def metrics(self):
        return [self.tracker, self.distance]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = ops.mean(keras.losses.mean_squared_error(y, predicted))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.tracker.update_state(loss)
        self.distance.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        predicted = self(x, training=False)
        self.tracker.update_state(ops.mean(keras.losses.mean_squared_error(y, predicted)))
        self.distance.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def regression():
    """Rows, and two numbers to be learned from each."""
    x, _ = table()
    return x, np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)


def own_train_step():
    """A custom `train_step` and `test_step`."""
    x, y = regression()
    model = Tracked(classifier(classes=2))
    model.compile(optimizer=momentum(0.02))
    return train(model, x, y, validation_data=(x[:38], y[:38]))


class Clipping(Tracked):
    """A step that changes its gradients before it applies them, and says how long they were."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.3)
        self.optimizer.apply([gradient * 0.5 for gradient in gradients], self.trainable_variables)
        return {"loss": loss, "norm": norm}


def clipped_in_the_step(**options):
    """A custom `train_step` that clips by the norm of the gradients of the whole batch."""
    x, y = regression()
    model = Clipping(classifier(classes=2))
    model.compile(optimizer=momentum(0.02, **options))
    return train(model, x, y)


def assigned_in_the_step():
    """A custom `train_step` that changes the weights by what the tape gives, without an optimizer."""

    class Assigning(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = classifier(classes=2)

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = self.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign(variable - 0.02 * gradient)
            return {"loss": loss}

    x, y = regression()
    model = Assigning()
    model.compile("sgd", loss="mse")
    return train(model, x, y)


def returned_numbers():
    """A `train_step` that returns numbers of its own, which no metric keeps: means over the batch."""

    class Bare(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = classifier(classes=2)

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss, "double": 2 * loss}

    x, y = regression()
    model = Bare()
    model.compile(optimizer=momentum(0.02))
    return train(model, x, y)


class Gan(keras.Model):
    """Two models, two optimizers, and a step of each in every batch; the latents are made from the data."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(7)
        leaky = layers.LeakyReLU
        self.maker = keras.Sequential([keras.Input((2,)), layers.Dense(8), leaky(), layers.Dense(6)])
        self.judge = keras.Sequential([keras.Input((6,)), layers.Dense(8), leaky(), layers.Dense(1)])
        self.maker_loss, self.judge_loss = keras.metrics.Mean(name="maker"), keras.metrics.Mean(name="judge")

    def compile(self, maker_optimizer, judge_optimizer, loss):
        super().compile()
        self.maker_optimizer, self.judge_optimizer, self.loss_of = maker_optimizer, judge_optimizer, loss

    @property
    def metrics(self):
        return [self.maker_loss, self.judge_loss]

    def train_step(self, real):
        latent, count = real[:, 2:4] * 3.0, tf.shape(real)[0]
        both = tf.concat([self.maker(latent), real], axis=0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            judge_loss = self.loss_of(labels, self.judge(both))
        gradients = tape.gradient(judge_loss, self.judge.trainable_weights)
        self.judge_optimizer.apply_gradients(zip(gradients, self.judge.trainable_weights, strict=True))
        with tf.GradientTape() as tape:
            maker_loss = self.loss_of(tf.zeros((count, 1)), self.judge(self.maker(latent)))
        gradients = tape.gradient(maker_loss, self.maker.trainable_weights)
        self.maker_optimizer.apply_gradients(zip(gradients, self.maker.trainable_weights, strict=True))
        self.maker_loss.update_state(maker_loss)
        self.judge_loss.update_state(judge_loss)
        return {"maker": self.maker_loss.result(), "judge": self.judge_loss.result()}


def gan():
    """A GAN with two optimizers of different kinds."""
    x, _ = table()
    model = Gan()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(momentum(0.05), keras.optimizers.SGD(0.05, nesterov=True, momentum=0.5), loss)
    history = model.fit(x, batch_size=25, epochs=3, verbose=0)
    optimizers = [v for optimizer in (model.maker_optimizer, model.judge_optimizer) for v in optimizer.variables]
    return {**result_of(model, history), "both": [np.array(variable) for variable in optimizers]}


def twice():
    """A `train_step` that takes two steps on the same batch, the second from where the first one ended."""

    class Twice(Tracked):
        def train_step(self, data):
            super().train_step(data)
            return super().train_step(data)

    x, y = regression()
    model = Twice(classifier(classes=2))
    model.compile(optimizer=momentum(0.01))
    return train(model, x, y)


def distillation():
    """A student that learns from a frozen teacher, through an overridden `compute_loss`."""

    class Distiller(keras.Model):
        def __init__(self, teacher, student):
            super().__init__()
            self.teacher, self.student = teacher, student
            self.teacher.trainable = False

        def call(self, x, training=False):
            return self.student(x, training=training)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **how):
            truth = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **how)
            wanted = ops.softmax(self.teacher(x, training=False) / 3.0)
            return 0.5 * truth + ops.mean(keras.losses.kl_divergence(wanted, ops.softmax(y_pred / 3.0)))

    x, y = table()
    return train(compiled(Distiller(classifier(seed=8), classifier())), x, y, validation_split=0.21)


def penalties():
    """`add_loss` in a layer, kernel and bias regularizers, an activity regularizer."""

    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * ops.mean(ops.square(x)))
            return x

    x, y = table()
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, activation="tanh", kernel_regularizer="l2", bias_regularizer="l1")(inputs)
    hidden = layers.Dense(5, activity_regularizer=keras.regularizers.L2(0.05))(Penalty()(hidden))
    return train(compiled(keras.Model(inputs, layers.Dense(3)(hidden))), x, y, validation_split=0.21)


def regularizers():
    """Regularizers of weights alone: no part of the loss that depends on rows."""
    x, y = table()
    keras.utils.set_random_seed(7)
    strong = {"kernel_regularizer": keras.regularizers.L1L2(0.01, 0.05), "bias_regularizer": "l2"}
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh", **strong), layers.Dense(3)])
    return train(compiled(model), x, y)


def added_loss():
    """`add_loss` alone."""

    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(0.3 * ops.mean(ops.square(x)))
            return x

    x, y = table()
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), Penalty(), layers.Dense(3)])
    return train(compiled(model), x, y)


def activity_regularizer():
    """An activity regularizer alone."""
    x, y = table()
    keras.utils.set_random_seed(7)
    hidden = layers.Dense(8, activation="tanh", activity_regularizer=keras.regularizers.L2(0.05))
    return train(compiled(keras.Sequential([keras.Input((6,)), hidden, layers.Dense(3)])), x, y)


def losses(reduction=None, form="class", weighted=False):
    """A loss of the user's own, and the reductions.

    Args:
        reduction: of a loss of Keras; None for a loss of the user's own.
        form: of the user's own: "class", "rows" (a function that returns one value a row), "scalar".
        weighted: whether to give sample weights.
    """

    class Own(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return ops.mean(ops.abs(y_true - y_pred) ** 1.5, axis=-1)

    def rows(y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred) ** 1.5, axis=-1)

    def scalar(y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred) ** 1.5)

    x, y = regression()
    own = {"class": Own(), "rows": rows, "scalar": scalar}[form]
    loss = keras.losses.MeanSquaredError(reduction=reduction) if reduction else own
    rate = 0.0005 if reduction == "sum" else 0.02
    model = compiled(classifier(classes=2), optimizer=momentum(rate), loss=loss, metrics=("mae",))
    weights = {"sample_weight": weights_for(101)} if weighted else {}
    return train(model, x, y, **weights)


def recurrent(layer="LSTM", sequences=False):
    """A masked recurrent model of words; with `sequences`, a class for every word, masked in the loss as well.

    Args:
        layer: name of a recurrent layer.
    """
    random = np.random.RandomState(0)
    words = random.randint(1, 20, (38, 7))
    lengths = random.randint(1, 8, 38)
    words[np.arange(7)[None] >= lengths[:, None]] = 0
    keras.utils.set_random_seed(7)
    model = keras.Sequential([
        keras.Input((7,), dtype="int32"),
        layers.Embedding(20, 4, mask_zero=True),
        getattr(layers, layer)(5, return_sequences=sequences),
        layers.Dense(3),
    ])  # fmt: skip
    targets = words % 3 if sequences else words.sum(axis=1) % 3
    return train(compiled(model, weighted_metrics=["accuracy"], metrics=None), words, targets, batch_size=12)


def attention():
    """A transformer's block: attention, layer normalization, a residual, pooling."""
    random = np.random.RandomState(0)
    words = random.randint(0, 20, (38, 6))
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 8)(inputs)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 4)(hidden, hidden))
    hidden = layers.GlobalMaxPooling1D()(layers.Dense(8, activation="gelu")(hidden))
    model = compiled(keras.Model(inputs, layers.Dense(3)(hidden)))
    return train(model, words, words[:, 0] % 3, batch_size=12)


def metric_function():
    """Metric functions of the user's own: one value a row, and one for the whole batch."""

    def by_row(y_true, y_pred):
        return ops.abs(y_true - y_pred)[:, 0]

    def of_batch(y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred))

    x, y = regression()
    model = compiled(classifier(classes=2), optimizer=momentum(0.02), loss="mse", metrics=(by_row, of_batch))
    return train(model, x, y, validation_split=0.21)


class Spread(keras.metrics.Metric):
    """Sums and a count, added up by `assign_add`; the result is no mean."""

    def __init__(self, name="spread"):
        super().__init__(name=name)
        self.total, self.squares = self.add_variable((), "zeros"), self.add_variable((), "zeros")
        self.count = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.reshape(y_true - y_pred, (-1,))
        self.total.assign_add(ops.sum(error))
        self.squares.assign(self.squares + ops.sum(ops.square(error)))
        self.count.assign_add(ops.cast(ops.size(error), "float32"))

    def result(self):
        mean = self.total / self.count
        return ops.sqrt(self.squares / self.count - mean * mean)


def own_metric():
    """A Metric of the user's own that adds to its state."""
    x, y = regression()
    model = compiled(classifier(classes=2), optimizer=momentum(0.02), loss="mse", metrics=(Spread(),))
    return train(model, x, y, validation_split=0.21)


class Worst(keras.metrics.Metric):
    """A running maximum: the states of ranks cannot be added up."""

    def __init__(self, name="worst"):
        super().__init__(name=name)
        self.worst = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.worst.assign(ops.maximum(self.worst, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return ops.convert_to_tensor(self.worst) + 0.0  # no variable, which would change after it was read


def maximum_metric():
    """A metric that does not add up; the warnings that were given, and the training itself."""
    x, y = regression()
    model = compiled(classifier(classes=2), optimizer=momentum(0.02), loss="mse", metrics=(Worst(), "mae"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        result = train(model, x, y, validation_split=0.21)
    named = [str(warning.message) for warning in caught if "worst" in str(warning.message)]
    return {"warnings": named, **result}


def fixed_batch():
    """A model that is built for batches of eight rows."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(24, 10, 1)).astype("float32"), random.normal(size=(24, 1)).astype("float32")
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input(batch_shape=(8, 10, 1)), layers.LSTM(6), layers.Dense(1)])
    model.compile(momentum(0.02), "mse")
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return result_of(model, history, predict=model.predict(x, batch_size=8, verbose=0))


def normalized(synchronized, rows=101, epochs=3):
    """BatchNormalization between dense layers.

    Args:
        synchronized: use statistics over the rows of all ranks; on one rank this is the plain layer.
    """
    from matex_tf.core import world

    x, y = table(rows)
    keras.utils.set_random_seed(7)
    norm = layers.BatchNormalization(momentum=0.8, synchronized=synchronized and world.size() > 1)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8), norm, layers.ReLU(), layers.Dense(3)])
    seen = []

    class Moving(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([np.array(norm.moving_mean), np.array(norm.moving_variance)])

    history = compiled(model).fit(
        x, y, batch_size=25, epochs=epochs, validation_data=table(30, seed=1), callbacks=[Moving()], verbose=0
    )
    return {**result_of(model, history), "moving": seen, "predict": model.predict(x, verbose=0)}


def normalized_images():
    """The same on images, where statistics run over three axes."""
    from matex_tf.core import world

    random = np.random.RandomState(0)
    x, y = random.normal(2.0, 3.0, size=(38, 4, 4, 2)).astype("float32"), random.randint(0, 3, 38)
    keras.utils.set_random_seed(7)
    model = keras.Sequential([
        keras.Input((4, 4, 2)), layers.Conv2D(3, 2),
        layers.BatchNormalization(synchronized=world.size() > 1),
        layers.ReLU(), layers.Flatten(), layers.Dense(3),
    ])  # fmt: skip
    return train(compiled(model, optimizer=momentum(0.02)), x, y, batch_size=12)


def dropout():
    """Two trainings from one seed, with the masks that this rank drew in the first batch of each."""
    x, y = table(48)
    runs = []
    for _ in range(2):
        masks = []

        class Look(layers.Layer):
            def call(self, x, masks=masks):
                def keep(value):
                    masks.append(np.array(value))
                    return value

                return tf.stop_gradient(tf.reshape(tf.numpy_function(keep, [x], tf.float32), tf.shape(x)))

            def compute_output_shape(self, input_shape):
                return input_shape

        keras.utils.set_random_seed(7)
        inputs = keras.Input((6,))
        noise = Look()(
            layers.Dropout(0.5)(
                layers.Dense(16, kernel_initializer="zeros", bias_initializer="ones", trainable=False)(inputs)
            )
        )
        hidden = layers.GaussianNoise(0.1)(layers.Dense(8, activation="tanh")(inputs))
        model = keras.Model(inputs, layers.Dense(3)(layers.Concatenate()([hidden, noise])))
        history = compiled(model).fit(x, y, batch_size=24, epochs=2, verbose=0)
        runs.append({**result_of(model, history), "mask": masks[0], "second": masks[1]})
    return runs


def initial_weights(how):
    """Ranks that start from other weights on purpose.

    Args:
        how: "seed", "lazy" (built in the first step), "set" (by `set_weights`), "between" (two fits).
    """
    from matex_tf.core import world

    x, y = table()
    if how == "lazy":
        keras.utils.set_random_seed(7 + world.rank())
        return train(compiled(Lazy()), x, y, shuffle=False)
    model = compiled(classifier(seed=7 + world.rank() if how == "seed" else 7))
    if how == "set":
        model.set_weights([weight + world.rank() for weight in model.get_weights()])
    train(model, x, y, shuffle=False)
    assert how == "between"
    model.set_weights([weight * (1 + world.rank()) for weight in model.get_weights()])
    return train(model, x, y, shuffle=False)


class TwoNamed(keras.Model):
    """Two inputs by name, a Sequential inside, and what is built on something computed first."""

    def __init__(self):
        super().__init__(name="two_named")
        self.inner = keras.Sequential([layers.Dense(4, name="d1"), layers.Dropout(0.5, name="drop")], name="inner")
        self.folded = layers.Dense(3, name="folded")
        self.norm = layers.LayerNormalization(name="norm")

    def call(self, inputs, training=False):
        together = keras.ops.concatenate([self.inner(inputs["a"], training=training), inputs["b"]], axis=1)
        return self.norm(keras.ops.reshape(self.folded(keras.ops.reshape(together, (-1, 2))), (-1, 3)))[::5]


def _unbuilt(kind):
    if kind == "subclassed":
        return TwoNamed()
    entry = [layers.Masking(name="mask"), layers.Bidirectional(layers.LSTM(4, name="l"), name="b")]
    return keras.Sequential([*entry, layers.Dense(3, name="d")] if kind == "masked" else [layers.Dense(3, name="d")])


def shown(kind, how, rows):
    """What is shown of a model that its first step builds, with its initial weights."""
    keras.utils.set_random_seed(7)
    model = _unbuilt(kind)
    model.name = "model"
    x, y = table(rows)
    if kind == "subclassed":
        x = {"a": x.astype("float64"), "b": x}
    elif kind == "masked":
        x = x.reshape(rows, 3, 2)
    compiled(model, optimizer=keras.optimizers.SGD(0.0))
    lines = []
    if how == "train_on_batch":
        model.train_on_batch(x, y)
    elif how == "predict":
        model.predict(x, batch_size=40, verbose=0)
    elif how == "evaluate":
        model.evaluate(x, y, batch_size=40, verbose=0)
    elif how == "pipeline":
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(40, drop_remainder=True), verbose=0)
    else:
        model.fit(x, y, batch_size=40, verbose=0)
    model.summary(print_fn=lines.append, expand_nested=True)
    built = [layer.get_build_config() for layer in model._flatten_layers()]
    trained = [np.array(weight) for weight in model.trainable_variables]
    return {"summary": lines, "built": repr(built), "weights": trained}
