"""Trainings to which ranks come while others are killed or stopped, at random: each must end by itself, with the answer
of one rank. Run by scripts/chaos --joins, and a few by the tests."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

#: Trains until a file says that all has happened, and then an epoch more; alone, as many epochs as its argument says.
#: In double precision, in which a row that is used twice, or not, is no rounding error.
SCRIPT = """
import json, os, sys, time
import keras, numpy as np, tensorflow as tf, matex_tf
from matex_tf.core.row_partition import Interleaving

if os.path.exists("dies") and matex_tf.size() == 1:
    os.kill(os.getpid(), 9)
keras.utils.set_random_seed(3)
keras.backend.set_floatx("float64")
kind, epochs = sys.argv[1], int(sys.argv[2])
own = kind.startswith("DataSet")  # of which rows change places in batches
x = np.random.rand(150, 6)
y = (x.sum(1) > 3).astype("float64")
model = keras.Sequential([keras.layers.Dense(64, "tanh"), keras.layers.BatchNormalization(),
                          keras.layers.Dropout(0.0 if own else 0.3), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.003), "mse", metrics=["mae"])
first = model.fit(x, y, batch_size=16, epochs=1, verbose=0).history if kind == "later fit" else {}
epochs_before = []


class Note(keras.callbacks.Callback):
    seen = False

    def on_train_batch_end(self, batch, logs=None):
        with open("begun", "w") as file:
            file.write(str(matex_tf.size()))
        time.sleep(0.05 if epochs == 1000 else 0)

    def on_epoch_end(self, epoch, logs=None):
        epochs_before.append([float(np.abs(weight).sum()) for weight in self.model.get_weights()])
        self.model.stop_training = self.seen
        if epochs == 1000:
            self.seen = matex_tf.init().broadcast(os.path.exists("over"), "see whether all has happened")


pairs = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40, seed=5).batch(16)
data = {"x": pairs} if kind == "tf.data" else {"x": x, "y": y, "batch_size": 16}
if own and epochs == 1000:
    np.savez("rows.npz", x=x, y=y)
    rows = matex_tf.DataSet.open("rows.npz", x="x", y="y")
    data |= {"x": rows.data, "y": rows.labels, "shuffle": False}
