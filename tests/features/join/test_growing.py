"""Ranks that come while a job runs (`matex-tf join`): the answer is that of one rank."""

import json
import sys
import time

import numpy as np
import pytest
from jobs import LAUNCHER, Job

pytestmark = pytest.mark.timeout(400)

#: Its arguments are its form, and how many ranks shall come; with epochs as a third one it trains so many. Else it
#: trains slowly on two ranks until those have come, and ends with the second epoch that is whole with them. In double
#: precision, in which a row that is used twice, or not, is no rounding error. Files let a rank that comes have another
#: model (`odd`), rows (`rows`) or optimizer (`clip`), die (`dead`), or, once it has come, leave the fit (`stop`), fail
#: (`fail`), exit (`exit`), hang (`hang`) or meet for something else (`else`).
SCRIPT = """
import json, os, signal, sys, time
import numpy as np, keras, matex_tf
import tensorflow as tf
from matex_tf.core.row_partition import Interleaving
form, all_ranks = sys.argv[1], 2 + int(sys.argv[2])
epochs = int(sys.argv[3]) if len(sys.argv) > 3 else 0
keras.utils.set_random_seed(3)
keras.backend.set_floatx("float64")
comes = not epochs and matex_tf.size() == 1
does = [name for name in os.listdir() if "." not in name] if comes else []
if "dead" in does:
    os.kill(os.getpid(), signal.SIGKILL)
x = np.random.rand(199, 4) + ("rows" in does)
y = (x.sum(1) > 2).astype("float64")
units = 9 if "odd" in does else 40 if form in ("state", "weights") else 8  # 4 x 40 are in parts on two ranks alone
more = [keras.layers.Dense(units)] * (units == 40)
model = keras.Sequential(
    [keras.layers.Dense(units, "tanh"), keras.layers.BatchNormalization(),
     keras.layers.Dropout(0.0 if form == "DataSet" else 0.3), *more, keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0 if "clip" in does else 9.0), "mse", metrics=["mae"])


class Pieces(keras.utils.PyDataset):
    order = np.arange(199)

    def __len__(self):
        return 13

    def __getitem__(self, index):
        rows = self.order[16 * index : 16 * index + 16]
        return x[rows], y[rows]

    def on_epoch_end(self):
        self.order = np.random.default_rng(self.order[0]).permutation(199)


def data():
    if form == "tf.data":
        pairs = tf.data.Dataset.from_tensor_slices((x, y))
        return {"x": pairs.shuffle(50, seed=7).map(lambda a, b: (a * 1.5, b)).batch(16)}
    if form == "PyDataset":
        return {"x": Pieces()}
    if form == "DataSet":
        if epochs:  # the batches of two ranks
            order = Interleaving([99, 100]).order(16)
            return {"x": x[order], "y": y[order], "batch_size": 16, "shuffle": False}
        np.savez("rows.npz", x=x, y=y)
        rows = matex_tf.DataSet.open("rows.npz", x="x", y="y")
        return {"x": rows.data, "y": rows.labels, "batch_size": 16, "shuffle": False}
    more = {"class_weight": {0: 0.3, 1: 2.0}} if form == "class_weight" else {}
    return {"x": x, "y": y, "batch_size": 16, **more}


class Note(keras.callbacks.Callback):
    steps = whole = 0

    def begins(self):
        open("begun", "w").close()

    def on_test_batch_end(self, batch, logs=None):
        if form == "evaluate" and not self.steps:
            self.begins()
            time.sleep(0 if epochs else 0.2)

    def on_train_batch_begin(self, batch, logs=None):
        if matex_tf.size() < 3:
            return
        if "fail" in does:
            raise KeyError("only here")
        if "exit" in does:
            os._exit(3)
        if "hang" in does:
            os.kill(os.getpid(), signal.SIGSTOP)
        if "else" in does:
            matex_tf.init().barrier("do something else")

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if "stop" in does and matex_tf.size() == 3:
            self.model.stop_training = True
        if self.steps == 5 and form != "callback":
            self.begins()
        time.sleep(0.2 if self.steps > 5 and not epochs and matex_tf.size() < all_ranks else 0)

    def on_epoch_end(self, epoch, logs=None):
        if form == "callback" and epoch == 0:  # in which ranks are asked for, and may come to be ready
            self.begins()
            time.sleep(0 if epochs else 10)
        whole = not epochs and matex_tf.size() == all_ranks  # and none that ended in a trial
        self.whole = self.whole + 1 if whole else 0
        self.model.stop_training = self.whole == 2


note, rate = Note(), keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2, factor=0.9)
result = {}
if form in ("second fit", "evaluate"):
    result["first"] = model.fit(x, y, batch_size=20, epochs=2, verbose=0).history
    result["first"].pop("world_size", None)
    result["between"] = model.evaluate(x, y, verbose=0, callbacks=[note] * (form == "evaluate"))
history = model.fit(
    **data(), epochs=epochs or 1000, verbose=0, callbacks=[note, rate], validation_data=(x[:40], y[:40])
).history
sizes = history.pop("world_size", None)
if form in ("state", "weights") and not epochs:
    from matex_tf.patches.shards import variable
    parted = [variable.is_split(one) for one in (model if form == "weights" else model.optimizer).variables]
    assert any(parted) and not all(parted), parted
result |= {"steps": note.steps, "history": history, "evaluate": model.evaluate(x, y, verbose=0)}
result["weights"] = [weight.tolist() for weight in model.get_weights()]
json.dump({"sizes": sizes, "result": result}, open("end", "w"), default=float)
"""

