"""Training loops of the script's own, as Keras' guide writes them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from cases.common import classifier, crossentropy, momentum, table
from keras import layers

from matex_tf import world


def pipeline(rows=101, batch_size=25, shuffle=True, **options):
    """Batches of rows that can be learned."""
    data = tf.data.Dataset.from_tensor_slices(table(rows))
    if shuffle:
        data = data.shuffle(64, seed=3)
    return data.batch(batch_size, **options)


def weights(model, *more):
    return [np.array(weight) for weight in model.get_weights()] + [np.array(variable) for variable in more]


def guide(compiled=False, optimizer="momentum", rows=101, batch_size=25, apply="apply", clip=False, epochs=3):
    """Training and validation, metrics read and reset at the end of each epoch.

    Args:
        compiled: whether the steps are tf.functions.
        optimizer: "momentum", "adam", "clipped", "accumulating", "scaled".
        apply: the optimizer's method: "apply" or "apply_gradients".
        clip: whether the script clips the gradients itself.
    """
    model = classifier()
    made = {
        "momentum": lambda: momentum(),
        "adam": lambda: keras.optimizers.Adam(0.02),
        "clipped": lambda: momentum(0.5, global_clipnorm=0.1),
        "accumulating": lambda: momentum(0.1, gradient_accumulation_steps=2),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(momentum()),
    }[optimizer]()
    loss_fn = crossentropy()
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    mean_loss = keras.metrics.Mean()
    val_accuracy = keras.metrics.SparseCategoricalAccuracy()
    train, val = pipeline(rows, batch_size), pipeline(38, 12, shuffle=False)

    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
            target = made.scale_loss(loss) if optimizer == "scaled" else loss
        grads = tape.gradient(target, model.trainable_weights)
        if clip:
            grads, _ = tf.clip_by_global_norm(grads, 0.3)
        if apply == "apply":
            made.apply(grads, model.trainable_weights)
        else:
            made.apply_gradients(zip(grads, model.trainable_weights))  # noqa: B905
        accuracy.update_state(y, logits)
        mean_loss.update_state(loss)
        return loss

    def val_step(x, y):
        val_accuracy.update_state(y, model(x, training=False))

    if compiled:
        train_step, val_step = tf.function(train_step), tf.function(val_step)
    said = []
    for _ in range(epochs):
        for x, y in train:
            train_step(x, y)
        said.append([float(accuracy.result()), float(mean_loss.result())])
        accuracy.reset_state()
        mean_loss.reset_state()
        for x, y in val:
            val_step(x, y)
        said.append(float(val_accuracy.result()))
        val_accuracy.reset_state()
    return {"weights": weights(model), "optimizer": [np.array(v) for v in made.variables], "said": said}
