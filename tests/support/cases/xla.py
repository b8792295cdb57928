"""Steps with `jit_compile=True`: what XLA compiles around the exchanges, and what comes of it."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

from matex_tf.core import world
from tests.support.cases.common import compiled, crossentropy, momentum, numbers, result_of, table


def network(kind="plain"):
    """Layers that draw, that meet in the forward pass, and whose weights are clipped."""
    keras.utils.set_random_seed(7)
    body = [layers.Dense(8, activation="tanh")]
    if kind == "drawing":
        body += [layers.Dropout(0.3), layers.GaussianNoise(0.1)]
    if kind == "normalized":
        body.append(layers.BatchNormalization())
    if kind == "recurrent":
        body = [layers.Reshape((3, 2)), layers.LSTM(5)]
    if kind == "attention":
        body = [layers.Reshape((2, 3)), layers.MultiHeadAttention(2, 4)]
        inputs = keras.Input((6,))
        rows = body[0](inputs)
        joined = layers.LayerNormalization()(rows + body[1](rows, rows))
        return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(joined)))
    return keras.Sequential([layers.Input((6,)), *body, layers.Dense(3)])


def among(outputs):
    """For each row, something that depends on all rows of the batch."""
    return 0.1 * tf.reduce_mean(tf.tanh(tf.matmul(outputs, outputs, transpose_b=True)), -1)


def compared(labels, outputs):
    """A loss that compares rows."""
    plain = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(tf.reshape(labels, [-1]), tf.int32), outputs)
    return plain + among(outputs)


class OwnStep(keras.Sequential):
    """A step of its own."""

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.compute_metrics(x, y, outputs)


@contextlib.contextmanager
def compiled_by_xla(as_one=False):
    """Yields a list, into which comes whether XLA has compiled clusters: those of a step as it is run first.

    Also whether no op is left that XLA does not know since TensorFlow has put several into one, and with `as_one`
    whether it compiles the update as a whole. On one rank it says so unseen, as Keras compiles a step as a whole.
    """
    found = []
    context.context().enable_graph_collection()
    try:
        yield found
        graphs = context.context().export_run_metadata().partition_graphs
    finally:
        context.context().disable_graph_collection()
    kinds = {node.op for graph in graphs for node in graph.node}
    exchanges = any("matex_tf_exchange" in node.name for graph in graphs for node in graph.node)
    good = exchanges and "_XlaRun" in kinds and not any(kind.startswith("_Fused") for kind in kinds)
    if as_one:
        calls = [node for graph in graphs for node in graph.node if node.op.endswith("PartitionedCall")]
        whole = any(node.attr["_XlaMustCompile"].b for node in calls)
        good = good and whole
    found.append(world.current().is_single or good)


def fit(kind="plain", rows=101):
    """`fit` with clipping, on batches of which the last has one row; and all other methods."""
    x, y = table(rows)
    model = network(kind)
    if kind == "own step":
        model = OwnStep(model.layers)
        model.build((None, 6))
    loss = compared if kind == "drawing" else None
    compiled(model, momentum(0.1, global_clipnorm=0.5), loss, jit_compile=True)
    with compiled_by_xla(as_one=True) as found:
        history = model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    seen = [model.train_on_batch(x[:26], y[:26]), model.test_on_batch(x[:2], y[:2])]
    return result_of(
        model,
        history,
        seen=numbers(seen),
        evaluated=numbers(model.evaluate(x, y, batch_size=25, verbose=0)),
        predicted=model.predict(x, batch_size=25, verbose=0),
        xla=found,
    )


def loop(form="decorator"):
    """A loop of the script's own, whose step has a branch that AutoGraph converts."""
    model, optimizer, loss_fn = network(), momentum(0.1, global_clipnorm=0.5), crossentropy()
    optimizer.build(model.trainable_variables)
    most = tf.Variable(0.0)

    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = loss_fn(y, outputs) + tf.reduce_mean(among(outputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        if norm > most:
            most.assign(norm)
        return loss

    class Trainer:
        @tf.function(jit_compile=True)
        def step(self, x, y):
            return step(x, y)

    if form == "decorator":
        run = tf.function(jit_compile=True, reduce_retracing=True)(step)
    elif form == "method":
        run = Trainer().step
    else:
        run = tf.function(step, jit_compile=True)
    x, y = table()
    losses, data = [], tf.data.Dataset.from_tensor_slices((x, y)).batch(25)
    with compiled_by_xla() as found:
        for _ in range(2):
            for rows, labels in data:
                losses.append(float(run(rows, labels)))
    return {"weights": [np.array(w) for w in model.get_weights()], "most": float(most), "losses": losses, "xla": found}
