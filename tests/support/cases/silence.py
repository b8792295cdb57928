"""Scripts whose training is shared out, or is not: what the account of the job says at their end."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import sharing_report
from matex_tf.patches.common.sharing_report import Account
from matex_tf.patches.imports import other_frameworks
from matex_tf.state import run_state
from tests.support.cases.common import classifier, compiled, table
from tests.support.frameworks import JAX, TORCH, write


def summary(what, tmp, text="", require=False):
    """Run one of the functions below as a script that has this text; what the account says, and what was raised."""
    tmp = Path(tmp) / str(world.rank())
    tmp.mkdir()
    script = tmp / "script.py"
    script.write_text(text)
    files, sharing_report._own_files = sharing_report._own_files, lambda: [str(script)]
    before = settings.use(dataclasses.replace(settings.current(), require_sharing=require))
    sys.path.insert(0, str(tmp))
    account, before_account = Account(), run_state.current().part(Account)
    run_state.current().begin(account)
    raised = ""
    try:
        globals()[what](tmp)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    finally:
        said = sharing_report.summary(account, 3)
        run_state.current().begin(before_account)
        sys.path.remove(str(tmp))
        settings.use(before)
        sharing_report._own_files = files
        tf.compat.v1.enable_eager_execution()
    return said, raised


def nothing(tmp):
    """TensorFlow computes, and nothing is trained."""
    tf.reduce_sum(tf.ones([3]))


def fit(tmp):
    """Keras' own loop."""
    compiled(classifier()).fit(*table(), batch_size=25, verbose=0)


def predict(tmp):
    """No training, but work that is shared out."""
    classifier().predict(table()[0], verbose=0)


def _loop(batches, compiles=tf.function):
    model, optimizer = classifier(), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @compiles
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for x, y in batches:
        step(x, y)


def loop(tmp):
    """A loop over a pipeline."""
    _loop(tf.data.Dataset.from_tensor_slices(table()).batch(25))


def _slices():
    x, y = table()
    return [(x[begin : begin + 25], y[begin : begin + 25]) for begin in range(0, 100, 25)]


def loop_over_arrays(tmp):
    """A loop that slices arrays, and whose step is compiled."""
    _loop(_slices())


def eager_loop_over_arrays(tmp):
    """A loop that slices arrays, and whose step is not compiled."""
    _loop(_slices(), lambda step: step)


def loop_in_function(tmp):
    """A loop inside of a tf.function."""
    model, optimizer = classifier(), keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_on = tf.data.Dataset.from_tensor_slices(table()).batch(25)

    @tf.function
    def train():
        for x, y in train_on:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    train()


def eager_loop_then_evaluate(tmp):
    """What is shared out is the evaluation alone."""
    eager_loop_over_arrays(tmp)
    compiled(classifier()).evaluate(*table(), batch_size=25, verbose=0)


def _session(fed):
    x, _ = table()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.float32, [None, 6]) if fed else tf.constant(x)
        w = tf.compat.v1.get_variable("w", [6, 1])
        train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.matmul(given, w) ** 2))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train, {given: x} if fed else None)


def session(tmp):
    """A session that is fed."""
    _session(True)


def session_without_feeds(tmp):
    """A session whose data lie in its graph."""
    _session(False)


def _imported(name, files, tmp):
    """A module of these files; the hook on its import fires once in a process, and is called again here."""
    write(files, tmp)
    for known in [known for known in sys.modules if known.partition(".")[0] == name]:
        del sys.modules[known]
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    other_frameworks.install(module)
    return module


def torch(tmp):
    """PyTorch."""
    _imported("torch", TORCH, tmp).optim.SGD().step()


def jax(tmp):
    """JAX."""
    assert _imported("jax", JAX, tmp).value_and_grad(lambda x: x, has_aux=False)(2.0) == (2.0, 1.0)


def torch_with_its_own_ranks(tmp):
    """PyTorch that shares out by itself."""
    own = {**TORCH, "torch/distributed.py": "def is_initialized():\n    return True"}
    _imported("torch", own, tmp).optim.SGD().step()
    fit(tmp)


def torch_beside_fit(tmp):
    """PyTorch, and Keras."""
    fit(tmp)
    torch(tmp)


def tf_keras(tmp):
    """The real one: `fit` of Keras 2."""
    import tf_keras as legacy

    model = legacy.Sequential([legacy.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones([16, 4]), np.ones([16, 1]), batch_size=8, verbose=0)


def tf_keras_legacy_optimizer(tmp):
    """An optimizer of Keras 2 before 2.11."""
    import tf_keras as legacy

    model = legacy.Sequential([legacy.layers.Dense(1)])
    model.compile(legacy.optimizers.legacy.SGD(), "mse")
    model.fit(np.ones([16, 4]), np.ones([16, 1]), batch_size=8, verbose=0)


def tf_keras_in_a_loop(tmp):
    """A loop over a pipeline, whose gradients an optimizer of Keras 2 applies."""
    import tf_keras as legacy

    optimizer, w = legacy.optimizers.SGD(), tf.Variable(1.0)
    for x in tf.data.Dataset.range(8).batch(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(w * tf.cast(x, tf.float32))
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
