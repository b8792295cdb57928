"""Compiled steps of loops of the script's own, as people write them."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import sharing_report
from matex_tf.patches.data import batches
from matex_tf.patches.loops.compiled import traced
from tests.support.cases.common import classifier, crossentropy, momentum, table
from tests.support.cases.division import Worked

ROWS, BATCH = 67, 16  # the last batch has three rows


def pipeline(**options):
    """Batches of features and classes."""
    return tf.data.Dataset.from_tensor_slices(table(ROWS)).batch(BATCH, **options)


def images():
    """Batches of small images."""
    random = np.random.RandomState(0)
    return tf.data.Dataset.from_tensor_slices(random.rand(ROWS, 8, 8, 1).astype("float32")).shuffle(99, seed=2)


def gan():
    """The loop of TensorFlow's DCGAN tutorial: noise for a number of rows that the script wrote down."""
    make = keras.Sequential([
        keras.Input((5,)), layers.Dense(16), layers.BatchNormalization(), layers.LeakyReLU(), layers.Reshape((4, 4, 1)),
        layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh"),
    ])  # fmt: skip
    judge = keras.Sequential([
        keras.Input((8, 8, 1)), layers.Conv2D(4, 3, strides=2), layers.LeakyReLU(), layers.Dropout(0.3, seed=1),
        layers.Flatten(), layers.Dense(1),
    ])  # fmt: skip
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    pairs = [(make, keras.optimizers.SGD(0.05)), (judge, keras.optimizers.SGD(0.05))]
    seen = []

    @tf.function
    def step(real):
        noise = tf.random.normal([BATCH, 5])
        seen.append(real.shape.as_list())
        with tf.GradientTape() as first, tf.GradientTape() as second:
            true, fake = judge(real, training=True), judge(make(noise, training=True), training=True)
            losses = (
                loss(tf.ones_like(fake), fake),
                loss(tf.ones_like(true), true) + loss(tf.zeros_like(fake), fake),
            )
        for tape, value, (model, optimizer) in zip((first, second), losses, pairs, strict=True):
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return (*losses, true)

    said = [[np.asarray(one) for one in step(real)] for _ in range(2) for real in images().batch(BATCH)]
    return [*make.get_weights(), *judge.get_weights()], {"said": said, "seen": seen}


class _Step:
    """A step on features and classes, of which a form is made by changing a part."""

    signature = None

    def __init__(self):
        self.model, self.loss = classifier(), crossentropy()
        self.optimizer, self.accuracy, self.mean = momentum(), keras.metrics.SparseCategoricalAccuracy(), None

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = self.loss(y, logits)
        return loss, logits, tape.gradient(loss, self.model.trainable_variables)

    def step(self, x, y):
        loss, logits, gradients = self.gradients(x, y)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.accuracy.update_state(y, logits)
        return loss

    def run(self, data=None, epochs=2):
        step, said = tf.function(self.step, input_signature=self.signature), []
        for _ in range(epochs):
            for batch in pipeline() if data is None else data:
                said.append(np.asarray(step(*batch)))
            said.append(float(self.accuracy.result()))
            self.accuracy.reset_state()
        return self.model.get_weights(), said


class LazyVariables(_Step):
    """Variables that the first call makes: a mean and the optimizer's."""

    def step(self, x, y):
        if self.mean is None:
            self.mean = tf.Variable(0.0)
        loss = super().step(x, y)
        self.mean.assign(0.9 * self.mean + 0.1 * loss)
        return loss + self.mean


class Nested(_Step):
    """A step of two compiled functions."""

    def __init__(self):
        super().__init__()
        self.inner = tf.function(self.gradients)

    def step(self, x, y):
        loss, _, gradients = self.inner(x, y)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss


class Accumulating(_Step):
    """Gradients that the script adds up over two steps."""

    def __init__(self):
        super().__init__()
        self.kept = [tf.Variable(tf.zeros(w.shape)) for w in self.model.trainable_variables]
        self.count = tf.Variable(0)

    def step(self, x, y):
        loss, _, gradients = self.gradients(x, y)
        for kept, gradient in zip(self.kept, gradients, strict=True):
            kept.assign_add(gradient / 2)
        self.count.assign_add(1)
        if self.count % 2 == 0:
            self.optimizer.apply_gradients(zip(self.kept, self.model.trainable_variables, strict=True))
            for kept in self.kept:
                kept.assign(tf.zeros_like(kept))
        return loss


