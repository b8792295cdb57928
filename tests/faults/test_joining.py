"""A group that joins a running job, trains in it, and is killed; and groups that are refused. Real processes."""

import contextlib
import json
import time

import pytest
from jobs import LAUNCHER, Job

pytestmark = pytest.mark.timeout(500)

#: Trains on numbered rows until there is a file `enough`. Writes down a line for each epoch: how many steps this rank
#: has made in it, and the mean of the numbers of the rows that its job has trained on.
SCRIPT = """
import json, os, sys, time
import numpy as np
import keras, matex_tf
import tensorflow as tf

class Wait(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.05), [], [])]):
                return tf.identity(x)
        return x

def number(y, predicted):
    return y[:, 1]

def loss(y, predicted):
    return keras.ops.square(predicted[:, 0] - y[:, 0])

class Note(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.first = int(self.model.optimizer.iterations.numpy())

    def on_epoch_end(self, epoch, logs=None):
        steps = int(self.model.optimizer.iterations.numpy()) - self.first
        line = {"epoch": epoch, "steps": steps, "number": logs.get("number"), "loss": logs.get("loss")}
        with open(f"{os.environ['WHO']}.{matex_tf.rank()}", "a") as file:
            print(json.dumps(line), file=file)
        self.model.stop_training = os.path.exists("enough")

random = np.random.RandomState(0)
x = random.normal(size=(360, 8)).astype("float32")
y = np.stack([x @ random.normal(size=8), np.arange(360)], 1).astype("float32")
model = keras.Sequential([keras.Input((8,)), Wait(), keras.layers.Dense(int(sys.argv[1]))])
model.compile(keras.optimizers.SGD(0.02), loss, metrics=[number])
saves = keras.callbacks.ModelCheckpoint("saved.keras")
model.fit(x, y, batch_size=30, epochs=2000, verbose=0, callbacks=[Note(), saves])
with open(f"end.{matex_tf.rank()}", "w") as file:
    json.dump([float.hex(float(value)) for weight in model.get_weights() for value in weight.reshape(-1)], file)
"""
BATCHES = 12
FORMS = {"elastic": ["--elastic-every", "4"], "server": []}