#: Loops of the script's own with compiled steps, for training and for tests, over a pipeline or over slices of arrays.
#: Its arguments are a form, and the epochs that it trains; without these it ends with the second one that is whole with
#: three ranks. It does not ask how many there are: what gets slices would not be split then.
COMPILED = """
import json, os, sys, time
import numpy as np, keras
import tensorflow as tf
from matex_tf.core import world
form, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
keras.utils.set_random_seed(3)
keras.backend.set_floatx("float64")
does = [name for name in os.listdir() if "." not in name] if not epochs and world.of_job().size == 1 else []
x = np.random.rand(103, 4) + ("rows" in does)
y = (x.sum(1) > 2).astype("float64")[:, None]
model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3),
                          keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01) if form == "pipeline" else keras.optimizers.SGD(0.1)
seen, mean, error = tf.Variable(0, dtype="int64"), keras.metrics.Mean(), keras.metrics.MeanAbsoluteError()
average = tf.Variable(np.zeros([4, 8]))


@tf.function
def train(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    seen.assign_add(tf.shape(a, "int64")[0])
    mean.update_state(loss)
    return loss, {"noise": tf.random.uniform([2], dtype="float64")}


@tf.function
def test(a, b):
    error.update_state(b, model(a))
    return tf.reduce_mean(tf.abs(model(a) - b)), seen.read_value()


def batches(count, shuffled=True):
    if form == "pipeline":
        pairs = tf.data.Dataset.from_tensor_slices((x, y))
        yield from (pairs.shuffle(50, seed=7) if shuffled else pairs).map(lambda a, b: (a * 1.5, b)).batch(count)
    else:
        order = np.random.permutation(len(x)) if shuffled else np.arange(len(x))
        for begin in range(0, len(x), count):
            yield x[order[begin : begin + count]], y[order[begin : begin + count]]


said, sizes, whole, steps, best = [], [], 0, 0, None
for epoch in range(epochs or 1000):
    optimizer.learning_rate = 0.05 / (1 + epoch)
    for a, b in batches(16):
        loss, more = train(a, b)
        said += [float(loss), *more["noise"].numpy().tolist()]
        steps += 1
        if steps == 5:
            open("begun", "w").close()
        if "reads" in does and steps == 9:
            print(float(tf.reduce_sum(tf.raw_ops.ReadVariableOp(resource=seen.handle, dtype=tf.int64))))
        time.sleep(0.2 if steps > 5 and not epochs and world.of_job().size == 2 else 0)
    for a, b in batches(40, False):
        said += [float(one) for one in test(a, b)]
    average.assign(0.9 * average + 0.1 * model.trainable_variables[0].value)
    said += [float(mean.result()), float(error.result()), int(optimizer.iterations)]
    mean.reset_state()
    error.reset_state()
    if best is None or said[-2] < best[0]:
        model.save_weights("best.weights.h5")
        best = said[-2], epoch
    sizes.append(world.of_job().size)
    whole = whole + 1 if not epochs and sizes[-1] == 3 else 0
    if whole == 2:
        break
result = {"said": said, "weights": [one.tolist() for one in model.get_weights()], "average": average.numpy().tolist()}
result["slots"] = [one.numpy().tolist() for one in optimizer.variables]
model.load_weights("best.weights.h5")
result["best"] = [best, [one.tolist() for one in model.get_weights()]]
json.dump({"sizes": sizes, "result": result}, open("end", "w"), default=float)
"""

