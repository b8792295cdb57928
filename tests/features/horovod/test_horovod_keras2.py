"""Scripts for Horovod on Keras 2; and what Keras 3 has taken away and such scripts still use."""

import importlib.util

import jobs
import pytest

#: All of it, on two ranks; written as people write it.
SCRIPT = """
import numpy as np
import tensorflow as tf
import keras
import horovod.tensorflow.keras as hvd
from keras import backend as K
from keras.preprocessing.image import ImageDataGenerator

hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))

plain = keras.optimizers.SGD(lr=0.5, momentum=0.9)
assert float(plain.lr) == 0.5 and float(plain.learning_rate) == 0.5
plain.lr = 0.25
assert float(plain.learning_rate) == 0.25
assert len(plain.variables()) == len(plain.variables) == 2

inputs = keras.Input((4, 4, 1))
hidden = keras.layers.BatchNormalization(fused=False)(keras.layers.Flatten()(inputs))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
assert len({weight.ref() for weight in model.weights}) == len(model.weights)
assert model.weights[0].ref().deref() is model.weights[0].value
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.01))
model.compile(optimizer, tf.keras.losses.mean_squared_error, experimental_run_tf_function=False)
x, y = np.ones((8, 4, 4, 1), "float32") + hvd.rank(), np.ones((8, 1), "float32")
flow = ImageDataGenerator(horizontal_flip=True).flow(x, y, batch_size=4)
history = model.fit_generator(flow, 2, 1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
                              workers=1, use_multiprocessing=False, max_queue_size=10)
assert len(history.epoch) == 1 and len(optimizer.variables()) > 1
assert np.isfinite(model.evaluate_generator(flow, 2, verbose=0))
assert model.predict_generator(flow, 2, verbose=0).shape == (8, 1)
same = hvd.allgather(model.weights[-2].value[None])
assert np.array_equal(same[0], same[1])
print("all of it, by rank", hvd.rank())
"""

#: And nothing of it in a script without Horovod.
WITHOUT = """
import keras
import tensorflow as tf
assert not hasattr(keras.optimizers.SGD(), "lr") and not hasattr(tf, "ConfigProto")
assert not hasattr(keras.Model, "fit_generator") and not callable(keras.optimizers.SGD().variables)
"""


def test_what_keras_3_has_taken_away(tmp_path, server):
    """Is there in a script that imports Horovod, and in no other."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [jobs.LAUNCHER, "run", "-n", "2", "--output", "all", str(script)]
    ended = jobs.Job(command, tmp_path, **server.environ).end(240)
    assert ended.code == 0, ended.err
    assert ended.out.count("all of it, by rank") == 2, ended.out
    assert "of keras.backend.set_session only the choice of a GPU is used" in ended.out + ended.err
    script.write_text(WITHOUT)
    ended = jobs.Job([jobs.LAUNCHER, "run", "-n", "1", str(script)], tmp_path, **server.environ).end(120)
    assert ended.code == 0, ended.err


#: Each rank trains on its half of every batch, and a plain model on the whole of it.
KERAS_2 = """
import os
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

keras, optimizers = tf.keras, tf.keras.optimizers
hvd.init()
random = np.random.RandomState(0)
x, y = random.normal(size=(32, 5)).astype("float32"), random.normal(size=(32, 1)).astype("float32")
mine = np.concatenate([np.arange(low + 4 * hvd.rank(), low + 4 * hvd.rank() + 4) for low in range(0, 32, 8)])

def trained(optimizer, x, y, rows, callbacks=(), body=()):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((5,)), *body, keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    history = model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks)).history
    return model, history

CASES = {
    "new": (lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05), {}),
    "legacy": (lambda: optimizers.legacy.SGD(0.1, momentum=0.9, global_clipnorm=0.05), {}),
    "adam": (lambda: optimizers.Adam(0.01), {}),
    "summed": (lambda: optimizers.SGD(0.05), {"op": hvd.Sum}),
    "scaled": (lambda: keras.mixed_precision.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=128.0), {}),
}
for name, (made, how) in list(CASES.items())[: int(os.environ["CASES"])]:
    ours = hvd.DistributedOptimizer(made(), **how)
    assert hvd.DistributedOptimizer(made(), **how).get_config() == made().get_config()
    model, history = trained(ours, x[mine], y[mine], 4, [hvd.callbacks.MetricAverageCallback()])
    reference = made()
    if name == "summed":
        reference.learning_rate = 0.1
    plain, expected = trained(reference, x, y, 8)
    for one, other in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4, err_msg=name)
    assert int(ours.iterations) == 8, name

# Gradients of two batches are added up first; rates are set, weights are rank 0's, what was saved is loaded.
passes = hvd.DistributedOptimizer(optimizers.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True)
model, _ = trained(passes, x[mine], y[mine], 2)
plain, _ = trained(optimizers.SGD(0.1), x, y, 8)
for one, other in zip(model.get_weights(), plain.get_weights()):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
warm_up = hvd.callbacks.LearningRateWarmupCallback(0.2, 2, steps_per_epoch=4)
rates = [warm_up, hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
for made in (optimizers.SGD, optimizers.legacy.SGD):
    model, history = trained(hvd.DistributedOptimizer(made(0.2, momentum=0.5)), x[mine], y[mine], 4, rates)
    np.testing.assert_allclose(history["lr"], [0.15, 0.2], rtol=1e-5)
model.save(f"model.{hvd.rank()}.keras")
again = hvd.load_model(f"model.{hvd.rank()}.keras")
again.fit(x[mine], y[mine], batch_size=4, verbose=0)
for weight in again.get_weights():
    assert np.array_equal(*hvd.allgather(weight[None])), "ranks have parted ways"
over_all = hvd.SyncBatchNormalization()
model, _ = trained(hvd.DistributedOptimizer(optimizers.SGD(0.05)), x[mine], y[mine], 4, body=[over_all])
plain, _ = trained(optimizers.SGD(0.05), x, y, 8, body=[keras.layers.BatchNormalization()])
for one, other in zip(model.get_weights(), plain.get_weights()):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
print("as one process, by rank", hvd.rank(), keras.Model.__module__)
"""


@pytest.mark.variants(0)
@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras, which scripts/setup installs")
def test_keras_2(tmp_path, request):
    """Optimizers new and legacy, loss scaling, callbacks, batch normalization and loading: what one process makes."""
    script = tmp_path / "train.py"
    script.write_text(KERAS_2)
    command = [jobs.LAUNCHER, "run", "-n", "2", "--output", "all", str(script)]
    cases = "9" if request.config.getoption("--all") else "2"
    ended = jobs.Job(command, tmp_path, TF_USE_LEGACY_KERAS="1", CASES=cases).end(240)
    assert ended.code == 0, ended.err
    assert ended.out.count("as one process, by rank") == 2 and "tf_keras" in ended.out, ended
