"""`--faults restart`: when a rank dies the job starts again and ends with the answer of one in which none died."""

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import foreign
import pytest
import restart_scripts
import warm
from chaos import differences
from jobs import LAUNCHER, Ended, Job
from there import needs_keras_2

from matex_tf.features.restart.checkpoints import Checkpoints

pytestmark = pytest.mark.timeout(600)

AGAIN = Path(__file__).parents[2] / "support" / "again.py"
MARKS = ["job.begun", "job.over", "job.seed"]


def run(server: warm.Client, folder: Path, ranks: int, *settings: str, dies: object = (), **environ: str) -> Ended:
    """Run script.py of a folder, with checkpoints as often as can be."""
    return start(server, folder, ranks, *settings, dies=dies, **environ).end(200)


def start(server: warm.Client, folder: Path, ranks: int, *settings: str, dies: object = (), **environ: str) -> Job:
    line = [sys.executable, str(AGAIN), str(server.path), str(ranks), "--seed", "5", "--checkpoint-seconds", "0.001"]
    return Job([*line, *settings, "script.py"], folder, DIES=json.dumps(dies), **environ)


def alone(server: warm.Client, folder: Path) -> dict:
    """What script.py gives on one rank, without matex_tf's help."""
    folder.mkdir()
    (folder / "script.py").write_text((folder.parent / "script.py").read_text())
    ended = Job([*warm.command(server.path), "--seed", "5", "script.py"], folder).end(100)
    assert ended.code == 0, ended
    return json.loads((folder / "result.").read_text())


