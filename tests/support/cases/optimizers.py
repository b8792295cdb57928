"""Optimizers and what they do with a gradient before and after they apply it."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.support.cases.common import classifier, compiled, crossentropy, numbers, result_of, table


def fit(name, schedule=False, lazily=False, **config):
    """Train with an optimizer of Keras by name. Args: lazily: see `compiled`."""
    if schedule:
        config["learning_rate"] = keras.optimizers.schedules.ExponentialDecay(config["learning_rate"], 4, 0.5)
    x, y = table()
    optimizer = keras.optimizers.get({"class_name": name, "config": {}}).__class__(**config)
    model = compiled(classifier(), optimizer=optimizer, lazily=lazily)
    history = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    return result_of(model, history)


def broken_accumulation():
    """A `fit` that ends between two updates, and another that goes on with what is accumulated."""
    x, y = table()
    rule = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=3)
    model = compiled(classifier(), optimizer=rule)
    first = model.fit(x, y, batch_size=25, epochs=1, verbose=0)
    second = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    return [numbers(first.history), numbers(second.history), [np.array(weight) for weight in model.get_weights()]]


def overflow():
    """float16 with loss scaling, where the gradient of one row, which is one rank's, is too large for it."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    x, y = table(100)
    x[41] = 3000.0
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**12, dynamic_growth_steps=3)
    compiled(model, optimizer=scaled)
    scales = []

    class Scale(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            scales.append((float(np.array(scaled.dynamic_scale)), int(np.array(inner.iterations))))

    history = model.fit(x, y, batch_size=25, epochs=2, shuffle=False, verbose=0, callbacks=[Scale()])
    return {**result_of(model, history), "scales": scales}


def half(policy):
    """A whole training in half precision, the optimizer wrapped by Keras where it wants that."""
    keras.mixed_precision.set_global_policy(policy)
    x, y = table(100)
    model = compiled(classifier(), optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=crossentropy())
    history = model.fit(x, y, batch_size=25, epochs=3, verbose=0)
    return {"wrapped": type(model.optimizer).__name__, **result_of(model, history)}


def several_updates():
    """`apply_gradients` and `apply`, called by a `train_step`, with a gradient that is None."""
    import tensorflow as tf

    class Stepper(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.unused = inner, keras.layers.Dense(2)

        def call(self, x):
            if not self.unused.built:
                self.unused.build(x.shape)
            return self.inner(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
            return {m.name: m.result() for m in self.metrics if m.name == "loss"}

    x, y = table()
    model = compiled(Stepper(classifier()), optimizer=keras.optimizers.Adam(0.01), metrics=None)
    history = model.fit(x, y, batch_size=25, epochs=3, verbose=0)
    return {**result_of(model), "history": numbers(history.history)}


def rows_by_hand():
    """Sparse gradients that the script makes, of plain Python."""
    variable = keras.Variable(np.ones((5, 2), "float32"))
    optimizer = keras.optimizers.SGD(0.5)
    slices = tf.IndexedSlices(keras.ops.ones((2, 2)), indices=(0, 3), dense_shape=(5, 2))
    optimizer.apply([slices], [variable])
    return np.array(variable)