elif own:  # the batches of so many ranks
    ranks = int(kind.split()[1])
    order = Interleaving([150 // ranks] * ranks).order(16)
    data |= {"x": x[order], "y": y[order], "shuffle": False}
history = model.fit(**data, epochs=epochs, verbose=0, callbacks=[Note()], validation_data=(x[:30], y[:30])).history
sizes = history.pop("world_size", [])
rows = [[*values, *sums] for *values, sums in zip(*history.values(), epochs_before)]
with open("result", "w") as file:
    json.dump({"epochs": rows, "sizes": sizes, "evaluate": model.evaluate(x, y, verbose=0)}, file, default=float)
"""

KINDS = ("arrays", "tf.data", "later fit", "DataSet")
RANKS = 2, 3  # that begin a run
SECONDS = 420  # in which a training must have ended
STOPPED = 5.0  # seconds for which a rank is stopped
MOST_EPOCHS = 400  # that one rank is asked for
TOLERANCE = 1e-7


@dataclass
class Run:
    """One training: what is to happen to it, and what came of it.

    Attributes:
        events: each a word, and seconds after the one before.
    """

    number: int
    kind: str
    ranks: int
    events: list[tuple[str, float]]
    failures: list[str] = field(default_factory=list)
    died: int = 0
    came: int = 0
    waited: list[float] = field(default_factory=list)
    seconds: float = 0.0
    recovery_seconds: list[float] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan = ", ".join(f"{what} +{after:.1f} s" for what, after in self.events)
        where = " ".join([f"{self.kind}, {self.ranks} ranks", *self.flags])
        return f"run {self.number}: {where}; {plan}; {self.died} died, {self.came} came; {self.seconds:.1f} s"


def plan(number: int, seed: int) -> Run:
    """A run: on 2 or 3 ranks, two to four events, of which one at least is a rank that comes."""
    chance = random.Random(f"{seed} {number} joins")
    events = ["join", *chance.choices(["join", "kill", "kill", "stop"], k=chance.randint(1, 3))]
    chance.shuffle(events)
    timed = [(what, chance.choice([chance.uniform(0, 2), chance.uniform(2, 30)])) for what in events]
    kind, ranks = KINDS[number % len(KINDS)], chance.randint(*RANKS)
    return Run(number, f"DataSet {ranks}" if kind == "DataSet" else kind, ranks, timed)


def undisturbed(folder: Path) -> dict[str, dict[str, Any]]:
    """What the script gives on one rank, of each kind, after each epoch."""
    (folder / "train.py").write_text(SCRIPT)
    found = {}
    for kind in (*KINDS[:-1], *(f"{KINDS[-1]} {ranks}" for ranks in RANKS)):
        command = [sys.executable, "-m", "matex_tf", "--seed", "1", "train.py", kind, str(MOST_EPOCHS)]
        subprocess.run(command, cwd=folder, check=True, env=_environ(), timeout=SECONDS)
        found[kind] = json.loads((folder / "result").read_text())
    return found


def _environ() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MATEX_", "OMP_", "TF_", "OMPI_"))
    }
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}


def execute(run: Run, seed: int, expected: dict[str, dict[str, Any]]) -> Run:
    """Train once; what is amiss is in `run.failures`. Args: expected: see `undisturbed`."""
    folder = Path(tempfile.mkdtemp(prefix="matex-chaos-"))
    (folder / "train.py").write_text(SCRIPT)
    (folder / "state").mkdir(mode=0o700)
    launcher = str(Path(sys.executable).with_name("matex-tf"))
    words = ["run", "-n", str(run.ranks), "--faults", "shrink", "--seed", "1", "--watch-dir", str(folder / "state")]
    segments, begin = set(os.listdir("/dev/shm")), time.monotonic()
    with open(folder / "log", "wb") as log:
        job = subprocess.Popen(
            [launcher, *words, *run.flags, "train.py", run.kind, "1000"],
            cwd=folder, env=_environ(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            _disturb(run, random.Random(f"{seed} {run.number} who"), folder, job, launcher)
            code = job.wait(max(1.0, SECONDS - (time.monotonic() - begin)))
            if code:
                run.failures.append(f"the job ended with code {code}")
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            run.failures.append(f"still running after {SECONDS} s ({error})")
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    run.seconds = time.monotonic() - begin
    _judge(run, folder, expected[run.kind])
    if left := [name for name in set(os.listdir("/dev/shm")) - segments if name.startswith(f"matex-{os.getuid()}-")]:
        run.failures.append(f"shared memory is left: {left}")
    if run.failures:
        print(f"{run}\n  {'; '.join(run.failures)}\n  {folder}\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
    else:
        shutil.rmtree(folder)
    return run


def _ranks(job: subprocess.Popen[bytes]) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The processes of ranks that began the job, and of those that come or have come."""
    began, come = [], []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(job.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words[1:3] == ["-m", "matex_tf.features.join.newcomer"]:
                    come.append(process)
                elif words[1:3] == ["-m", "matex_tf"]:
                    began.append(process)
    return began, come


def _disturb(run: Run, chance: random.Random, folder: Path, job: subprocess.Popen[bytes], launcher: str) -> None:
    """Let all that is planned happen, and then the job end."""
    limit, joins = time.monotonic() + SECONDS / 2, []
    file = None
    while file is None or not (folder / "begun").exists():
        file = next((folder / "state" / "matex_tf" / "jobs").glob("*.json"), None)
        if job.poll() is not None or time.monotonic() > limit:
            raise TimeoutError("it has not begun")
        time.sleep(0.05)
    for what, after in run.events:
        time.sleep(after)
        began, come = _ranks(job)
        if what == "join":
            command = [launcher, "join", str(file), "-n", "1"]
            joins.append(
                subprocess.Popen(command, cwd=folder, env=_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            )
        elif what == "stop" and began + come:
            victim = chance.choice(began + come)
            with contextlib.suppress(psutil.Error):
                victim.suspend()
                time.sleep(STOPPED)
                victim.resume()
        elif what == "kill" and (victims := come + began * (len(began) > 1)):
            with contextlib.suppress(psutil.Error):
                chance.choice(victims).kill()
                run.died += 1
    for one in joins:
        said = one.communicate(timeout=SECONDS / 2)[0].decode(errors="replace")
        if one.returncode == 0:
            run.came += 1
            run.waited.append(float(said.split("the job has waited ")[1].split()[0]))
        elif not run.died:
            run.failures.append(f"a rank did not come: {said.strip()}")
    (folder / "over").touch()


def _judge(run: Run, folder: Path, expected: dict[str, Any]) -> None:
    """Compare each epoch with that of one rank."""
    try:
        result = json.loads((folder / "result").read_text())
    except (OSError, ValueError) as error:
        run.failures.append(f"there is no result ({error})")
        return
    epochs = len(result["epochs"])
    wrong = [
        number
        for number, (mine, one) in enumerate(zip(result["epochs"], expected["epochs"], strict=False), 1)
        if not np.allclose(mine, one, rtol=TOLERANCE, atol=TOLERANCE)
    ]
    if wrong:
        number = wrong[0]
        run.failures.append(
            f"epoch {number} of {epochs} has {result['epochs'][number - 1]} and not {expected['epochs'][number - 1]}; "
            f"ranks {result['sizes']}"
        )
    if epochs > len(expected["epochs"]):
        run.failures.append(f"{epochs} epochs were trained, of which {MOST_EPOCHS} could be compared")
