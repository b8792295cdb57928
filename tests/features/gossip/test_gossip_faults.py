"""Gossip in which ranks die: the others meet anew, and end alike, with every row used, about as good as without."""

import json

import numpy as np
import pytest
import warm
from jobs import Job

from matex_tf.launch import mpirun_command
from tests.faults.test_faults import read_and_trained, trained

pytestmark = pytest.mark.timeout(400)

EPOCHS = 4

#: Trains on digits; DEATHS says which rank dies where: a function of matex_tf, and its how manyth call; or a batch.
SCRIPT = """
import functools, importlib, json, os, signal
import numpy as np
import keras, matex_tf
import tensorflow as tf
from sklearn.datasets import load_digits
from matex_tf import strategies

first, deaths, seen, turns = matex_tf.rank(), json.loads(os.environ["DEATHS"]), [], []

def die_at(place, number, how):
    where, _, path = place.partition(":")
    holder, calls = importlib.import_module(where), []
    *outer, last = path.split(".")
    for name in outer:
        holder = getattr(holder, name)
    original = getattr(holder, last)
    @functools.wraps(original)
    def around(*args, **kwargs):
        calls.append(None)
        if len(calls) == number:
            os.kill(os.getpid(), how)
        return original(*args, **kwargs)
    setattr(holder, last, around)

class Die(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        turns.append(strategies.current()._rounds[self.model].averager.turns)
    def on_train_batch_begin(self, batch, logs=None):
        seen.append(batch)
        for rank, place, number in deaths:
            if rank == first and place in ("batch", "stop") and len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL if place == "batch" else signal.SIGSTOP)

for rank, place, number in deaths:
    if rank == first and ":" in place:
        die_at(place, number, signal.SIGKILL)

class Used(keras.metrics.Metric):
    def __init__(self, name, reduce):
        super().__init__(name=name)
        self.reduce, self.times = reduce, self.add_weight(shape=(600,), initializer="zeros", name="times")
    def update_state(self, y, predicted, sample_weight=None):
        self.times.assign_add(tf.reduce_sum(tf.one_hot(y[:, 1], 600), 0))
    def result(self):
        return self.reduce(self.times)

def loss(y, predicted):
    return keras.losses.sparse_categorical_crossentropy(y[:, 0], predicted, from_logits=True)

keras.utils.set_random_seed(3)
x, y = load_digits(return_X_y=True)
x, y = (x[:900] / 16).astype("float32"), np.stack([y[:900], np.arange(900)], 1).astype("int32")
layers = [keras.layers.Dense(80, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((64,)), *layers])
used = [Used("least", tf.reduce_min), Used("most", tf.reduce_max)]
model.compile(keras.optimizers.SGD(0.05, momentum=0.5), loss, metrics=used)
history = model.fit(x[:600], y[:600], batch_size=50, epochs=4, verbose=0, callbacks=[Die()]).history
result = {
    "history": {name: [float(value) for value in values] for name, values in history.items()},
    "turns": turns,
    "evaluate": float(model.evaluate(x[600:], y[600:], verbose=0)[0]),
    "weights": [float.hex(float(value)) for weight in model.get_weights() for value in weight.reshape(-1)],
}
with open(f"result.{first}", "w") as file:
    json.dump(result, file)
"""


def train(folder, server, deaths, *settings):
    """The results of the ranks that are left, which must be alike; what was printed. Nothing may be left behind."""
    (folder / "script.py").write_text(SCRIPT)
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 4, survive=True)
    options = ["--strategy", "gossip", "--seed", "3", "--faults", "shrink", *settings]
    job = Job([*line, *warm.command(server.path), *options, "script.py"], folder, DEATHS=json.dumps(deaths))
    ended = job.end(300)
    assert ended.code == 0, ended
    found = {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob("result.*")}
    assert set(found) == set(range(4)) - {rank for rank, _, _ in deaths}, ended
    one, *others = found.values()
    assert all(other == one for other in others), ended
    assert not job.left()
    return one, ended.err


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory):
    """The result of four ranks of which none dies."""
    return train(tmp_path_factory.mktemp("undisturbed"), server, [])[0]


