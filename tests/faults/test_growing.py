"""Ranks that come while a job runs (`matex-tf join`): the answer is that of one rank."""

import json
import sys
import time

import numpy as np
import pytest
from jobs import LAUNCHER, Job

pytestmark = pytest.mark.timeout(400)

#: With an argument it trains so many epochs. Else it trains slowly on two ranks until a third one comes, and then ends
#: with the next epoch. Files let a rank that comes have another model (`odd`), rows (`rows`) or optimizer (`clip`), die
#: (`dead`), or, once it has come, leave the fit (`stop`), fail (`fail`), exit (`exit`) or meet for something else
#: (`else`).
SCRIPT = """
import json, os, signal, sys, time
import numpy as np, keras, matex_tf
keras.utils.set_random_seed(3)
comes = len(sys.argv) < 2 and matex_tf.size() == 1
does = [name for name in os.listdir() if "." not in name] if comes else []
if "dead" in does:
    os.kill(os.getpid(), signal.SIGKILL)
x = np.random.rand(192, 4).astype("float32") + ("rows" in does)
y = (x.sum(1) > 2).astype("float32")
units = 9 if "odd" in does else 8
model = keras.Sequential(
    [keras.layers.Dense(units, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3),
     keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0 if "clip" in does else 9.0), "mse", metrics=["mae"])


class Note(keras.callbacks.Callback):
    steps = threes = 0

    def on_train_batch_begin(self, batch, logs=None):
        if matex_tf.size() < 3:
            return
        if "fail" in does:
            raise KeyError("only here")
        if "exit" in does:
            os._exit(3)
        if "else" in does:
            matex_tf.init().barrier("do something else")

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if "stop" in does and matex_tf.size() == 3:
            self.model.stop_training = True
        if matex_tf.size() == 2:
            if self.steps == 5:
                open("begun", "w").close()
            time.sleep(0.2 if self.steps > 5 else 0)

    def on_epoch_end(self, epoch, logs=None):
        self.threes = self.threes + 1 if matex_tf.size() == 3 else 0  # not an epoch that ended in a trial
        self.model.stop_training = self.threes == 2


note, rate = Note(), keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2, factor=0.9)
history = model.fit(
    x, y, epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 1000, batch_size=16, verbose=0, callbacks=[note, rate],
    validation_data=(x[:40], y[:40]),
).history
sizes = history.pop("world_size", None)
result = {"steps": note.steps, "sizes": sizes, "history": history, "evaluate": model.evaluate(x, y, verbose=0)}
result["weights"] = [weight.tolist() for weight in model.get_weights()]
json.dump(result, open("end", "w"), default=float)
"""


def join(job, folder, *flags):
    """Have a rank come to a job: what `matex-tf join` has come to."""
    limit, jobs = time.monotonic() + 200, folder / "state" / "matex_tf" / "jobs"
    while not ((folder / "begun").exists() and (found := list(jobs.glob("*.json")))):
        assert time.monotonic() < limit and job.process.poll() is None, job.end(1)
        time.sleep(0.05)
    return Job([LAUNCHER, "join", str(found[0]), "-n", "1", *flags], folder).end(300)


@pytest.fixture
def growing(tmp_path, server):
    """A job of two ranks, and its folder."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "state").mkdir(mode=0o700)
    words = ["run", "-n", "2", "--faults", "shrink", "--seed", "1", "--watch-dir", str(tmp_path / "state"), "script.py"]
    job = Job([LAUNCHER, *words], tmp_path, **server.environ)
    yield job, tmp_path
    job.stop()


def compare(folder):
    """The job has the answer of one rank: losses, metrics, learning rates, weights and the steps of a callback."""
    grown = json.loads((folder / "end").read_text())
    assert grown["sizes"][0] == 2 and grown["sizes"][-2:] == [3, 3]
    alone = Job([sys.executable, "-m", "matex_tf", "--seed", "1", "script.py", str(len(grown["sizes"]))], folder)
    assert alone.end(200).code == 0
    expected = json.loads((folder / "end").read_text())
    assert grown["steps"] == expected["steps"]
    assert list(grown["history"]) == list(expected["history"])
    for name, values in expected["history"].items():
        np.testing.assert_allclose(grown["history"][name], values, rtol=2e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(grown["evaluate"], expected["evaluate"], rtol=2e-3)
    for mine, one in zip(grown["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(mine, one, rtol=2e-3, atol=2e-3)


def test_comes(growing):
    """A rank comes to two, in the middle of an epoch: nothing is used twice or left out."""
    job, folder = growing
    came = join(job, folder)
    assert came.code == 0, (came, job.end(1))
    assert "has come, and 3 ranks go on at step" in came.err
    ended = job.end(200)
    assert ended.code == 0, ended
    assert came.err.strip().splitlines()[-1] in ended.err and "exited" not in ended.err
    compare(folder)


@pytest.mark.variants(0)
@pytest.mark.timeout(900)
def test_does_not_come(growing):
    """Ranks that die, or have another model, cost the job nothing; the next one comes."""
    job, folder = growing
    for mark, why in (
        *(("dead", "has died"), ("odd", "is another model: it has"), ("rows", "differs in the rows of the data")),
        *(("clip", "it has clipnorm 1.0 where"), ("fail", "has died in its first steps")),
        *(("exit", "has died in its first steps"), ("else", "had to leave: the ranks have gone different ways")),
        ("stop", "had to leave: the ranks have gone different ways"),
    ):
        (folder / mark).touch()
        refused = join(job, folder)
        assert refused.code == 1 and why in refused.err, (refused, job.end(1))
        (folder / mark).unlink()
    assert "with its settings: give its number" in join(job, folder, "--seed", "2").err
    assert join(job, folder).code == 0
    ended = job.end(200)
    assert ended.code == 0, ended
    compare(folder)