class Pair:
    """A job of two groups in a folder, and groups that may join it."""

    def __init__(self, folder, server, strategy):
        self.folder = folder
        (folder / "script.py").write_text(SCRIPT)
        (folder / "state").mkdir(mode=0o700)
        self.common = ["--watch-dir", str(folder / "state")]
        self.environ = server.environ
        options = ["-n", "2", "--strategy", strategy, *FORMS[strategy], *self.common]
        self.job = Job([LAUNCHER, "run", *options, "script.py", "1"], folder, WHO="job", **self.environ)
        self.guests = []

    def join(self, *options):
        """A group that joins."""
        entry = self.entry()
        words = [LAUNCHER, "join", str(entry), "-n", "1", *self.common, *options]
        self.guests.append(Job(words, self.folder, WHO="guest", **self.environ))
        return self.guests[-1]

    def entry(self):
        """The job file, once it says where the center is."""
        jobs, limit = self.folder / "state" / "matex_tf" / "jobs", time.monotonic() + 100
        while time.monotonic() < limit and self.job.process.poll() is None:
            for path in jobs.glob("*.json"):
                if json.loads(path.read_text()).get("center"):
                    assert path.stat().st_mode & 0o777 == 0o600
                    return path
            time.sleep(0.05)
        raise AssertionError(self.job.end(1))

    def lines(self, who):
        """What it has written down, by epoch."""
        path = self.folder / who
        found = [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]
        return {line["epoch"]: line for line in found}

    def await_line(self, who, holds, seconds=60):
        """The first epoch of which something holds."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            with contextlib.suppress(FileNotFoundError):
                for line in self.lines(who).values():
                    if holds(line):
                        return line["epoch"]
            if self.job.process.poll() is not None:
                break
            time.sleep(0.05)
        for one in (self.job, self.guests[-1]):
            one.stop()
        raise AssertionError("\n".join([who, *(one.end(10).err for one in (self.job, self.guests[-1]))]))


@pytest.fixture
def pair(request, tmp_path, server):
    made = Pair(tmp_path, server, request.param)
    yield made
    for one in (made.job, *made.guests):
        one.stop()


@pytest.mark.variants(1)
@pytest.mark.parametrize("pair", FORMS, indirect=True)
def test_joins_and_dies(pair):
    """It trains within a minute; rows are divided in three, each used once; when it is killed the others go on."""
    guest = pair.join()
    begun = pair.await_line("guest.0", lambda line: line["steps"])
    epoch = pair.await_line("guest.0", lambda line: line["epoch"] >= begun + 2 and line["steps"])
    pair.await_line("job.1", lambda line: line["epoch"] > epoch)
    third, own = pair.lines("guest.0")[epoch], [pair.lines(f"job.{rank}")[epoch] for rank in (0, 1)]
    assert third["steps"] + sum(one["steps"] for one in own) == 3 * BATCHES
    assert third["steps"] >= BATCHES // 3
    of_job = sum(one["steps"] for one in own)
    mean = (third["number"] * third["steps"] + own[0]["number"] * of_job) / (3 * BATCHES)
    assert mean == pytest.approx(179.5)
    guest.stop()
    left = pair.await_line("job.0", lambda line: line["epoch"] > epoch + 1)
    after = pair.await_line("job.1", lambda line: line["epoch"] > left + 1)
    lines = [pair.lines(f"job.{rank}")[after - 1] for rank in (0, 1)]
    assert sum(line["steps"] for line in lines) == 2 * BATCHES
    assert lines[0]["number"] == pytest.approx(179.5)
    (pair.folder / "enough").touch()
    ended = pair.job.end(100)
    assert ended.code == 0, ended
    assert "a group of 1 rank on" in ended.err and "has left" in ended.err
    ends = [(pair.folder / f"end.{rank}").read_text() for rank in (0, 1)]
    assert ends[0] == ends[1] and pair.lines("job.0")[after]["loss"] < 0.5 * pair.lines("job.0")[0]["loss"]
    assert not pair.job.processes() and not guest.processes()


@pytest.mark.variants(0)
@pytest.mark.parametrize("pair", ["elastic"], indirect=True)
def test_ends_with_the_training(pair):
    """A group of two ranks ends well where the job does, and writes nothing that the job writes."""
    guest = pair.join("-n", "2")
    epoch = pair.await_line("guest.0", lambda line: line["steps"])
    pair.await_line("guest.1", lambda line: line["epoch"] >= epoch)
    assert pair.lines("guest.0")[epoch]["steps"] == pair.lines("guest.1")[epoch]["steps"]
    (pair.folder / "enough").touch()
    ended = pair.job.end(100), guest.end(100)
    assert [one.code for one in ended] == [0, 0], ended
    assert "and so does this group" in ended[1].err
    assert {path.name for path in pair.folder.glob("end.*")} == {"end.0", "end.1"}


@pytest.mark.variants(0)
@pytest.mark.parametrize("pair", ["elastic"], indirect=True)
def test_refused(pair):
    """Other options of the strategy, another model, another token: in words on both sides, and the job goes on."""
    refused = [pair.join("--elastic-every", "8"), pair.join("script.py", "2")]
    values = json.loads(pair.entry().read_text())
    values["center"]["token"] = "00" * 32
    copied = pair.folder / "copied.json"
    copied.write_text(json.dumps(values))
    copied.chmod(0o600)
    words = [LAUNCHER, "join", str(copied), "-n", "1", *pair.common]
    pair.guests += [Job(words, pair.folder, WHO="guest", **pair.environ)]
    refused.append(pair.guests[-1])
    said = [one.end(100) for one in refused]
    assert all(one.code != 0 for one in said), said
    for one, why in zip(said, ("--elastic-every is 8", "the arguments 2", "does not know the token"), strict=True):
        assert why in one.err, one
    refused_at = max(pair.lines("job.0"))
    pair.await_line("job.0", lambda line: line["epoch"] > refused_at)
    (pair.folder / "enough").touch()
    ended = pair.job.end(100)
    assert ended.code == 0
    for why in ("--elastic-every is 8", "the arguments 2", "it has another token"):
        assert why in ended.err, ended