def results(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result.*"))]


def test_in_the_middle_of_an_epoch(server, tmp_path):
    """A rank dies in the first fit, rank 0 in the second: losses, History, weights, logs are those of one rank."""
    (tmp_path / "script.py").write_text(restart_scripts.TWO_FITS)
    expected = alone(server, tmp_path / "alone")
    theirs = foreign.fill(tmp_path / "results")
    ended = run(server, tmp_path, 3, "--checkpoint-dir", "results", dies=[[1, 1, 1, 4], [0, 2, 2, 3]])
    assert ended.code == 0, ended
    assert [differences(expected, found) for found in results(tmp_path)] == [[], [], []]
    for line in (
        *("rank 1 on ", "restart 1 of 3, with 3 ranks", " of fit 1, "),
        *("rank 0 on ", "restart 2 of 3", "fit 1 was complete", " of fit 2, ", "s after the death"),
    ):
        assert line in ended.err, ended.err
    assert foreign.found(tmp_path / "results") == theirs


@pytest.mark.variants(0)
def test_what_is_kept(server, tmp_path, first_of):
    """Everything that a training goes on with: of callbacks, layers, optimizers, pipelines."""
    (tmp_path / "script.py").write_text(restart_scripts.FEATURES)
    assert run(server, tmp_path, 3).code == 0
    expected = results(tmp_path)
    deaths = {"rows": [0, 1, 2, 7], "steps": [2, 2, 1, 6], "eager": [1, 3, 2, 3], "first epoch": [2, 1, 0, 7]}
    dies = sorted(first_of(deaths, 2).values(), key=lambda death: death[1:])
    ended = run(server, tmp_path, 3, "--max-restarts", "4", dies=dies)
    assert ended.code == 0 and f"restart {len(dies)} of 4" in ended.err, ended
    assert "made by one rank, in turn" in ended.err, ended.err  # of a PyDataset, also where training goes on
    for before, found in zip(expected, results(tmp_path), strict=True):
        assert differences(before, found) == []


@pytest.mark.variants(0)
@needs_keras_2()
def test_keras_2(server, tmp_path):
    """The same with Keras 2: rank 0 dies in the second fit, on two ranks."""
    script = restart_scripts.TWO_FITS.replace("np, keras", "np, tf_keras as keras")
    (tmp_path / "script.py").write_text(script.replace(", seed=1)", ", seed=1, reshuffle_each_iteration=True)"))
    expected = alone(server, tmp_path / "alone")
    ended = run(server, tmp_path, 2, dies=[[1, 1, 1, 4], [0, 2, 2, 3]])
    assert ended.code == 0, ended
    assert [differences(expected, found) for found in results(tmp_path)] == [[], []]
    for line in ("restart 2 of 3", " of fit 1, ", "fit 1 was complete", " of fit 2, "):
        assert line in ended.err, ended.err


def test_max_restarts_and_resume(server, tmp_path):
    """The job ends with the code of the death and what to do; by hand it goes on, from the older checkpoint where the
    newest is damaged, on one rank too."""
    (tmp_path / "script.py").write_text(restart_scripts.TWO_FITS)
    expected = alone(server, tmp_path / "alone")
    results_in = tmp_path / "results"
    theirs = foreign.fill(results_in)
    settings = ["--max-restarts", "0", "--checkpoint-dir", "results"]
    ended = run(server, tmp_path, 3, *settings, dies=[[2, 1, 2, 5]])
    assert ended.code != 0 and "0 restarts were allowed" in ended.err, ended
    assert ended.err.count("the same command with --resume on continues from") == 1, ended
    assert foreign.found(results_in).items() > theirs.items()
    store = Checkpoints(results_in, "script.py", True, print)
    newest, older = store.places(1)
    path = store.path / newest.name
    path.write_bytes(path.read_bytes()[:-100])
    for path in tmp_path.glob("result.*"):
        path.unlink()
    ended = run(server, tmp_path, 1, *settings, "--resume", "on")
    assert foreign.found(results_in) == theirs
    assert ended.code == 0 and f"continues at {older}" in ended.err and "an older one is used" in ended.err, ended
    assert [differences(expected, found) for found in results(tmp_path)] == [[]]


@pytest.mark.variants(0)
def test_weights_in_parts(server, tmp_path):
    """Weights and slots that lay in parts on two ranks when one died lie in parts on three that go on, or whole on
    one: the answer of one rank."""
    in_parts = "from matex_tf.patches.shards.variable import of\n    assert any(map(of, model.weights))"
    check = f"if rank and os.environ['OMPI_COMM_WORLD_SIZE'] != '1':\n    {in_parts}\nbetween ="
    script = restart_scripts.TWO_FITS.replace("Dense(16", "Dense(64").replace("between =", check)
    job = tmp_path / "job"
    job.mkdir()
    for folder in (tmp_path, job):
        (folder / "script.py").write_text(script)
    expected = alone(server, tmp_path / "alone")
    settings = ["--max-restarts", "0", "--checkpoint-dir", "kept", "--shard", "weights"]
    ended = run(server, job, 2, *settings, dies=[[1, 1, 1, 4]])
    assert ended.code != 0 and "--resume on continues from" in ended.err, ended
    for ranks in (3, 1):
        again = Path(shutil.copytree(job, tmp_path / f"on_{ranks}"))
        ended = run(server, again, ranks, *settings, "--resume", "on")
        assert ended.code == 0 and " of fit 1" in ended.err, ended
        assert [differences(expected, found) for found in results(again)] == [[]] * ranks


def test_errors_are_not_restarted(server, tmp_path):
    """An exception of the script ends the job; another model than that of the checkpoint is an error in words."""
    (tmp_path / "script.py").write_text(restart_scripts.ANOTHER)
    theirs = foreign.fill(tmp_path / "results")
    into = ["--checkpoint-dir", "results"]
    ended = run(server, tmp_path, 2, *into)
    assert ended.code == 1 and "an error of the script" in ended.err and "restart 1" not in ended.err, ended
    assert ended.err.count("the same command with --resume on continues from") == 1, ended
    assert foreign.found(tmp_path / "results").items() > theirs.items()
    ended = run(server, tmp_path, 2, *into, "--max-restarts", "0", dies=[[1, 1, 1, 4]])
    assert ended.code not in (0, 1), ended
    ended = run(server, tmp_path, 2, *into, "--resume", "on", UNITS="3")
    assert foreign.found(tmp_path / "results").items() > theirs.items()
    assert ended.code == 1 and "kernel float32 (8, 3) where the checkpoint has kernel float32 (8, 2)" in ended.err
    assert "restart 1" not in ended.err, ended


#: Trains, slowly until `go` is there.
PACED = """
import json, os, time
from pathlib import Path
import keras, numpy as np
keras.utils.set_random_seed(3)
x = np.random.RandomState(0).rand(40, 4).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("adam", "mse")
class Paced(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        Path("trains").write_text("yes")
        if not os.path.exists("go"):
            time.sleep(0.1)  # the signal comes in one of the next steps
history = model.fit(x, x.sum(1), batch_size=2, epochs=8, verbose=0, callbacks=[Paced()]).history
Path("loss").write_text(json.dumps(history["loss"]))
"""


@pytest.mark.variants(1)
@pytest.mark.parametrize("to", ["all", "launcher", "ranks", "SIGUSR1"])
def test_ends_with_a_checkpoint(tmp_path, to):
    """SIGTERM to all processes, the launcher, or all ranks (code 143), and SIGUSR1 to the launcher (code 75): a
    checkpoint is saved and all ranks end. The job goes on from that very step, to the answer of one process."""
    (tmp_path / "script.py").write_text(PACED)
    line = [LAUNCHER, "run", "-n", "2", "--seed", "5", "--faults", "restart", "--checkpoint-seconds", "0"]
    job = Job([*line, "script.py"], tmp_path)
    job.await_file(tmp_path / "trains", 120)
    if to == "SIGUSR1":
        job.process.send_signal(signal.SIGUSR1)
        job.process.send_signal(signal.SIGUSR1)  # which changes nothing
    elif to == "launcher":
        job.process.terminate()
    else:
        all_of_them = [(one, "OMPI_COMM_WORLD_RANK" in one.environ()) for one in job.processes()]
        for one, is_rank in all_of_them:
            if is_rank or to == "all":
                one.terminate()
    ended, name = job.end(100), "SIGUSR1" if to == "SIGUSR1" else "SIGTERM"
    saved = re.search(rf"the checkpoint of (step \d+ of epoch \d+ of fit 1) is saved, .* as {name} asks", ended.err)
    assert ended.code == (75 if to == "SIGUSR1" else 143) and "restart 1" not in ended.err, ended
    assert saved and "--resume on" in ended.err.splitlines()[-1], ended
    assert job.left() == [] and not (tmp_path / "loss").exists()
    (tmp_path / "go").touch()
    ended = Job([*line, "--resume", "on", "script.py"], tmp_path).end(150)
    assert ended.code == 0 and f"training continues at {saved[1]}" in ended.err, ended
    found = json.loads((tmp_path / "loss").read_text())
    alone = Job([sys.executable, "-m", "matex_tf", "--seed", "5", "script.py"], tmp_path).end(150)
    assert alone.code == 0, alone
    assert found == pytest.approx(json.loads((tmp_path / "loss").read_text()), rel=1e-5)


WAITS = """
import time
from pathlib import Path
Path("waits").write_text("now")
time.sleep(60)
"""


def test_ctrl_c(server, tmp_path):
    """The files of others stay where a job is interrupted."""
    (tmp_path / "script.py").write_text(WAITS)
    theirs = foreign.fill(tmp_path / "results")
    job = start(server, tmp_path, 2, "--checkpoint-dir", "results")
    job.await_file(tmp_path / "waits")
    job.process.send_signal(signal.SIGINT)
    ended = job.end(60)
    assert ended.code != 0 and "restart 1" not in ended.err and "--resume on" not in ended.err, ended
    assert foreign.found(tmp_path / "results") == theirs


def test_without_a_launcher(server, tmp_path):
    """Nobody starts the job again: its one rank removes what is its own where it ends well, and nothing where not."""
    theirs = foreign.fill(tmp_path / "results")
    line = [*warm.command(server.path), "--faults", "restart", "--checkpoint-dir", "results"]
    for error in ("raise ValueError", ""):
        (tmp_path / "script.py").write_text(f"{restart_scripts.ONE_FIT}\n{error}")
        ended = Job([*line, "script.py"], tmp_path).end(60)
        found = foreign.found(tmp_path / "results")
        mine = [name.rpartition("/")[2] for name in found.keys() - theirs.keys()]
        assert ended.code == bool(error) and sorted(mine) == ["fit-0001.done", *MARKS] * bool(error), ended
        assert found.items() >= theirs.items()