class Sam(_Step):
    """Sharpness-aware minimization: a gradient where the first one leads uphill."""

    def step(self, x, y):
        _, _, gradients = self.gradients(x, y)
        steps = [0.05 * g / (tf.linalg.global_norm(gradients) + 1e-12) for g in gradients]
        for weight, up in zip(self.model.trainable_variables, steps, strict=True):
            weight.assign_add(up)
        loss, _, gradients = self.gradients(x, y)
        for weight, up in zip(self.model.trainable_variables, steps, strict=True):
            weight.assign_sub(up)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss


class Maml(_Step):
    """A gradient through a gradient step on one half of the batch; the script asks how many rows there are."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.random.stateless_normal([6, 3], (1, 2)))

    def step(self, x, y):
        half = x.shape[0] // 2
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(self.w)
                first = self.loss(y[:half], x[:half] @ self.w)
            fast = self.w - 0.1 * inner.gradient(first, self.w)
            loss = self.loss(y[half:], x[half:] @ fast)
        self.w.assign_sub(0.3 * outer.gradient(loss, self.w))
        return loss + tf.reduce_sum(self.w)


class Summed(_Step):
    """A loss that compares rows, and a sum over them."""

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            out = tf.math.l2_normalize(self.model(x, training=True), 1)
            scores = out @ tf.transpose(out)
            wanted = tf.range(tf.shape(out)[0])
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, 5 * scores)) / 40
        return loss, out, tape.gradient(loss, self.model.trainable_variables)


class Returned(_Step):
    """A function that gives the gradients of a loss that compares rows; eager code clips and applies them."""

    gradients = Summed.gradients

    def run(self, data=None, epochs=2):
        gradients, said = tf.function(self.gradients), []
        for epoch in range(epochs):
            for batch in pipeline():
                loss, _, given = gradients(*batch)
                given = tf.clip_by_global_norm(given, 0.5)[0] if epoch else given
                self.optimizer.apply_gradients(zip(given, self.model.trainable_variables, strict=True))
                said.append(float(loss))
        return self.model.get_weights(), said


class Scaled(_Step):
    """Mixed precision with a loss scale that grows."""

    def __init__(self):
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy("mixed_float16")
        try:
            super().__init__()
        finally:
            keras.config.set_dtype_policy(before)
        self.optimizer = keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=64.0, dynamic_growth_steps=2)

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = self.loss(y, logits)
            scaled = self.optimizer.scale_loss(loss)
        return loss, logits, tape.gradient(scaled, self.model.trainable_variables)


class Beside(_Step):
    """Metrics that eager code updates beside the compiled step, and a step that gets what was computed of the batch."""

    def run(self, data=None, epochs=2):
        mean, said = keras.metrics.Mean(), []
        step = tf.function(self.step)
        for _ in range(epochs):
            for x, y in pipeline():
                mean.update_state(step(x * 0.5 + tf.reduce_mean(x, 0), y))
            said += [float(mean.result()), float(self.accuracy.result())]
            mean.reset_state()
        return self.model.get_weights(), said


class Ragged(_Step):
    """Batches of rows of several lengths."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        self.table = tf.Variable(tf.random.stateless_normal([9, 4], (3, 4)))

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            seen = tf.reduce_mean(tf.gather(self.table, x), 1)
            loss = self.loss(y, self.model(tf.ensure_shape(seen, [None, 4])))
        weights = [*self.model.trainable_variables, self.table]
        gradients = tape.gradient(loss, weights)
        self.table.assign_sub(0.1 * tf.convert_to_tensor(gradients.pop()))
        return loss, tf.one_hot(y, 3), gradients

    def run(self, data=None, epochs=2):
        rows = [[(i * j) % 9 for j in range(1 + i % 4)] for i in range(ROWS)]
        return super().run(tf.data.Dataset.from_tensor_slices((tf.ragged.constant(rows), table(ROWS)[1])).batch(BATCH))


