"""Scripts that are made for a tf.distribute strategy, or for keras.distribution."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from matex_tf.errors import MatexError
from matex_tf.patches.common import log_once
from matex_tf.patches.keras import distribution
from matex_tf.patches.shards import variable as in_parts
from tests.support.cases.common import compiled, numbers, table

#: What the script of a cluster has in its environment. Nobody listens there.
TF_CONFIG = {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 1}}


def _strategy(name):
    if name == "OneDeviceStrategy":
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    if name == "MultiWorkerMirroredStrategy":
        os.environ["TF_CONFIG"] = json.dumps(TF_CONFIG)
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        finally:
            del os.environ["TF_CONFIG"]
    return tf.distribute.MirroredStrategy()


def _model():
    keras.utils.set_random_seed(7)
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(3)])


def fit(name):
    """Model and compile in the scope; `fit` on arrays and on a pipeline. On one rank without the strategy's cluster."""
    from matex_tf.core import world

    strategy = tf.distribute.get_strategy() if world.size() == 1 and "Multi" in name else _strategy(name)
    x, y = table()
    with strategy.scope():
        model = compiled(_model())
    losses = model.fit(x, y, batch_size=25 * strategy.num_replicas_in_sync, epochs=2, verbose=0).history
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(25)
    if world.size() > 1:  # on one rank Keras 3 takes no distributed pipeline
        data = strategy.experimental_distribute_dataset(data)
        assert strategy.cluster_resolver is None or strategy.cluster_resolver.task_id == 0
    on_pipeline = model.fit(data, verbose=0).history
    return losses, on_pipeline, model.evaluate(x, y, verbose=0), numbers(model.weights)


def loop():
    """The loop of TensorFlow's guide: distributed batches, `run`, `compute_average_loss`, `reduce`."""
    strategy = tf.distribute.MirroredStrategy()
    x, y = table()
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(25))
    with strategy.scope():
        model = _model()
        optimizer = keras.optimizers.SGD(0.1)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(batch):
        features, labels = batch
        with tf.GradientTape() as tape:
            scores = model(features, training=True)
            loss = tf.nn.compute_average_loss(loss_of(labels, scores), global_batch_size=25)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, scores)
        return loss

    @tf.function
    def train(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)

    for _ in range(2):
        for batch in data:
            train(batch)
    return float(accuracy.result()), numbers(model.weights)


def _layouts(api, devices):
    """The mesh and the map of Keras' guide."""
    mesh = api.DeviceMesh((2, len(devices) // 2), ["data", "model"], devices)
    layout_map = api.LayoutMap(mesh)
    layout_map["d1/kernel"] = (None, "model")
    layout_map["d1/bias"] = ("model",)
    layout_map["d2/output"] = ("data", None)
    return api.ModelParallel(layout_map=layout_map, batch_dim_name="data")


def keras_guide(kind):
    """The examples of Keras' guide to distribution, on several ranks; on one rank without it. Returns what it saw of
    devices too."""
    from matex_tf.core import world

    api, ranks = keras.distribution, world.size()
    if ranks > 1:
        api.initialize()
        devices = api.list_devices()
        assert devices == [f"cpu:{rank}" for rank in range(ranks)] and api.get_device_count("cpu") == ranks
        assert api.list_devices("gpu") == []
        made = _layouts(api, devices) if kind == "model" else api.DataParallel(devices=devices)
        assert api.distribution() is None and made.num_processes == 1 and made.data_shard_id == 0
        scope = made.scope()
    else:
        scope = contextlib.nullcontext()
    x, y = table()
    with scope:
        keras.utils.set_random_seed(7)
        inputs = keras.Input((6,))
        hidden = layers.Dropout(0.4)(layers.Dense(128, activation="relu", name="d1")(inputs))
        model = compiled(keras.Model(inputs, layers.Dense(3, name="d2")(hidden)), "adam")
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(25)
        losses = model.fit(data, epochs=2, verbose=0).history
    parts = [in_parts.of(one) for one in [*model.variables, *model.optimizer.variables]]
    split = [part for part in parts if part is not None and part.is_split]
    assert len(split) == (5 if kind == "model" and ranks > 3 else 0), parts  # a kernel, and the slots of two
    divided = [one.path for one in model.variables if distribution.is_divided(one)]
    assert divided == (["d1/kernel", "d1/bias"] if kind == "model" and ranks > 3 else [])
    assert not any(map(distribution.is_divided, keras.Sequential([keras.Input((6,)), layers.Dense(3)]).variables))
    return losses, model.evaluate(data, verbose=0), numbers(model.weights)


def keras_refused():
    """What is said of a mesh with more devices than there are ranks, or fewer, and of weights that stay whole."""
    api, lines, log = keras.distribution, [], log_once.log
    try:
        api.set_distribution(api.DataParallel(devices=[f"cpu:{number}" for number in range(8)]))
    except MatexError as error:
        lines.append(str(error))
    assert api.distribution() is None
    log_once.log, before = lines.append, settings.current()
    try:
        with api.DataParallel(devices=api.list_devices()[:2]).scope():
            pass
        mesh = api.DeviceMesh((1, 3), ["batch", "model"], api.list_devices())
        layouts = api.LayoutMap(mesh)
        layouts[".*kernel"] = (None, "model")
        with api.ModelParallel(layout_map=layouts).scope():
            model = keras.Sequential([keras.Input((6,)), layers.Dense(64)])
            settings.use(dataclasses.replace(before, codec="int8"))
            layers.Dense(64).build((None, 6))
        assert not distribution.divided(model)
        settings.use(before)
        assert len(distribution.divided(model)) == 1
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(np.ones((8, 6), "float32"), np.ones((8, 64), "float32"), verbose=0)
    finally:
        log_once.log = log
        settings.use(before)
    return [line for line in lines if "keras.distribution" in line]
