"""`--transport horovod`: with an installed Horovod the answer is that of one rank, and ranks that part ways stop."""

import importlib.util
import json
import pickle
import sys
from pathlib import Path

import pytest
from compare import same
from jobs import LAUNCHER, Job

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("horovod") is None, reason="needs Horovod: scripts/setup --keras2 --horovod builds it"
    ),
]

#: Models of Keras 2, and a loop of the script's own with more than one bucket and two optimizers.
TRAIN = """
import os, pickle, sys
import numpy as np, tensorflow as tf
from tests.support.cases import keras2
from tests.support.cases.common import table
def loop():
    keras = keras2.keras2()
    keras.utils.set_random_seed(3)
    x, y = table(50)
    models = [keras.Sequential([keras.layers.Dense(600, "relu"), keras.layers.Dense(600), keras.layers.Dense(3)])
              for _ in range(2)]
    optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01)]
    @tf.function
    def step(x, y):
        losses = []
        for model, optimizer in zip(models, optimizers):
            with tf.GradientTape() as tape:
                each = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
                loss = tf.reduce_mean(each)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            losses.append(loss)
        return losses
    seen = [[float(one) for one in step(*batch)] for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(16)]
    return {"losses": seen, "weights": [model.get_weights() for model in models]}
def compiled():
    x, y = table(60)
    model = keras2.classifier()
    model.compile("adam", "mse", jit_compile=True)
    return keras2.result_of(model, model.fit(x, np.eye(3)[y], batch_size=20, epochs=1, verbose=0))
found = {
    "fit": keras2.fit(with_weights=True, with_validation=True),
    "eagerly": keras2.fit(run_eagerly=True, epochs=1, optimizer=("Adam", {"global_clipnorm": 0.1})),
    "own step": keras2.own_train_step(),
    "images": keras2.images(),
    "loop": loop(),
    "compiled": compiled(),
}
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
with open(f"{sys.argv[1]}-{rank}", "wb") as file:
    pickle.dump(found, file)
"""

#: One rank leaves a loop early.
APART = """
import matex_tf, tensorflow as tf
weight = tf.Variable(tf.ones([5]))
optimizer = tf.keras.optimizers.SGD(0.1)
for step in range(10 if matex_tf.rank() else 5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * weight)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
"""

OWN = """
import horovod.tensorflow.keras as hvd, numpy as np, tensorflow as tf
hvd.init()
class Seen(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.Dense(1)
    def call(self, x):
        print("ROWS", len(x), "of", hvd.size())
        return self.inner(x)
model = Seen()
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
model.fit(np.ones([10, 4], "f"), np.ones([10, 1], "f"), batch_size=10, verbose=0)
"""

REPOSITORY = str(Path(__file__).resolve().parents[2])


def test_the_answer_of_one_rank(tmp_path):
    """Losses, weights and the state of optimizers; Horovod's own timeline shows that it added up the gradients."""
    (tmp_path / "train.py").write_text(TRAIN)
    at = {"PYTHONPATH": REPOSITORY}
    one = Job([sys.executable, "train.py", "one"], tmp_path, **at).end(200)
    assert one.code == 0, one
    command = [LAUNCHER, "run", "-n", "3", "--transport", "horovod", "--files", "every-rank", "--bucket-mb", "1"]
    many = Job([*command, "train.py", "many"], tmp_path, HOROVOD_TIMELINE="timeline.json", **at).end(300)
    assert many.code == 0 and "are not those of one rank" not in many.err, many
    kept = {name: [pickle.loads((tmp_path / f"{name}-{rank}").read_bytes()) for rank in range(count)]
            for name, count in (("one", 1), ("many", 3))}  # fmt: skip
    same({1: kept["one"], 3: kept["many"]})
    text = (tmp_path / "timeline.json").read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else f"{text}]")
    names = {event["args"]["name"] for event in events if event.get("name") == "process_name" and event["pid"]}
    assert sum(name.startswith("matex_tf_") for name in names) > 20, names  # in graphs
    assert sum(name.startswith("HorovodGroupedAllreduce") for name in names) == 4, names  # eagerly


def test_ranks_that_part_ways(tmp_path):
    """An error that says so, where Horovod would wait."""
    (tmp_path / "apart.py").write_text(APART)
    ended = Job([LAUNCHER, "run", "-n", "2", "--transport", "horovod", "apart.py"], tmp_path).end(100)
    assert ended.code != 0 and "the ranks have gone different ways" in ended.err, ended


def test_a_script_of_horovods_own(tmp_path):
    """A script that imports the installed Horovod is left to it: each rank trains on whole batches."""
    (tmp_path / "own.py").write_text(OWN)
    ended = Job([LAUNCHER, "run", "-n", "2", "--transport", "horovod", "--output", "all", "own.py"], tmp_path).end(100)
    assert ended.code == 0 and "the script imports the Horovod that is installed" in ended.err, ended
    assert "split among" not in ended.err and ended.out.count("ROWS 10 of 2") == 2, ended