class Words(_Step):
    """Text that the step looks up, and recurrent layers over as many words as the longest row has."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        words = layers.TextVectorization(vocabulary=["a", "b", "c", "d"])
        self.words = words
        self.model = keras.Sequential([
            keras.Input((None,), dtype="int64"), layers.Embedding(8, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(5)), layers.Dense(3),
        ])  # fmt: skip

    def gradients(self, x, y):
        return super().gradients(self.words(x), y)

    def run(self, data=None, epochs=2):
        text = [" ".join("abcdef"[(i * j) % 6] for j in range(1 + i % 5)) for i in range(ROWS)]
        return super().run(tf.data.Dataset.from_tensor_slices((text, table(ROWS)[1])).batch(BATCH))


class Lengths(_Step):
    """Batches of twelve lengths, for which one trace is made."""

    signature = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        pooled = [layers.Conv1D(4, 3, padding="same", activation="relu"), layers.GlobalAveragePooling1D()]
        self.model = keras.Sequential([keras.Input((None,)), layers.Embedding(9, 4), *pooled, layers.Dense(3)])

    def run(self, data=None, epochs=2):
        rows = tf.ragged.constant([[(i * j) % 9 for j in range(20 + i // 5)] for i in range(60)])
        data = tf.data.Dataset.from_tensor_slices((rows, table(60)[1])).batch(5)
        with mock.patch.object(traced, "MOST_SHAPES", 4):
            return super().run(data.map(lambda x, y: (x.to_tensor(), y)))


class Sliced(_Step):
    """Batches that the script cuts out of arrays."""

    def run(self, data=None, epochs=2):
        x, y = table(ROWS)
        with mock.patch.object(sharing_report, "speaks_of_ranks", lambda: False):  # as files of tests do
            return super().run([(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)])


class Closure(_Step):
    """One batch, which the step knows by closure: features that it captures, and classes that are in its graph."""

    def run(self, data=None, epochs=2):
        x, y = map(tf.constant, table(ROWS))
        step = tf.function(lambda: self.step(x, y))
        with mock.patch.object(sharing_report, "speaks_of_ranks", lambda: False):
            said = [np.asarray(step()) for _ in range(3)]
        return self.model.get_weights(), said


class Stateful(_Step):
    """A recurrent layer that keeps a state for each row of a batch of a fixed size."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential([
            keras.Input(batch_shape=(BATCH, 6)), layers.Reshape((3, 2)), layers.GRU(4, stateful=True), layers.Dense(3),
        ])  # fmt: skip

    def run(self, data=None, epochs=2):
        return super().run(pipeline(drop_remainder=True))


class Converted(_Step):
    """A metric of the script's own with a Python `if` on a tensor, of which AutoGraph makes a graph."""

    class Signed(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.kept = self.add_weight(shape=(), initializer="zeros")

        def update_state(self, y, logits):
            most = tf.reduce_mean(logits)
            if most > 0:
                self.kept.assign_add(most)
            else:
                self.kept.assign_sub(2 * most)

        def result(self):
            return self.kept + 0

    def __init__(self):
        super().__init__()
        self.accuracy = self.Signed()


FORMS = {kind.__name__: kind for kind in _Step.__subclasses__()}


def trained(form):
    """What a loop leaves behind, with `--partitioner on`; and what was said."""
    before = settings.use(settings.current().changed(partitioner=True))
    try:
        keras.utils.set_random_seed(1)
        weights, said = gan() if form == "gan" else FORMS[form]().run()
        return {"weights": [np.asarray(weight) for weight in weights], "said": said}
    finally:
        settings.use(before)


def unlike_arguments():
    """What a step leaves that gets the same rows on every rank, then other rows on each, then the same again."""
    before = settings.use(settings.current().changed(partitioner=True))
    weight, said = tf.Variable(1.0), []

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean(x)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    try:
        with mock.patch.object(sharing_report, "speaks_of_ranks", lambda: False):
            for x in (np.arange(6), np.arange(6) + 2 * world.rank(), np.ones(5)):
                step(x.astype("float32"))
                said.append(float(weight))
        return said
    finally:
        settings.use(before)


def jacobian():
    """The Jacobians of rows of a batch, by a tape that is used once."""
    x = tf.constant(table(ROWS)[0])
    with mock.patch.object(sharing_report, "speaks_of_ranks", lambda: False):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cumsum(x * x, 1)
        return {"jacobian": tape.batch_jacobian(y, x).numpy()}


def slow_input():
    """What a loop leaves behind if ranks wait for its input, and of how many rows this rank has done the work."""
    before = settings.use(settings.current().changed(partitioner=True))
    much, batches.is_much = batches.is_much, lambda waited, spent: True
    try:
        keras.utils.set_random_seed(1)
        step, work = _Step(), Worked()

        def harder(x, y):
            return work(x) * 2.0, y

        data = tf.data.Dataset.from_tensor_slices(table(ROWS)).map(harder).batch(5)
        function, shapes = tf.function(step.step, reduce_retracing=True), []
        for _ in range(3):
            for x, y in data:
                shapes.append((x.shape.as_list(), float(tf.reduce_sum(x))))
                function(x, y)
        return [np.asarray(weight) for weight in step.model.weights], shapes, work.calls
    finally:
        batches.is_much = much
        settings.use(before)
