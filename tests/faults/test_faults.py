"""Ranks that die: the others carry on, and end with the answer of a training in which none did."""

import json
import re
import sys

import chaos
import numpy as np
import pytest
import warm
from jobs import LAUNCHER, Job
from there import case, needs_keras_2

from matex_tf.launch import mpirun_command

pytestmark = pytest.mark.timeout(240)

RUNS, SEED = 10, 1

#: Every rank but the last dies, one after the other; without Keras, so that it takes no time. Nobody knows whether a
#: rank that dies behind a gathering had been the only one to see its end: the others then gather again, without it.
ONE_BY_ONE = """
import os, signal
import matex_tf
world = matex_tf.init()
first, seen = world.rank, None
for step in range(8):
    world.at(f"step {step}")
    if step == 2 * first + 1 and first < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    there, before = zip(*world.allgather((first, seen), "look who is there"))
    assert len(set(before)) == 1, (step, before)
    dead, dies_next = min((step + 1) // 2, 3), step in (0, 2, 4)
    assert there in [(0, 1, 2, 3)[dead:], (0, 1, 2, 3)[dead + dies_next :]], (step, there)
    seen = there
print("rank", first, "is rank", world.rank, "of", world.size, flush=True)
"""

#: One rank has an error of its own: that is no death to be survived.
ERROR = """
import sys, time
import matex_tf
world = matex_tf.init()
if world.rank == 2:
    sys.exit(3)
%s
"""


@pytest.fixture(scope="module")
def expected(server, tmp_path_factory):
    """The answer of one rank."""
    return chaos.undisturbed(tmp_path_factory.mktemp("undisturbed"), server)


@pytest.mark.variants(1)
@pytest.mark.parametrize("number", range(RUNS))
def test_chaos(number, server, expected):
    """Whoever dies, and wherever: the same losses, metrics, predictions and files, on every survivor."""
    run = chaos.execute(chaos.plan(number, SEED), expected, server)
    assert not run.failures, f"{run}: {run.failures}"


@pytest.mark.variants(0)
@pytest.mark.parametrize("number", range(3))
def test_chaos_with_parts(number, server, expected):
    """What lies in parts on the ranks (`--shard`) does not die with one of them."""
    run = chaos.execute(chaos.sharded(chaos.plan(number, SEED)), expected, server)
    assert run.died and not run.failures, f"{run}: {run.failures}"


@pytest.mark.variants(1)
def test_a_step_is_made_between_two_deaths(server, expected):
    """The step of the first evaluation is made for ranks of which one has died since weights were put in parts."""
    places = {2: ("reducing", 1), 1: ("merging metrics", 1)}
    deaths = [{"rank": rank, "place": place, "count": at, "delay": 0} for rank, (place, at) in places.items()]
    run = chaos.execute(chaos.Run(1, 4, deaths, flags=["--shard", "weights", "--shard-copies", "2"]), expected, server)
    assert run.died == 2 and not run.failures, f"{run}: {run.failures}"


def test_chaos_kills():
    """The runs above kill: on rank 0, in places of all kinds, during recovery, several ranks of one run."""
    runs = [chaos.plan(number, SEED) for number in range(RUNS)]
    deaths = [death for run in runs for death in run.deaths]
    assert any(death["rank"] == 0 for death in deaths) and any(len(run.deaths) > 1 for run in runs)
    assert {"time"} < {death["place"] for death in deaths} and len({death["place"] for death in deaths}) > 5


def test_down_to_one(tmp_path):
    """The last rank goes on alone; the next rank speaks for all when the first has died."""
    (tmp_path / "script.py").write_text(ONE_BY_ONE)
    job = Job([LAUNCHER, "run", "-n", "4", "--faults", "shrink", "script.py"], tmp_path)
    ended = job.end()
    assert ended.code == 0 and "rank 3 is rank 0 of 1" in ended.out, ended
    for line in ("rank 0 of 4 on", "rank 0 of 3 on", "rank 0 of 2 on", "1 rank continues"):
        assert line in ended.err, ended.err
    assert re.search("died in step [45]\n", ended.err), ended.err
    assert not job.left()


def test_fewer_ranks_than_are_wanted(tmp_path):
    """Where `--min-ranks` are not left the job ends."""
    (tmp_path / "script.py").write_text(ONE_BY_ONE)
    job = Job([LAUNCHER, "run", "-n", "4", "--faults", "shrink", "--min-ranks", "3", "script.py"], tmp_path)
    ended = job.end()
    assert ended.code != 0 and "is rank 0" not in ended.out, ended
    assert "3 ranks continue" in ended.err and "--min-ranks asks for 3 ranks, and 2 of 3 are left" in ended.err, ended
    assert not job.left()


