"""`--prune-samples` where ranks die: scores survive, and so do the rows that an epoch uses."""

import json
import sys
from pathlib import Path

import pytest
import restart_scripts
from chaos import differences
from jobs import LAUNCHER, Job
from there import needs

pytestmark = pytest.mark.timeout(300)

AGAIN = Path(__file__).parents[2] / "support" / "again.py"

#: One `fit` of six epochs, with a schedule by the step.
SCRIPT = (
    restart_scripts._HEAD
    + """
class Fall(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        if os.environ.get("FALL") == f"{rank} {self.epoch} {batch}":
            os.kill(os.getpid(), signal.SIGKILL)

y[::13] = 1 - y[::13]
rate = keras.optimizers.schedules.CosineDecay(0.1, 6 * 11)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
history = model.fit(x, y, batch_size=30, epochs=6, verbose=0, callbacks=[Die(1), Fall()])
finish(history=history.history, weights=size(model.get_weights()))
"""
)
SETTINGS = ["--seed", "5", "--prune-samples", "0.6", "--sample-scores", "scores.csv"]


def results(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result.*"))]


def table(folder):
    """Scores and how often rows were used."""
    return [[float(word) for word in line.split(",")] for line in (folder / "scores.csv").read_text().split()[1:]]


def run(server, folder, ranks, **environ):
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    return Job(
        [LAUNCHER, "run", "-n", str(ranks), "--faults", "shrink", *SETTINGS, "script.py"],
        folder,
        **server.environ,
        **environ,
    )


@pytest.fixture(scope="module")
def expected(server, tmp_path_factory):
    """What two ranks come to of which none dies."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = run(server, folder, 2).end(120)
    assert ended.code == 0, ended
    assert "rows were used in 6 epochs" in ended.err, ended.err
    used = results(folder)[0]["history"]["rows_used"]
    assert used[0] == used[-1] == 330 > max(used[1:-1])
    return folder


@pytest.mark.variants(0)
@pytest.mark.parametrize("fall", ["1 2 0", "0 3 2"])
def test_shrink(server, expected, tmp_path, fall):
    """A rank dies at the beginning of an epoch: all is as if none had. Or later in it: rows that it had computed in the
    epoch keep the scores that they had."""
    ended = run(server, tmp_path, 2, FALL=fall).end(120)
    assert ended.code == 0 and "died in" in ended.err, ended
    (found,), before = results(tmp_path), results(expected)[0]
    died = int(fall.split()[1])
    assert found["history"]["rows_used"][: died + 1] == before["history"]["rows_used"][: died + 1]
    if fall.endswith(" 0"):
        assert differences(before, found) == []
    assert len(table(tmp_path)) == 330 and all(score == score for _, score, _ in table(tmp_path))


@needs("restart")
@pytest.mark.variants(0)
def test_restart(server, expected, tmp_path):
    """The job is started again in the middle of an epoch, with the rows of that epoch, and to the same answer."""
    (tmp_path / "script.py").write_text(SCRIPT)
    line = [sys.executable, str(AGAIN), str(server.path), "2", "--checkpoint-seconds", "0.001"]
    ended = Job([*line, *SETTINGS, "script.py"], tmp_path, DIES=json.dumps([[1, 1, 3, 4]])).end(200)
    assert ended.code == 0 and "restart 1 of 3" in ended.err, ended
    assert [differences(results(expected)[0], found) for found in results(tmp_path)] == [[], []]
    for one, other in zip(table(expected), table(tmp_path), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