HALFWAY, GOSSIP = "matex_tf.features.gossip.pairwise_average:PairwiseAverager", "matex_tf.features.gossip.strategy"
#: Who dies, and where; at the end of each epoch the number of ranks, and how often these have met since the death.
CASES = {
    "between steps": ([[2, "batch", 17]], [4, 3, 3, 3], [12, 8, 20, 32]),
    "rank 0": ([[0, "batch", 30]], [4, 4, 3, 3], [12, 24, 7, 19]),
    "sending": ([[1, f"{HALFWAY}.begin", 16]], [4, 3, 3, 3], [12, 9, 21, 33]),
    "waiting": ([[3, f"{HALFWAY}.finish", 20]], [4, 3, 3, 3], [12, 4, 16, 28]),
    "the last of an epoch": ([[1, f"{HALFWAY}.stop", 1]], [3, 3, 3, 3], None),
    "averaging": ([[2, f"{GOSSIP}:average", 2]], [4, 3, 3, 3], None),
    "the first step": ([[0, f"{HALFWAY}.begin", 1]], [3, 3, 3, 3], None),
    "the first of all": ([[3, f"{GOSSIP}:Rounds.__init__", 1]], [3, 3, 3, 3], None),
    "two": ([[0, f"{HALFWAY}.begin", 9], [2, "batch", 29]], [3, 3, 2, 2], None),
    "while they begin anew": ([[0, "batch", 17], [3, f"{GOSSIP}:Rounds._open", 2]], [4, 2, 2, 2], None),
    "all but one": ([[0, "batch", 5], [1, "batch", 17], [3, "batch", 18]], [3, 1, 1, 1], None),
}


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", CASES)
def test_a_death(name, tmp_path, server, undisturbed):
    """Wherever it comes: every row is used once in every epoch, and all end alike, with about the same loss."""
    deaths, sizes, turns = CASES[name]
    found, said = train(tmp_path, server, deaths)
    assert found["history"]["world_size"] == sizes
    assert found["history"]["least"] == found["history"]["most"] == [1] * EPOCHS
    assert turns is None or found["turns"] == turns
    assert said.count("died in") == len(deaths) or name == "while they begin anew", said
    compare(found, undisturbed, 0.2 if sizes[-1] == 3 else 0.4)  # fewer ranks learn more in a step


def compare(found, undisturbed, tolerance=0.2):
    assert undisturbed["history"]["world_size"] == [4] * EPOCHS
    assert undisturbed["history"]["least"] == undisturbed["history"]["most"] == [1] * EPOCHS
    assert undisturbed["history"]["loss"][-1] < undisturbed["history"]["loss"][0] / 3
    np.testing.assert_allclose(found["history"]["loss"][-1], undisturbed["history"]["loss"][-1], rtol=tolerance)
    np.testing.assert_allclose(found["evaluate"], undisturbed["evaluate"], rtol=tolerance)


@pytest.mark.variants(0)
@pytest.mark.parametrize(
    "settings",
    [
        ["--codec", "int8", "--error-feedback", "on", "--gossip-sync", "on"],
        ["--gossip-topology", "hypercube", "--gossip-every", "2", "--ring-shuffle", "on"],
    ],
    ids=str,
)
def test_a_death_with(settings, tmp_path, server, undisturbed):
    """The same with the options of gossip; three ranks that were a hypercube go on as ranks of any number do."""
    found, said = train(tmp_path, server, [[1, "batch", 17]], *settings)
    assert found["history"]["world_size"] == [4, 3, 3, 3]
    assert found["history"]["least"] == found["history"]["most"] == [1] * EPOCHS
    assert ("rows stay on their ranks" in said) == ("--ring-shuffle" in settings), said
    compare(found, undisturbed)


@pytest.mark.variants(0)
def test_a_rank_that_is_stuck(tmp_path, server, undisturbed):
    """It counts as dead, and no other one does."""
    found, said = train(tmp_path, server, [[1, "stop", 17]], "--stall-seconds", "2", "--stall-abort-seconds", "6")
    assert found["history"]["world_size"] == [4, 3, 3, 3] and "rank 1 on" in said and "missing since" in said, said
    compare(found, undisturbed)


@pytest.mark.variants(0)
def test_rows_of_a_dataset(tmp_path, server):
    """The others read the rows of a dead rank again, so that every row is used once in every epoch."""
    assert read_and_trained(tmp_path, server, "one", "--strategy", "gossip")["sizes"] == [3, 2, 2, 2]


def test_rows_that_died(tmp_path, server):
    """Where a rank dies whose rows no other rank has, every rank ends, with what to do."""
    ended = trained(tmp_path, server, "shards", 4, "--faults", "shrink", "--strategy", "gossip")
    assert ended.code != 0 and "held rows which no other rank has" in ended.err, ended


def test_local_sgd(tmp_path, server):
    """A rank dies between two meetings of `--strategy local`: the others meet without it, with every row used."""
    options = ["--strategy", "local", "--local-every", "2"]
    assert read_and_trained(tmp_path, server, "one", *options)["sizes"] == [3, 2, 2, 2]