@pytest.mark.parametrize("others", ["world.barrier('go on')", "time.sleep(60)"])
def test_an_error_is_no_death(tmp_path, others):
    """An exception, or sys.exit, ends all ranks, wherever they are, within seconds."""
    (tmp_path / "script.py").write_text(ERROR % others)
    job = Job([LAUNCHER, "run", "-n", "4", "--faults", "shrink", "script.py"], tmp_path)
    ended = job.end(30)
    assert ended.code == 3 and "sys.exit(3)" in ended.err and "go on" not in ended.err, ended
    assert not job.left()


def test_an_mpi_that_cannot(tmp_path):
    """Without ULFM the setting is refused, on every rank, with what to do."""
    (tmp_path / "script.py").write_text(ERROR % "")
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 3)
    ended = Job([*line, sys.executable, "-m", "matex_tf", "--faults", "shrink", "script.py"], tmp_path).end()
    assert ended.code != 0 and "--with-ft ulfm" in ended.err and "--faults abort" in ended.err, ended
    with pytest.raises(Exception, match="needs Open MPI 5"):
        mpirun_command.mpirun_line(mpirun_command.Mpirun("mpirun", "MPICH", (4, 1)), 2, survive=True)


#: Trains on rows that only one rank has, and on what every rank has, with gradients that are accumulated.
TRAIN = """
import json, os, signal
import numpy as np, keras, matex_tf
rank = matex_tf.rank()
kind = %r
x, y = np.random.RandomState(0).rand(2, 240, 4).astype("float32")
if kind == "shards":
    x, y = x[rank::4], y[rank::4]
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3 if kind == "accumulate" else None), "mse")
class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if rank == 1 and batch == 10:
            os.kill(os.getpid(), signal.SIGKILL)
dies = [Die()] if "OMPI_COMM_WORLD_SIZE" in os.environ else []
history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=dies).history
print("HISTORY", json.dumps(history), flush=True)
"""


#: A step counts on rank 0, rank 1 dies, and the others have not heard that it does; a callback changes the optimizer.
UNHEARD = """
import json, os, signal
import numpy as np, keras, matex_tf
from matex_tf import errors
from matex_tf.exchange import process_group
from matex_tf.faults import transactions
rank = matex_tf.rank()
sums, counts = [], []
def summed(*given, real=process_group.sum_planned):
    total = real(*given)
    sums.append(1)
    if len(sums) == %d and rank:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise errors.RankLost("it has not come through")
    return total
def count(guard, real=transactions.TransactionGuard.mark_committed):
    counts.append(1)
    real(guard)
transactions.TransactionGuard.mark_committed = count
process_group.sum_planned = summed
x, y = np.random.RandomState(0).rand(2, 242, 4).astype("float32")  # the last batch has no row for two ranks
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
class Slower(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.9)
history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[Slower()]).history
weights = [float(w) for w in model.get_weights()[0].ravel()]
with open(f"result.{rank}", "w") as file:
    json.dump([{"loss": history["loss"], "mae": history["mae"], "weights": weights}, len(counts)], file)
"""


def test_a_rank_that_has_not_heard_that_a_step_counts(tmp_path, server):
    """It takes over the weights, and makes no step twice; the steps count before their weights change."""
    results = []
    for ranks, place in (1, 0), (4, 12):
        (tmp_path / "script.py").write_text(UNHEARD % place)
        line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, survive=True) if ranks > 1 else []
        ended = Job([*line, *warm.command(server.path), "--faults", "shrink", "script.py"], tmp_path).end()
        assert ended.code == 0, ended
        files = sorted(tmp_path.glob("result.*"))
        results += [json.loads(path.read_text()) for path in files]
        for path in files:
            path.unlink()
    (expected, none), *survivors = results
    assert none == 0 and sorted(counts for _, counts in survivors) == [30, 30, 31], results  # of 32, less the first
    assert "rank 1 of 4" in ended.err and "3 ranks continue" in ended.err, ended
    for found, _ in survivors:
        assert chaos.differences(expected, found) == [], results


#: An op fails on the rows of one rank alone, while the others wait for it.
FAILS = """
import numpy as np, keras, tensorflow as tf
class Looking(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(9, 4), name="table")
        self.dense = keras.layers.Dense(1)
    def call(self, x):
        return self.dense(tf.gather(self.table, x[:, 0]))
x = np.arange(60).reshape(60, 1) % 9
x[45] = 99  # of rank 1, in the second batch
model = Looking()
model.compile("sgd", "mse")
model.fit(x, np.ones((60, 1)), batch_size=30, epochs=3, shuffle=False, verbose=0)
print("trained")
"""


