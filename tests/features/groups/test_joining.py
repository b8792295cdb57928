"""A group that joins a running job, trains in it, and is killed; and groups that are refused. Real processes."""

import contextlib
import json
import time

import pytest
from jobs import LAUNCHER, Job
from there import needs

pytestmark = [pytest.mark.timeout(900), needs("join")]

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


def trained(line):
    """Whether a group has made a step in the epoch of a line. In the first one of a group that has joined, its count of
    steps becomes that of the job; of steps of its own there is a loss."""
    return line["steps"] and line["loss"] is not None


class Pair:
    """A job of two groups in a folder, and groups that may join it.

    Args:
        environ: variables of all of them.
        strategy: of the job.
        at: the beginning of its command line, where it is on a host of its own.
        options: more of its options.
    """

    def __init__(self, folder, environ, strategy, at=(), options=()):
        self.folder, self.environ = folder, environ
        (folder / "script.py").write_text(SCRIPT)
        (folder / "state").mkdir(mode=0o700)
        self.common = ["--watch-dir", str(folder / "state")]
        words = ["-n", "2", "--strategy", strategy, *FORMS[strategy], *self.common, *options, "script.py", "1"]
        self.job = Job([*at, LAUNCHER, "run", *words], folder, WHO="job", **environ)
        self.guests = []

    def join(self, *options, entry=None, at=()):
        """A group that joins, by the job's file or another one."""
        words = [*at, LAUNCHER, "join", str(entry or self.entry()), "-n", "1", *self.common, *options]
        self.guests.append(Job(words, self.folder, WHO="guest", **self.environ))
        return self.guests[-1]

    def copied(self, name, **changes):
        """A copy of the job file, in which the center has other values."""
        values = json.loads(self.entry().read_text())
        values["center"].update(changes)
        copy = self.folder / name
        copy.write_text(json.dumps(values))
        copy.chmod(0o600)
        return copy

    def entry(self):
        """The job file, once it says where the center is."""
        jobs, limit = self.folder / "state" / "matex_tf" / "jobs", time.monotonic() + 200
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

    def await_line(self, who, holds, seconds=200):
        """The first epoch of which something holds, however busy the machine is."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            with contextlib.suppress(FileNotFoundError):
                for line in self.lines(who).values():
                    if holds(line):
                        return line["epoch"]
            if self.job.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise AssertionError("\n".join([who, *(one.end(10).err for one in (self.job, self.guests[-1]))]))

    def await_two(self, after):
        """The first epoch after one in which the job's two groups have made all steps by themselves."""
        limit = time.monotonic() + 200
        while time.monotonic() < limit and self.job.process.poll() is None:
            first, second = (self.lines(f"job.{rank}") for rank in (0, 1))
            for epoch in sorted(set(first) & set(second)):
                if epoch > after and first[epoch]["steps"] + second[epoch]["steps"] == 2 * BATCHES:
                    return epoch
            time.sleep(0.05)
        self.stop()
        raise AssertionError(self.job.end(10).err)

    def stop(self):
        """End the job and all groups that have joined it."""
        for one in (self.job, *self.guests):
            one.stop()


@pytest.fixture
def pair(request, tmp_path, server):
    made = Pair(tmp_path, server.environ, request.param)
    yield made
    made.stop()


@pytest.mark.variants(1)
@pytest.mark.parametrize("pair", FORMS, indirect=True)
def test_joins_and_dies(pair):
    """Rows are divided in three, each used once; when it is killed the others go on. Prints how soon it trains."""
    pair.entry()
    guest, begin = pair.join(), time.monotonic()
    begun = pair.await_line("guest.0", trained)
    print(f"the group has trained {time.monotonic() - begin:.1f} s after matex-tf join began")
    epoch = pair.await_line("guest.0", lambda line: line["epoch"] > begun and line["steps"] >= BATCHES // 3)
    for who in ("job.0", "job.1"):
        pair.await_line(who, lambda line: line["epoch"] >= epoch)
    third, own = pair.lines("guest.0")[epoch], [pair.lines(f"job.{rank}")[epoch] for rank in (0, 1)]
    of_job = sum(one["steps"] for one in own)
    assert third["steps"] + of_job == 3 * BATCHES
    mean = (third["number"] * third["steps"] + own[0]["number"] * of_job) / (3 * BATCHES)
    assert mean == pytest.approx(179.5)
    guest.stop()
    after = pair.await_two(max(pair.lines("job.0")))
    assert pair.lines("job.0")[after]["number"] == pytest.approx(179.5)
    (pair.folder / "enough").touch()
    ended = pair.job.end(200)
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
    epoch = pair.await_line("guest.0", trained)
    pair.await_line("guest.1", lambda line: line["epoch"] >= epoch)
    assert pair.lines("guest.0")[epoch]["steps"] == pair.lines("guest.1")[epoch]["steps"]
    (pair.folder / "enough").touch()
    ended = pair.job.end(200), guest.end(200)
    assert [one.code for one in ended] == [0, 0], ended
    assert "and so does this group" in ended[1].err
    assert {path.name for path in pair.folder.glob("end.*")} == {"end.0", "end.1"}


@pytest.mark.variants(0)
@pytest.mark.parametrize("pair", ["elastic"], indirect=True)
def test_refused(pair):
    """Other options of the strategy, another model, another token: in words on both sides, and the job goes on."""
    other = pair.copied("copied.json", token="00" * 32)
    refused = [pair.join("--elastic-every", "8"), pair.join("script.py", "2"), pair.join(entry=other)]
    said = [one.end(200) for one in refused]
    assert all(one.code != 0 for one in said), said
    for one, why in zip(said, ("--elastic-every is 8", "the arguments 2", "does not know the token"), strict=True):
        assert why in one.err, one
    refused_at = max(pair.lines("job.0"))
    pair.await_line("job.0", lambda line: line["epoch"] > refused_at)
    (pair.folder / "enough").touch()
    ended = pair.job.end(200)
    assert ended.code == 0
    for why in ("--elastic-every is 8", "the arguments 2", "it has another token"):
        assert why in ended.err, ended