#: Two models that are trained by turns, on batches of the script's own making, as in a GAN; arguments as in `COMPILED`.
ON_BATCH = """
import json, sys, time
import numpy as np, keras
from matex_tf.core import world
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 0
keras.utils.set_random_seed(3)
keras.backend.set_floatx("float64")
layers = keras.layers
judge = keras.Sequential([keras.Input((2,)), layers.Dense(8, "tanh"), layers.Dropout(0.3), layers.Dense(1)])
judge.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
maker = keras.Sequential([keras.Input((3,)), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(2)])
judge.trainable = False
both = keras.Sequential([maker, judge])
both.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
x = np.random.rand(103, 2)
said, sizes, whole, steps = [], [], 0, 0
for epoch in range(epochs or 1000):
    both.optimizer.learning_rate = 0.01 / (1 + epoch)
    order = np.random.permutation(103)
    for at in range(0, 103, 16):
        rows = x[order[at : at + 16]]
        said += [float(one) for one in judge.train_on_batch(rows, np.ones((len(rows), 1)))]
        said.append(float(both.train_on_batch(np.random.normal(size=(16, 3)), np.ones((16, 1)))))
        steps += 1
        if steps == 5:
            open("begun", "w").close()
        time.sleep(0.2 if steps > 5 and not epochs and world.of_job().size == 2 else 0)
    said += [one for one in judge.test_on_batch(x, np.ones((103, 1)), return_dict=True).values()]
    said.append(int(both.optimizer.iterations))
    sizes.append(world.of_job().size)
    whole = whole + 1 if not epochs and sizes[-1] == 3 else 0
    if whole == 2:
        break
result = {"said": said, "weights": [one.tolist() for one in both.get_weights()]}
json.dump({"sizes": sizes, "result": result}, open("end", "w"), default=float)
"""

#: A loop of the script's own that is not compiled, to which ranks do not come.
OWN_LOOP = """
import os, time
import numpy as np, keras, matex_tf
import tensorflow as tf
keras.utils.set_random_seed(3)
x = np.random.rand(192, 4).astype("float32")
model, optimizer = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)


def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(rows, training=True) - 1) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))


for epoch in range(1000):
    for rows in tf.data.Dataset.from_tensor_slices(x).batch(32):
        step(rows)
        time.sleep(0.1)
    open("begun", "w").close()
    if matex_tf.init().broadcast(os.path.exists("told"), "see whether it is told to end"):
        break
open(f"end.{matex_tf.rank()}", "w").close()
"""


def join(job, folder, *flags, ranks=1):
    """Have ranks come to a job: what `matex-tf join` has come to."""
    limit, jobs = time.monotonic() + 200, folder / "state" / "matex_tf" / "jobs"
    while not ((folder / "begun").exists() and (found := list(jobs.glob("*.json")))):
        assert time.monotonic() < limit and job.process.poll() is None, job.end(1)
        time.sleep(0.05)
    return Job([LAUNCHER, "join", str(found[0]), "-n", str(ranks), *flags], folder).end(300)