@pytest.mark.parametrize("faults", ["abort", "shrink"])
def test_an_op_that_fails_on_one_rank(tmp_path, server, faults):
    """Every rank ends, with one message: that of the op."""
    (tmp_path / "script.py").write_text(FAILS)
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 3, survive=True)
    job = Job([*line, *warm.command(server.path), "--faults", faults, "--partitioner", "on", "script.py"], tmp_path)
    ended = job.end()
    assert ended.code != 0 and "trained" not in ended.out, ended
    assert "rank 1 of 3" in ended.err and "indices[5] = 99 is not in [0, 9)" in ended.err, ended
    assert "rank 0 of 3" not in ended.err and "rank 2 of 3" not in ended.err, ended  # those have nothing to say
    assert not job.left()


def trained(folder, server, kind, ranks, *settings):
    (folder / "script.py").write_text(TRAIN % kind)
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, survive=True) if ranks > 1 else []
    return Job([*line, *warm.command(server.path), *settings, "script.py"], folder).end()


@pytest.mark.smoke
def test_accumulated_gradients(tmp_path, server):
    """What a dead rank had accumulated is not lost; History says how many ranks there were."""
    histories = []
    for ranks in (1, 4):
        ended = trained(tmp_path, server, "accumulate", ranks, "--faults", "shrink")
        assert ended.code == 0, ended
        histories.append(json.loads(ended.out.split("HISTORY")[1]))
    assert histories[1].pop("world_size") == [3, 3]
    assert chaos.differences(*histories) == []


@pytest.mark.smoke
def test_rows_that_died(tmp_path, server):
    """Where a rank dies whose rows no other rank has, every rank ends, with what to do."""
    ended = trained(tmp_path, server, "shards", 4, "--faults", "shrink")
    assert ended.code != 0 and "held rows which no other rank has" in ended.err, ended


#: Each rank reads its part of a file; the metrics say how often the rows of an epoch were used at least and at most.
READ = """
import json, os, signal
import keras, matex_tf
import numpy as np
import tensorflow as tf
first, kind = matex_tf.rank(), %r
data = matex_tf.DataSet.open("rows.npz", normalize=2.0)
class Used(keras.metrics.Metric):
    def __init__(self, name, reduce):
        super().__init__(name=name)
        self.reduce, self.times = reduce, self.add_weight(shape=(95,), initializer="zeros", name="times")
    def update_state(self, y, predicted, sample_weight=None):
        self.times.assign_add(tf.reduce_sum(tf.one_hot(tf.cast(y[:, 1], tf.int32), 95), 0))
    def result(self):
        return self.reduce(self.times)
def error(y, predicted):
    return tf.square(y[:, :1] - predicted)
class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if [first, batch, self.epoch] in ([[1, 3, 1]] if kind != "two" else [[1, 3, 1], [0, 2, 2]]):
            os.kill(os.getpid(), signal.SIGKILL)
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
used = [Used("least", tf.reduce_min), Used("most", tf.reduce_max)]
model.compile(keras.optimizers.SGD(0.01), error, metrics=used)
dies = [Die()] if kind != "none" else []
given = data.data, data.labels
if kind == "changed":
    given = data.data + 1, data.labels
history = model.fit(*given, batch_size=16, epochs=4, shuffle=kind == "shuffled", verbose=0, callbacks=dies).history
more = model.evaluate(*given, batch_size=16, verbose=0)
assert len(model.predict(data.data, verbose=0)) == len(data)
if matex_tf.rank() == 0:
    print("HISTORY", json.dumps([history, more]), flush=True)
"""


def read_and_trained(folder, server, kind, *settings):
    """History and evaluation of three ranks that train on a file of 95 rows."""
    rng = np.random.default_rng(1)
    np.savez(folder / "rows.npz", x=rng.random((95, 2)), y=np.stack([rng.random(95), np.arange(95)], 1))
    (folder / "script.py").write_text(READ % kind)
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 3, survive=True)
    ended = Job([*line, *warm.command(server.path), "--faults", "shrink", *settings, "script.py"], folder).end(150)
    if kind == "changed":
        return ended
    assert ended.code == 0, ended
    history, more = json.loads(ended.out.split("HISTORY")[1])
    assert history["least"] == history["most"] == [1, 1, 1, 1] and more[1:] == [1, 1], (history, more)
    return {"loss": history["loss"], "evaluate": more, "sizes": history["world_size"]}


