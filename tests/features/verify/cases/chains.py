"""Dense, BatchNormalization and Adam: a script that is right, and wrong ones, for `matex-tf verify`."""

from __future__ import annotations

from tests.support.cases.common import by_patches

#: The commonest chain: the bias of the first layer has a gradient that is rounding alone, and Adam makes steps of it.
CHAIN = """
import keras
import numpy as np
import tensorflow as tf
keras.utils.set_random_seed(1)
random = np.random.RandomState(0)
x = random.normal(size=(150, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
rate, loss, Model, options, first, momentum, rule = 0.001, "binary_crossentropy", keras.Model, {}, [], 0.99, None
%s
chain = [*first, keras.layers.Dense(16, kernel_regularizer=rule), keras.layers.BatchNormalization(momentum=momentum)]
chain += [keras.layers.ReLU(), keras.layers.Dense(1, activation="sigmoid", name="last")]
z = inputs = keras.Input((8,))
for layer in chain:
    z = layer(z)
model = Model(inputs, z)
%s
model.compile(keras.optimizers.Adam(rate), loss)
model.fit(x, y, batch_size=32, epochs=2, verbose=0, **options)
"""
#: What makes the script another one on several ranks.
WRONG = {
    "a step across rows": ("""
class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            z = self(x, training=True)
            loss = tf.reduce_mean(tf.square(z - tf.transpose(z)) * tf.abs(y - tf.transpose(y)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
""", ""),
    "rate": ("rate = 0.002 if several else 0.001", ""),
    "sum": ("""
class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self(x, training=True) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
""", ""),
    "rows": ("x = x * 1.01 if several else x", ""),
    "a label": ("y[7] = 1 - y[7] if several else y[7]", ""),
    "a layer across rows": ("""
class Centered(keras.layers.Layer):
    def call(self, x):
        return x * (1 + keras.ops.mean(x, axis=0, keepdims=True))
first = [Centered()]
""", ""),
    "statistics": ("momentum = 0.9 if several else 0.99", ""),
    "regularizer": ("rule = keras.regularizers.L2(0.02 if several else 0.01)", ""),
    "frozen": ("", "model.layers[-1].trainable = not several"),
    "weights": ("", "several and model.layers[-1].bias.assign([0.01])"),
    "order": ("options = {'shuffle': not several}", ""),
}  # fmt: skip


@by_patches  # two of the wrong ones are right in a partitioned step
def chain(wrong):
    """Train it. Args: wrong: what makes it another script on several ranks; "" for nothing."""
    from matex_tf.core import world

    before, after = WRONG.get(wrong, ("", ""))
    exec(CHAIN % (before, after), {"several": world.size() > 1, "__name__": "chain"})


def variables_of_tensorflow():
    """A loop of its own that trains variables of TensorFlow by an optimizer of Keras."""
    import keras
    import numpy as np
    import tensorflow as tf

    random = np.random.RandomState(0)
    x, y = random.normal(size=(40, 3)).astype("float32"), random.normal(size=(40, 1)).astype("float32")
    variables, optimizer = [tf.Variable(tf.ones([3, 1])), tf.Variable(tf.zeros([1]))], keras.optimizers.SGD(0.1)
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(a @ variables[0] + variables[1] - b))
        optimizer.apply(tape.gradient(loss, variables), variables)