@pytest.fixture
def begin(tmp_path, server):
    """Starts a job of two ranks, and gives it and its folder."""
    jobs = []

    def start(script, *arguments, **environ):
        (tmp_path / "script.py").write_text(script)
        (tmp_path / "state").mkdir(mode=0o700)
        words = ["run", "-n", "2", "--faults", "shrink", "--seed", "1", "--watch-dir", str(tmp_path / "state")]
        known = {} if "slices" in arguments else server.environ  # the server's own files name the ranks of MPI
        jobs.append(Job([LAUNCHER, *words, "script.py", *arguments], tmp_path, **known, **environ))
        return jobs[0], tmp_path

    yield start
    for job in jobs:
        job.stop()


def numbers(result, where=""):
    """The numbers of a result, by where they are."""
    if isinstance(result, (dict, list)):
        pairs = result.items() if isinstance(result, dict) else enumerate(result)
        return {place: one for key, inner in pairs for place, one in numbers(inner, f"{where} {key}").items()}
    return {where: result}


def compare(folder, form, ranks=1):
    """The job has the answer of one rank: losses, metrics, learning rates, weights and the steps of a callback."""
    grown = json.loads((folder / "end").read_text())
    assert (ranks < 0 or grown["sizes"][0] == 2) and grown["sizes"][-2:] == [2 + ranks, 2 + ranks]
    compare_alone(folder, grown, form, str(ranks), str(len(grown["sizes"])))


def compare_alone(folder, grown, *words):
    """What a job has come to is what one rank does with these arguments."""
    alone = Job([sys.executable, "-m", "matex_tf", "--seed", "1", "script.py", *words], folder)
    assert alone.end(200).code == 0
    found, expected = numbers(grown["result"]), numbers(json.loads((folder / "end").read_text())["result"])
    assert list(found) == list(expected)
    np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-8, atol=1e-10)


#: What a job is at when ranks come to it, and how many: two come to a later fit, one after the other.
FORMS = [
    *[("second fit", 2), ("tf.data", 1), ("PyDataset", 1), ("class_weight", 1), ("arrays", 1), ("evaluate", 1)],
    *[("callback", 2), ("weights", 2), ("state", 1), ("DataSet", 2)],
]


@pytest.mark.variants(1)
@pytest.mark.parametrize(("form", "ranks"), FORMS)
def test_comes(begin, form, ranks):
    """Ranks come to two, in the middle of an epoch: nothing is used twice or left out."""
    parts = {"MATEX_SHARD": form} if form in ("state", "weights") else {}
    job, folder = begin(SCRIPT, form, str(ranks), **parts)
    came = join(job, folder, ranks=ranks)
    assert came.code == 0, (came, job.end(1))
    said = sorted(line for line in came.err.splitlines() if "has joined, and" in line)
    assert len(said) == ranks and f"has joined, and {2 + ranks} ranks continue at step" in said[-1]
    ended = job.end(200)
    assert ended.code == 0, ended
    assert all(line in ended.err for line in said)
    assert "exited" not in ended.err and "LAUNCHER JOB" not in ended.err
    compare(folder, form, ranks)


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["slices", "pipeline"])
def test_compiled_loop(begin, form):
    """A rank comes to a loop whose steps are compiled, and which reads metrics and saves weights; one with other rows,
    or with an op of its own that reads a variable, does not."""
    job, folder = begin(COMPILED, form)
    for mark, why in (("rows", "gets other data than in the job"), ("reads", "uses the variable")):
        if form == "pipeline":
            (folder / mark).touch()
            refused = join(job, folder)
            assert refused.code == 1 and why in refused.err, (refused, job.end(1))
            (folder / mark).unlink()
    came = join(job, folder)
    assert came.code == 0 and "3 ranks continue at step" in came.err, (came, job.end(1))
    ended = job.end(200)
    assert ended.code == 0, ended
    grown = json.loads((folder / "end").read_text())
    assert grown["sizes"][0] == 2 and grown["sizes"][-2:] == [3, 3]
    compare_alone(folder, grown, form, str(len(grown["sizes"])))