def test_rows_of_a_dataset(tmp_path, server, first_of):
    """The others read the rows of a dead rank again: the same batches, every row once, in every epoch."""
    whole = read_and_trained(tmp_path, server, "none")
    assert whole.pop("sizes") == [3, 3, 3, 3]
    for kind, sizes in first_of({"two": [3, 2, 1, 1], "one": [3, 2, 2, 2]}, 1).items():
        found = read_and_trained(tmp_path, server, kind)
        assert found.pop("sizes") == sizes and chaos.differences(whole, found) == []


@pytest.mark.variants(0)
def test_shuffled_rows_of_a_dataset(tmp_path, server):
    """The same, where the rows are in another order in every epoch."""
    read_and_trained(tmp_path, server, "shuffled")


def test_rows_of_a_dataset_that_were_changed(tmp_path, server):
    """What the script has made of the rows no file has: all ranks end, with what to do."""
    ended = read_and_trained(tmp_path, server, "changed")
    assert ended.code != 0 and "data and labels of a DataSet as they are" in ended.err, ended


#: With Keras 2: a rank dies in a step of the first fit, another between two steps of the second; with momentum, Adam,
#: dropout, moving statistics and validation.
KERAS_2 = """
import json, os, signal
import numpy as np, tf_keras as keras, matex_tf
rank, dying = matex_tf.rank(), "OMPI_COMM_WORLD_SIZE" in os.environ
x, y = np.random.RandomState(0).rand(2, 120, 4).astype("float32")
class Die(keras.callbacks.Callback):
    def __init__(self, who, epoch, batch):
        super().__init__()
        self.who, self.place, self.epoch = who, (epoch, batch), 0
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        if dying and rank == self.who and (self.epoch, batch) == self.place:
            os.kill(os.getpid(), signal.SIGKILL)
def trained(optimizer, loss, **fit):
    keras.utils.set_random_seed(1)
    body = [keras.layers.Dense(6, use_bias=False), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.layers.Input((4,)), *body, keras.layers.Dense(4)])
    model.compile(optimizer, loss, metrics=["mae"])
    history = model.fit(x, y, batch_size=17, epochs=2, verbose=0, **fit).history
    history.pop("world_size", None)
    evaluated = model.evaluate(x, y, verbose=0)
    return {**history, "evaluated": evaluated, "predicted": model.predict(x[:30], verbose=0).sum(0).tolist()}
some = x[:40], y[:40]
first = trained(keras.optimizers.SGD(0.1, momentum=0.9), "mse", callbacks=[Die(1, 1, 3)], validation_data=some)
second = trained(keras.optimizers.legacy.Adam(0.01), "mse", callbacks=[Die(2, 0, 4)])
with open(f"result.{rank}", "w") as file:
    json.dump({"first": first, "second": second}, file)
"""


@pytest.mark.variants(0)
@needs_keras_2()
def test_keras_2(tmp_path, server):
    """The others carry on, to the answer of one rank."""
    found = []
    for ranks in (1, 4):
        (tmp_path / "script.py").write_text(KERAS_2)
        line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, survive=True) if ranks > 1 else []
        ended = Job([*line, *warm.command(server.path), "--faults", "shrink", "script.py"], tmp_path).end(150)
        assert ended.code == 0, ended
        files = sorted(tmp_path.glob("result.*"))
        found += [json.loads(path.read_text()) for path in files]
        for path in files:
            path.unlink()
    alone, *survivors = found
    assert len(survivors) == 2 and "rank 1 of 4" in ended.err and "of 3 on" in ended.err, ended
    for one in survivors:
        assert chaos.differences(alone, one) == []


#: One rank stops, as if it swapped or waited for a disk.
STUCK = """
import os, signal
import numpy as np
import matex_tf
from matex_tf.exchange import process_group
world = matex_tf.init()
first = world.rank
for step in range(20):
    if step == 10 and first == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    total = process_group.sum_arrays(world, [np.ones(1000, np.float32)], "add ones", ["ones"])[0]
print("the sum is", total[0], flush=True)
"""


