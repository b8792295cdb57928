"""Groups of which one dies, servers of which one dies, and a group that is slow: the others go on."""

import json
import sys

import pytest
import warm
from jobs import Job

from matex_tf.launch import mpirun_command

pytestmark = pytest.mark.timeout(400)

EPOCHS = 4

#: Trains on numbered rows. DEATH says which rank dies at which batch, or which rank of the job that rank kills then;
#: SLOW which rank takes three times as long for a step.
SCRIPT = """
import json, os, pathlib, signal, time
import numpy as np
import keras, matex_tf
import tensorflow as tf

first, death, seen = matex_tf.rank(), json.loads(os.environ["DEATH"]), []

def pid_of(rank):
    mine = dict(one.split("=", 1) for one in environment("self") if "=" in one)
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            theirs = environment(folder.name)
        except OSError:
            continue
        if f"OMPI_COMM_WORLD_RANK={rank}" in theirs and f"PMIX_NAMESPACE={mine['PMIX_NAMESPACE']}" in theirs:
            return int(folder.name)

def environment(process):
    return pathlib.Path(f"/proc/{process}/environ").read_text().split(chr(0))

class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        seen.append(batch)
        if death and death["at"] == len(seen) and first == death["by"]:
            os.kill(os.getpid() if death["rank"] == first else pid_of(death["rank"]), signal.SIGKILL)

class Wait(keras.layers.Layer):
    def call(self, x, training=False):
        seconds = 0.3 if first == int(os.environ["SLOW"]) else 0.1
        if training:
            with tf.control_dependencies([tf.py_function(lambda: time.sleep(seconds), [], [])]):
                return tf.identity(x)
        return x

def number(y, predicted):
    return y[:, 1]

def loss(y, predicted):
    return keras.ops.square(predicted[:, 0] - y[:, 0])

keras.utils.set_random_seed(3)
random = np.random.RandomState(0)
x = random.normal(size=(600, 8)).astype("float32")
y = np.stack([x @ random.normal(size=8), np.arange(600)], 1).astype("float32")
waits = [Wait()] if int(os.environ["SLOW"]) >= 0 else []
model = keras.Sequential([keras.Input((8,)), *waits, keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), loss, metrics=[number])
history = model.fit(x, y, batch_size=30, epochs=4, verbose=0, callbacks=[Die()] if death else []).history
result = {
    "number": [float(one) for one in history["number"]],
    "loss": [float(one) for one in history["loss"]],
    "size": matex_tf.size(),
    "steps": int(model.optimizer.iterations.numpy()),
    "weights": [float.hex(float(value)) for weight in model.get_weights() for value in weight.reshape(-1)],
}
with open(f"result.{first}", "w") as file:
    json.dump(result, file)
"""


def train(folder, server, ranks, death, *settings, slow=-1):
    """The results of the ranks that are left, which have the same weights; what was printed."""
    (folder / "script.py").write_text(SCRIPT)
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, survive=True)
    options = ["--seed", "3", "--faults", "shrink", *settings]
    # A rank that is to be found by its environment has to have started by itself.
    started = death is not None and death["by"] != death["rank"]
    words = [*line, *([sys.executable, "-m", "matex_tf"] if started else warm.command(server.path)), *options]
    job = Job([*words, "script.py"], folder, DEATH=json.dumps(death), SLOW=str(slow))
    ended = job.end(300)
    assert ended.code == 0, ended
    found = {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob("result.*")}
    assert len({tuple(one["weights"]) for one in found.values()}) == 1, ended
    assert not job.left()
    return found, ended.err


@pytest.mark.variants(1)
@pytest.mark.parametrize("strategy", ["elastic", "server"])
def test_a_group_dies(tmp_path, server, strategy):
    """The others go on; in the next epoch they take all rows."""
    death = {"rank": 1, "by": 1, "at": 27}
    options = ["--elastic-every", "4"] if strategy == "elastic" else []
    found, said = train(tmp_path, server, 3, death, "--strategy", strategy, *options)
    assert set(found) == {0, 2}
    for one in found.values():
        assert one["size"] == 2
        assert [one["number"][epoch] for epoch in (0, 2, 3)] == pytest.approx([299.5] * 3)
        assert one["loss"][-1] < 0.5 * one["loss"][0]
    assert "rank 1 of 3" in said


@pytest.mark.variants(0)
def test_a_group_of_two_dies(tmp_path, server):
    """A group that has lost a rank is lost."""
    death = {"rank": 3, "by": 3, "at": 27}
    found, _ = train(tmp_path, server, 4, death, "--strategy", "elastic", "--groups", "2", "--elastic-every", "4")
    assert set(found) == {0, 1}
    for one in found.values():
        assert one["size"] == 2
        assert one["number"][2:] == pytest.approx([299.5] * 2)


@pytest.mark.variants(0)
@pytest.mark.parametrize("strategy", ["elastic", "server"])
def test_a_server_dies(tmp_path, server, strategy):
    """Another one takes its piece; nobody who trains is lost, and no row."""
    death = {"rank": 2, "by": 0, "at": 27}
    found, _ = train(tmp_path, server, 4, death, "--strategy", strategy, "--servers", "2")
    assert set(found) == {0, 1}
    for one in found.values():
        assert [one["number"][epoch] for epoch in (0, 2, 3)] == pytest.approx([299.5] * 3)
        assert one["loss"][-1] < 0.5 * one["loss"][0]


@pytest.mark.variants(0)
def test_a_slow_group(tmp_path, server):
    """One that takes three times as long for a step makes fewer of them, and every row is used once."""
    found, _ = train(tmp_path, server, 3, None, "--strategy", "elastic", "--elastic-every", "4", slow=1)
    steps = [found[rank]["steps"] for rank in range(3)]
    assert sum(steps) == 3 * EPOCHS * 20
    assert steps[1] < min(steps[0], steps[2]), steps
    assert found[0]["number"] == pytest.approx([299.5] * EPOCHS)


@pytest.mark.variants(1)
@pytest.mark.parametrize(("ranks", "groups"), [(4, "2"), (3, "0/1/2")])
def test_local_without_a_group(tmp_path, server, ranks, groups):
    """With local the groups that are left take all rows of the batches that come, and their mean is over them."""
    death = {"rank": ranks - 1, "by": ranks - 1, "at": 27}
    options = ["--strategy", "local", "--groups", groups, "--local-every", "4"]
    found, said = train(tmp_path, server, ranks, death, *options)
    assert set(found) == {0, 1}
    for one in found.values():
        assert one["size"] == 2
        assert one["number"][2:] == pytest.approx([299.5] * 2)
        assert one["loss"][-1] < 0.5 * one["loss"][0]
    assert f"rank {ranks - 1} of {ranks}" in said