def test_on_batch(begin):
    """A rank comes to a loop that calls `train_on_batch` and `test_on_batch` of two models."""
    job, folder = begin(ON_BATCH, "models")
    came = join(job, folder)
    assert came.code == 0 and "3 ranks continue at step" in came.err, (came, job.end(1))
    ended = job.end(200)
    assert ended.code == 0, ended
    grown = json.loads((folder / "end").read_text())
    assert grown["sizes"][0] == 2 and grown["sizes"][-2:] == [3, 3]
    compare_alone(folder, grown, "models", str(len(grown["sizes"])))


@pytest.mark.variants(0)
def test_own_loop(begin):
    """A rank that comes to a loop of the script's own is refused at its first step there, and the job goes on."""
    job, folder = begin(OWN_LOOP)
    refused = join(job, folder)
    assert refused.code == 1 and "its script trains in a loop of its own" in refused.err, (refused, job.end(1))
    (folder / "told").touch()
    ended = job.end(200)
    assert ended.code == 0 and refused.err.strip() in ended.err, ended
    assert sorted(path.name for path in folder.glob("end.*")) == ["end.0", "end.1"]


@pytest.mark.variants(0)
@pytest.mark.timeout(900)
def test_does_not_come(begin):
    """Ranks that die, or have another model, cost the job nothing; the next one comes."""
    job, folder = begin(SCRIPT, "arrays", "1", MATEX_TEST_TRIAL_SECONDS="20")
    for mark, why in (
        *(("dead", "has died"), ("odd", "is another model: it has"), ("rows", "differs in the rows of the data")),
        *(("clip", "it has clipnorm 1.0 where"), ("fail", "has died in its first steps")),
        *(("exit", "has died in its first steps"), ("else", "had to leave: the ranks have gone different ways")),
        *(("stop", "had to leave: the ranks have gone different ways"), ("hang", "has died in its first steps")),
    ):
        (folder / mark).touch()
        refused = join(job, folder)
        assert refused.code == 1 and why in refused.err, (refused, job.end(1))
        (folder / mark).unlink()
    assert "with its settings: give its number" in join(job, folder, "--seed", "2").err
    assert join(job, folder).code == 0
    ended = job.end(200)
    assert ended.code == 0, ended
    compare(folder, "arrays")


@pytest.mark.variants(0)
def test_other_rows_of_a_dataset(begin):
    """A rank whose files have other rows is refused."""
    job, folder = begin(SCRIPT, "DataSet", "1")
    (folder / "rows").touch()
    refused = join(job, folder)
    assert refused.code == 1 and "its DataSet has other rows than that of the job" in refused.err, refused
    (folder / "rows").unlink()
    assert join(job, folder).code == 0
    ended = job.end(200)
    assert ended.code == 0, ended
    compare(folder, "DataSet")


@pytest.mark.variants(0)
@pytest.mark.parametrize("rank", [1, 0])
def test_leaves(begin, rank):
    """A rank that is told to leave does so after a step, of which nothing is run again; others come for it."""
    job, folder = begin(SCRIPT, "arrays", "-1")
    while not (folder / "begun").exists():
        assert job.process.poll() is None, job.end(1)
        time.sleep(0.05)
    ranks = [one for one in job.processes() if one.environ().get("OMPI_COMM_WORLD_RANK") == str(rank)]
    ranks[0].terminate()
    ended = job.end(200)
    assert ended.code == 0, ended
    assert f"rank {rank} of 2 on" in ended.err and "left, as it was told to (SIGTERM)" in ended.err, ended
    compare(folder, "arrays", -1)
