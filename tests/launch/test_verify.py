"""`matex-tf verify`: a training on several ranks beside that on one."""

import importlib.util

import numpy as np
import pytest
from jobs import LAUNCHER, Job

from matex_tf.verifying import compare, record
from matex_tf.verifying.record import BATCH, SLOTS, WEIGHTS, Moment

#: Trains by `fit`, then by a loop of its own.
SCRIPT = """
import os
import keras
import numpy as np
import tensorflow as tf
random = np.random.RandomState(0)
x, y = random.normal(size=(60, 5)).astype("float32"), random.normal(size=(60, 1)).astype("float32")
x = x * (%s if "OMPI_COMM_WORLD_SIZE" in os.environ else 1)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
%s
"""
FIT = "model.fit(x, y, batch_size=14, epochs=2, validation_split=0.2, verbose=0)"
LOOP = """
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(14):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""


@pytest.mark.variants(1)
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("factor", "how", "code"), [(1.01, FIT, 1), (1, FIT, 0), (1, LOOP, 0)])
def test_script(server, tmp_path, factor, how, code):
    """Code 0 and a table where both are the same; 1, and since when, where they are not."""
    (tmp_path / "script.py").write_text(SCRIPT % (factor, how))
    job = Job([LAUNCHER, "verify", "-n", "3", "--steps", "0", "script.py"], tmp_path, **server.environ)
    ended = job.end(200)
    assert ended.code == code, ended
    kinds = [WEIGHTS, SLOTS, *([BATCH, "epoch logs", "evaluation"] if how == FIT else [])]
    assert all(f"│ {kind}" in ended.out for kind in kinds), ended
    assert ("3 ranks give the answer of one rank" in ended.out) == (code == 0), ended
    assert ("never" in ended.out) == (code == 0), ended


#: The same with Keras 2, by `fit`, by `train_on_batch` and by a loop of its own.
KERAS_2 = """
import numpy as np
import tensorflow as tf
random = np.random.RandomState(0)
x, y = random.normal(size=(60, 5)).astype("float32"), random.normal(size=(60, 1)).astype("float32")
keras = tf.keras
assert keras.Model.__module__.startswith("tf_keras")
model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
model.fit(x, y, batch_size=14, epochs=1, validation_split=0.2, verbose=0)
model.train_on_batch(x[:10], y[:10])
optimizer = keras.optimizers.legacy.SGD(0.1, momentum=0.9)
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(14):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""


@pytest.mark.variants(0)
@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras, which scripts/setup installs")
def test_keras_2(tmp_path):
    """All steps of a script on Keras 2 are recorded: 4 of fit, one by itself, 5 of the loop."""
    (tmp_path / "script.py").write_text(KERAS_2)
    environ = {"TF_USE_LEGACY_KERAS": "1"}
    ended = Job([LAUNCHER, "verify", "-n", "2", "--steps", "0", "script.py"], tmp_path, **environ).end(200)
    assert ended.code == 0 and "2 ranks give the answer of one rank" in ended.out, ended
    for kind in (WEIGHTS, SLOTS, BATCH, "epoch logs", "evaluation"):
        assert f"│ {kind}" in ended.out, ended
    assert "different calls" not in ended.err, ended


def test_nothing_to_compare(server, tmp_path):
    """A script that trains nothing is an error that says so."""
    (tmp_path / "script.py").write_text("print(1)\n")
    ended = Job([LAUNCHER, "verify", "-n", "2", "script.py"], tmp_path, **server.environ).end(100)
    assert ended.code == 1 and "trained nothing that can be compared" in ended.err, ended


def test_record(tmp_path):
    """What was written is read, in its order, with its types."""
    writer = record.Writer(str(tmp_path))
    moments = [
        Moment(BATCH, 1, {"loss": np.float64(0.5), "a/b": np.array([1, 2])}),
        Moment(WEIGHTS, 1, {"w": np.ones((2, 3), np.float16)}),
    ]
    for moment in moments:
        writer.write(moment)
    for expected, got in zip(moments, record.read(tmp_path), strict=True):
        assert (expected.kind, expected.step, list(expected.values)) == (got.kind, got.step, list(got.values))
        for name, value in expected.values.items():
            assert got.values[name].dtype == np.asarray(value).dtype and np.array_equal(got.values[name], value)


def test_compare():
    """The largest difference, where it is, and since when there is more than rounding."""

    def training(*values):
        return [Moment(WEIGHTS, step, {"w": np.array([10.0, one])}) for step, one in enumerate(values, 1)]

    same = compare.compare(training(1, 2, 3), training(1, 2 + 1e-6, 3))
    assert same.within(1e-6) and same.found[WEIGHTS].first is None
    other = compare.compare(training(1, 2, 3), training(1, 2.1, 3.05))
    found = other.found[WEIGHTS]
    assert not other.within(1e-3) and other.within(0.011)
    assert (found.where, found.step, found.first, found.compared) == ("w", 2, 2, 6)
    assert found.largest == pytest.approx(0.01)
    shorter = compare.compare(training(1, 2, 3), training(1, 2))
    assert not shorter.within(1) and "after step 3: on one rank alone" in shorter.unequal[0]
    assert not compare.compare([], []).within(1)


@pytest.mark.parametrize(
    ("slot", "first", "second", "colon"),
    [
        ("adam/net_{}_{}", "momentum", "velocity", ""),  # Keras 3
        ("Adam/{1}/net/{0}:0", "m", "v", ":0"),  # Keras 2
        ("Adam/net/{}/{}:0", "m", "v", ":0"),  # its legacy optimizers
        ("rmsprop/net_{}_{}", "", "velocity", ""),
        ("RMSprop/{1}/net/{0}:0", "", "velocity", ":0"),
        ("RMSprop/net/{}/{}:0", "", "rms", ":0"),
    ],
)
def test_weights_without_a_gradient(slot, first, second, colon):
    """They and their slots are left out; the others are compared."""
    kernel, bias = f"net/kernel{colon}", f"net/bias{colon}"

    def training(value):
        yield Moment(WEIGHTS, 1, {kernel: np.ones(2), bias: np.array([value])})
        slots = {("kernel", second): 0.25, ("bias", second): value * 1e-18}
        if first:
            slots |= {("kernel", first): 0.5, ("bias", first): value * 1e-9}
        yield Moment(SLOTS, 1, {slot.format(*names): np.array([one]) for names, one in slots.items()})

    assert compare.without_gradient(training(0.1)) == [bias]
    left_out = compare.compare(training(0.1), training(0.2), [bias])
    assert left_out.within(1e-9) and left_out.found[SLOTS].compared == (2 if first else 1)
    assert not compare.compare(training(0.1), training(0.2)).within(0.1)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 0.0),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), np.inf),
        (np.zeros(2), np.array([0.0, 1e-9]), pytest.approx(1e-5)),
        (np.array([np.inf, 2.0]), np.array([np.inf, 1.0]), 0.5),
        (np.array(["a"]), np.array(["b"]), np.inf),
        (np.zeros(0), np.zeros(0), 0.0),
    ],
)
def test_difference(one, other, expected):
    """Of what is no number, too."""
    assert compare.difference(one, other) == expected
