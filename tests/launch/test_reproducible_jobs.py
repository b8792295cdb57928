"""With `--reproducible` one rank, two hosts, and ranks of which some die, end with the same bits."""

import re

import pytest
import warm
from jobs import LAUNCHER, Job

from benchmarks.hosts import Hosts, unavailable

pytestmark = pytest.mark.timeout(400)

#: One rank dies between two steps of the first epoch, and another in a step of the second.
TRAIN = """
import hashlib, os, signal, threading
import numpy as np, keras, matex_tf
from keras import layers
rank = matex_tf.rank()
random = np.random.RandomState(0)
x, y = random.normal(size=(203, 8, 8, 1)).astype("float32"), random.randint(0, 10, 203)
keras.utils.set_random_seed(1)
body = [layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.2), layers.Flatten()]
body += [layers.Dense(2048, activation="relu")]  # several messages between hosts
model = keras.Sequential([keras.Input((8, 8, 1)), *body, layers.Dense(10, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
def die():
    os.kill(os.getpid(), signal.SIGKILL)
class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if (rank, self.epoch, batch) == (2, 0, 3):
            die()
    def on_train_batch_begin(self, batch, logs=None):
        if (rank, self.epoch, batch) == (0, 1, 4):
            threading.Timer(0.002, die).start()
dies = [Die()] if DEATHS else []
history = model.fit(x, y, batch_size=26, epochs=3, verbose=0, callbacks=dies, validation_data=(x[:60], y[:60])).history
history.pop("world_size", None)
score = model.evaluate(x, y, batch_size=33, verbose=0, return_dict=True)
bits = hashlib.sha256()
for variable in (*model.variables, *model.optimizer.variables):
    bits.update(np.array(variable).tobytes())
bits.update(model.predict(x, batch_size=30, verbose=0).tobytes())
words = [float(one).hex() for name in sorted(history) for one in history[name]]
print("BITS", bits.hexdigest(), *words, *(float(score[name]).hex() for name in sorted(score)), flush=True)
"""


def _bits(folder, deaths, command, **environ):
    """What a job prints of its bits, and what it says."""
    folder.mkdir()
    (folder / "script.py").write_text(TRAIN.replace("DEATHS", str(deaths)))
    job = Job([*command, "--reproducible", "4", "--seed", "1", "script.py"], folder, **environ)
    ended = job.end(180)
    assert ended.code == 0, ended
    assert not job.left()
    found = set(re.findall(r"BITS (.*)", ended.out))
    assert len(found) == 1, ended
    return found.pop(), ended.err


@pytest.fixture(scope="module")
def alone(tmp_path_factory, server):
    """One rank: weights, slots, logs, scores and predictions."""
    return _bits(tmp_path_factory.mktemp("alone") / "job", False, [LAUNCHER, "run", "-n", "1"], **server.environ)[0]


@pytest.mark.variants(0)
def test_deaths(alone, server, tmp_path):
    """Two of four ranks die."""
    left, said = _bits(tmp_path / "job", True, [LAUNCHER, "run", "-n", "4", "--faults", "shrink"], **server.environ)
    assert "rank 2 of 4" in said and "rank 0 of 3" in said, said
    assert left == alone


@pytest.mark.variants(0)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
def test_hosts(alone, tmp_path):
    """Two ranks on each of two hosts."""
    with Hosts(2) as hosts:
        line = [*hosts.on(folder=tmp_path / "job"), LAUNCHER, "run", "-n", "4", "--hosts", "h1:2,h2:2"]
        found, said = _bits(tmp_path / "job", False, line, **hosts.environ)
    assert "4 ranks on 2 nodes" in said, said
    assert found == alone


#: A loop of the script's own.
LOOP = """
import keras, tensorflow as tf
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
for x in tf.data.Dataset.from_tensor_slices(tf.ones((32, 4))).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
print("TRAINED")
"""


def test_refused(server, tmp_path):
    """In a sentence, before a weight changes."""
    (tmp_path / "script.py").write_text(LOOP)
    run = [*warm.command(server.path), "--reproducible", "4"]
    ended = Job([*run, "script.py"], tmp_path).end(120)
    assert ended.code != 0 and "TRAINED" not in ended.out, ended
    assert "--reproducible is for fit, evaluate and train_on_batch" in ended.err, ended
    for words in (["--strategy", "pipe"], ["--codec", "int8"], ["--data", "source"], ["--batch", "per-rank"]):
        ended = Job([*run, *words, "script.py"], tmp_path).end(60)
        assert ended.code != 0 and f"--reproducible and {' '.join(words)} do not go together" in ended.err, ended