@pytest.mark.variants(1)
@pytest.mark.parametrize("faults", ["shrink", "abort", case("restart", "restart")])
def test_a_rank_that_is_stuck(tmp_path, faults):
    """First a line says who is missing from what; in the end the rank counts as dead."""
    (tmp_path / "script.py").write_text(STUCK)
    settings = ["--faults", faults, "--max-restarts", "1", "--stall-seconds", "1", "--stall-abort-seconds", "3"]
    job = Job([LAUNCHER, "run", "-n", "3", *settings, "script.py"], tmp_path)
    ended = job.end(60)
    assert "rank 1 on" in ended.err and "missing since" in ended.err and "bucket 0 of add ones" in ended.err, ended
    if faults == "shrink":
        assert ended.code == 0 and "the sum is 2.0" in ended.out and "rank 1 of 3" in ended.err, ended
    else:
        assert ended.code != 0 and "counts as dead" in ended.err, ended
    if faults == "restart":  # in which it is stuck again
        assert "restart 1 of 1" in ended.err and "1 restart was allowed" in ended.err, ended
        assert not (tmp_path / ".matex-checkpoints").exists()
    assert not job.left()


#: Loops of the script's own, in which a rank dies: over batches; over steps, after a run of a session.
LOOPS = {
    "batches": """
import os, signal
import keras, matex_tf
import numpy as np, tensorflow as tf
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
rows = tf.data.Dataset.from_tensor_slices((np.ones((64, 3), "f"), np.ones((64, 1), "f"))).batch(8)
for step, (x, y) in enumerate(rows):
    if step == 3 and matex_tf.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
""",
    "steps": """
import os, signal
import matex_tf
import tensorflow as tf
v1 = tf.compat.v1
with v1.Graph().as_default(), v1.Session() as session:
    weight = v1.get_variable("w", [3, 1])
    train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.ones([8, 3]) @ weight))
    session.run(v1.global_variables_initializer())
    session.run(train)
weight = tf.Variable([1.0])
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = weight**2
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
for number in range(9):
    if number == 3 and matex_tf.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step()
""",
}
BEGINS = {
    "batches": ["a loop of the script's own"],
    "steps": ["a session of TensorFlow 1", "a loop of the script's own"],
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_of_the_scripts_own(kind, tmp_path, server):
    """It is said at its begin that it does not go on without a rank, and at the end why the job ends."""
    (tmp_path / "script.py").write_text(LOOPS[kind])
    job = Job([LAUNCHER, "run", "-n", "2", "--faults", "shrink", "script.py"], tmp_path, **server.environ)
    ended = job.end(120)
    assert ended.code != 0
    for what in BEGINS[kind]:
        assert ended.err.count(f"a rank that dies in {what} ends the job: --faults shrink covers fit") == 1, ended
    assert "where --faults shrink cannot carry on, so the job ends" in ended.err.splitlines()[-1], ended
    assert job.left() == []


#: A loop whose step is compiled, with state besides weights, and what it prints. It does not ask which rank it is: what
#: gets slices would not be split then.
COMPILED = """
import os, signal, sys
import numpy as np, tensorflow as tf
from matex_tf.core import world
tf.random.set_seed(4)
rows = np.random.default_rng(0).random((67, 3))
weight, average = tf.Variable(np.zeros((3, 1))), tf.Variable(0.0, dtype="float64")
first = world.of_job().rank
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((x @ weight - 1 + tf.random.uniform(tf.shape(x), dtype="float64")[:, :1]) ** 2) / 16
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    average.assign(0.9 * average + 0.1 * loss)
    return loss
batches = tf.data.Dataset.from_tensor_slices(rows).shuffle(20, seed=1).batch(16)
if sys.argv[1] == "slices":
    batches = [rows[at : at + 16] for at in range(0, 67, 16)]
losses = []
for epoch in range(3):
    for number, x in enumerate(batches):
        if (epoch, number, first) in ((0, 1, 1), (1, 4, 0)) and world.of_job().size > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(float(step(x)))
print(repr([*losses, float(average), *weight.numpy()[:, 0].tolist()]), flush=True)
"""


@pytest.mark.parametrize("form", ["pipeline", "slices"])
def test_a_compiled_loop(tmp_path, server, form):
    """Ranks die in a loop whose step is compiled: the others continue, with the answer of one rank."""
    (tmp_path / "script.py").write_text(COMPILED)
    words = ["--seed", "1", "script.py", form]
    environ = server.environ if form == "pipeline" else {}  # the server's own files name the ranks of MPI
    job = Job([LAUNCHER, "run", "-n", "3", "--faults", "shrink", *words], tmp_path, **environ)
    ended = job.end(120)
    assert ended.code == 0 and "1 rank continues" in ended.err and "ends the job" not in ended.err, ended
    assert ("each batch that step gets is split among 3 ranks" in ended.err) == (form == "slices"), ended
    assert job.left() == []
    alone = Job([sys.executable, "-m", "matex_tf", *words], tmp_path).end(120)
    np.testing.assert_allclose(json.loads(ended.out), json.loads(alone.out), rtol=1e-8)
