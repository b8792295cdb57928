"""Trainings with Keras in an emulated Slurm cluster: time limits, requeues, job arrays, the script of the docs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from slurm_jobs import Batch, needs_slurm

pytestmark = pytest.mark.timeout(400)

DOCS = Path(__file__).parents[2] / "docs"

#: Trains; the answer depends on the number in the job array. In the first run of a job under Slurm each step takes a
#: while from the second epoch on, so that the job is not over before Slurm or the test has ended it.
TRAIN = """
import json, os, time
from pathlib import Path
import keras, numpy as np
number, rank = os.environ.get("SLURM_ARRAY_TASK_ID", ""), os.environ.get("SLURM_PROCID", "0")
first = "SLURM_JOB_ID" in os.environ and not os.path.exists(f"again{number}")
keras.utils.set_random_seed(1 + int(number or 0))
x = np.random.RandomState(0).rand(400, 8).astype("float32")
y = (x @ np.arange(8) > 14).astype("int32")
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
class Slow(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if self.epoch >= 1 and first:
            Path(f"ready{number}.{os.getpid()}").touch()
            time.sleep(0.5)
history = model.fit(x, y, batch_size=2, epochs=3, verbose=0, callbacks=[Slow()]).history
Path(f"result{number}.json").write_text(json.dumps(history["loss"]))
"""


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster.Cluster(2, cpus=2) as made:
        yield made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def alone(folder: Path, number: str = "") -> list[float]:
    """The losses of one process, by Python alone."""
    line = ["env", "-u", "SLURM_JOB_ID", f"SLURM_ARRAY_TASK_ID={number}", "PYTHONHASHSEED=0", sys.executable]
    subprocess.run([*line, str(folder / "train.py")], cwd=folder, check=True, capture_output=True)
    return losses(folder, number)


def losses(folder: Path, number: str = "") -> list[float]:
    """Those that a job has left."""
    return json.loads((folder / f"result{number}.json").read_text())


def expect(folder: Path, number: str = "") -> None:
    """The losses are those of one process."""
    found = losses(folder, number)
    assert found == pytest.approx(alone(folder, number), rel=1e-5)


@needs_slurm
def test_the_script_of_the_docs(cluster, folder):
    """The loop in docs/slurm.md: a rank is killed, then the job queued again; the losses are those of one process."""
    page = (DOCS / "slurm.md").read_text()
    script = next(block for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) if "for attempt in" in block)
    script = script.replace("--nodes=4 --ntasks-per-node=8", "--nodes=2 --ntasks-per-node=1").replace(
        "python", sys.executable
    )
    assert "--nodes=2" in script and sys.executable in script
    (folder / "job.sh").write_text(script.replace("--resume on", "--resume on --seed 4 --checkpoint-seconds 1"))
    batch = Batch(cluster, folder, ["sbatch", "--parsable", "--output=out", "job.sh"])
    batch.await_files("checkpoints-*/.matex-checkpoints/train/fit-*", 2)
    batch.kill_rank("h2")
    batch.await_words("training continues at step")
    (folder / "again").touch()
    cluster.ask("scontrol", "requeue", batch.number)
    batch.await_requeue()
    state = batch.end(150)
    said = batch.said()
    assert state["JobState"] == "COMPLETED" and state["Restarts"] == "1", (state, said)
    assert said.count("training continues at step") == 2, said
    expect(folder)
