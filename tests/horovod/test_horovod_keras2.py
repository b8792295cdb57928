"""What Keras 3 has taken away and scripts for Horovod still use."""

import sys

import jobs

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
    assert "set_session is taken for its GPU alone" in ended.out + ended.err
    script.write_text(WITHOUT)
    ended = jobs.Job([sys.executable, "-m", "matex_tf", str(script)], tmp_path).end(120)
    assert ended.code == 0, ended.err
