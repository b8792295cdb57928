"""Trainings in which ranks are killed at random: each must end by itself, on the survivors, with the answer of an
undisturbed run. Run by scripts/chaos, and a few by the tests."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import warm
from places import PLACES, RECOVERING

from matex_tf.launch import mpirun_command

SCRIPT = """
import json, os
import numpy as np
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

if "CHAOS" in os.environ:
    import places
    places.prepare()

keras.utils.set_random_seed(3)
x, y = load_digits(return_X_y=True)
x = (x[:900] / 16).astype("float32")
y = y[:900]
norm = keras.layers.BatchNormalization()
wide = [keras.layers.Dense(600, activation="relu") for _ in range(2)]
noise = [keras.layers.GaussianNoise(0.05), keras.layers.Dropout(0.1)]
model = keras.Sequential([keras.Input((64,)), noise[0], wide[0], norm, noise[1], wide[1], keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def confidence(y, logits):  # a metric of the script's own, which could look at weights
    return tf.reduce_max(tf.nn.softmax(logits), axis=1)

metrics = ["accuracy", confidence] if "OWN_METRIC" in os.environ else ["accuracy"]
model.compile(keras.optimizers.SGD(0.05, momentum=0.5), loss, metrics=metrics)
keep = keras.callbacks.ModelCheckpoint("kept.keras")
first = model.fit(x[:600], y[:600], batch_size=50, epochs=2, validation_data=(x[600:], y[600:]), verbose=0,
                  callbacks=[keep])
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(900, seed=1).batch(64)
second = model.fit(data, epochs=2, verbose=0)
result = {
    "first": first.history,
    "second": second.history,
    "evaluate": model.evaluate(x, y, verbose=0),
    "predict": [float(v) for v in np.abs(model.predict(x, verbose=0)).sum(0)],
    "kept": float(sum(np.abs(w).sum() for w in keras.models.load_model("kept.keras", compile=False).get_weights())),
}
for part in result.values():
    if isinstance(part, dict):
        part.pop("world_size", None)
with open(f"result.{os.environ.get('OMPI_COMM_WORLD_RANK', '')}", "w") as file:
    json.dump(result, file)
"""

SECONDS = 300  # in which a training must have ended
TOLERANCE = 1e-5


@dataclass
class Run:
    """One training: who was to die where, and what came of it."""

    number: int
    ranks: int
    deaths: list[dict[str, Any]]
    failures: list[str] = field(default_factory=list)
    died: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    flags: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan = ", ".join(f"rank {d['rank']} at {d['place']} {d['count']}" for d in self.deaths)
        how = " ".join([f"{self.ranks} ranks", *self.flags])
        return f"run {self.number}: {how}; {plan}; {self.died} died; {self.seconds:.1f} s"


def plan(number: int, seed: int) -> Run:
    """A run: 4 to 6 ranks, one to three deaths, a third of them on rank 0."""
    chance = random.Random(f"{seed} {number}")
    ranks = chance.randint(4, 6)
    victims = random.Random(f"{seed} {number} who").sample(range(1, ranks), chance.randint(1, 3))
    if chance.random() < len(victims) / 3:
        victims[chance.randrange(len(victims))] = 0
    deaths = []
    for order, rank in enumerate(victims):
        kind = chance.choice(["time", "place", "place", *(["recovering"] if order else [])])
        place, count = "time", 0
        if kind == "place":
            place = chance.choice([name for name in PLACES if rank == 0 or name != "writing"])
            count = chance.randint(1, PLACES[place][1])
        elif kind == "recovering":
            place, count = chance.choice(list(RECOVERING)), 1
        if place == "settling":
            count = 2  # the first is the start
        delay, after = chance.choice([0, 0, chance.random() / 4]), chance.uniform(0, 6)
        deaths.append({"rank": rank, "place": place, "count": count, "delay": delay, "after": after})
    return Run(number, ranks, deaths)


def sharded(run: Any) -> Any:
    """The same run with something in parts on the ranks, of which as many ranks have copies as may die at once."""
    kind = ("state", "weights", "gradients")[(run.number + run.number // 3) % 3]  # each with each kind of `chaos_hosts`
    run.flags = ["--shard", kind, "--shard-copies", "3"]
    return run


def undisturbed(folder: Path, server: warm.Client) -> list[dict[str, Any]]:
    """What the script gives on one rank: for runs of even numbers, and for those of odd ones."""
    (folder / "train.py").write_text(SCRIPT)
    results = []
    for number in range(2):
        command = [*warm.command(server.path), "train.py"]
        subprocess.run(command, cwd=folder, check=True, env=_environ(**kind(number)), timeout=SECONDS)
        results.append(json.loads((folder / "result.").read_text()))
    return results


def kind(number: int) -> dict[str, str]:
    """What every second training has: a metric for which a step is counted behind its update of the weights."""
    return {"OWN_METRIC": "1"} if number % 2 else {}


def _environ(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MATEX_", "OMP_", "TF_", "OMPI_"))
    }
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", **more}


def execute(run: Run, expected: list[dict[str, Any]], server: warm.Client) -> Run:
    """Train once; what is amiss is in `run.failures`.

    Args:
        expected: see `undisturbed`.
    """
    folder = Path(tempfile.mkdtemp(prefix="matex-chaos-"))
    (folder / "train.py").write_text(SCRIPT)
    shutil.copy(Path(__file__).with_name("places.py"), folder)
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), run.ranks, survive=True)
    command = [*line, *warm.command(server.path), "--faults", "shrink", "--bucket-mb", "1", *run.flags, "train.py"]
    segments = set(os.listdir("/dev/shm"))
    begin = time.monotonic()
    with open(folder / "log", "wb") as log:
        environ, nothing = _environ(CHAOS=json.dumps(run.deaths), **kind(run.number)), subprocess.DEVNULL
        job = subprocess.Popen(
            command, cwd=folder, env=environ, stdin=nothing, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _kill_in_time(run, folder, job)
            code = job.wait(max(1.0, SECONDS - (time.monotonic() - begin)))
            if code:
                run.failures.append(f"the job ended with code {code}")
        except subprocess.TimeoutExpired:
            run.failures.append(f"still running after {SECONDS} s")
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    run.seconds = time.monotonic() - begin
    _look_for_rests(run, folder, judge(run, folder, expected[run.number % 2]), segments)
    if run.failures:
        print(f"{run}\n  {'; '.join(run.failures)}\n  {folder}\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
    else:
        shutil.rmtree(folder)
    return run


def _kill_in_time(run: Run, folder: Path, job: subprocess.Popen[bytes]) -> None:
    """Kill ranks so many seconds after they have begun."""
    timed = sorted((d for d in run.deaths if d["place"] == "time"), key=lambda death: death["after"])
    begin = None
    limit = time.monotonic() + SECONDS
    while timed and job.poll() is None and time.monotonic() < limit:
        if begin is None and all((folder / f"pid.{rank}").exists() for rank in range(run.ranks)):
            begin = time.monotonic()
        if begin is not None and time.monotonic() - begin >= timed[0]["after"]:
            rank = timed.pop(0)["rank"]
            with contextlib.suppress(ProcessLookupError, ValueError):
                pid = int((folder / f"pid.{rank}").read_text())
                with open(folder / f"died.{rank}", "a", encoding="ascii") as file:
                    file.write(f"{time.time()}\n")
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def judge(run: Run, folder: Path, expected: dict[str, Any]) -> dict[int, float]:
    """Look at answers and files; returns when which rank has died."""
    died = {int(path.suffix[1:]): float(path.read_text().split()[0]) for path in folder.glob("died.*")}
    results = {int(path.suffix[1:]): path for path in folder.glob("result.*")}
    # A rank may have finished before its time had come.
    died = {rank: when for rank, when in died.items() if rank not in results}
    run.died = len(died)
    survivors = set(range(run.ranks)) - set(died)
    if set(results) != survivors:
        run.failures.append(f"results of ranks {sorted(results)}, and {sorted(survivors)} had survived")
    for rank, path in results.items():
        different = differences(expected, json.loads(path.read_text() or "{}"))
        if different:
            run.failures.append(f"rank {rank}: {different[0]}")
    recovered = sorted(float(line) for path in folder.glob("recovered.*") for line in path.read_text().split())
    for when in sorted(died.values()):
        after = [moment for moment in recovered if moment >= when]
        if after:
            run.recovery_seconds.append(after[0] - when)
    half = [path.name for path in folder.iterdir() if "kept" in path.name and path.name != "kept.keras"]
    if half:
        run.failures.append(f"files are left: {half}")
    return died


def _look_for_rests(run: Run, folder: Path, died: dict[int, float], segments: set[str]) -> None:
    for path in folder.glob("pid.*"):
        if Path(f"/proc/{path.read_text()}").exists() and int(path.suffix[1:]) not in died:
            time.sleep(0.5)
            if Path(f"/proc/{path.read_text()}").exists():
                run.failures.append(f"process {path.read_text()} of rank {path.suffix[1:]} is left")
    left = [name for name in set(os.listdir("/dev/shm")) - segments if name.startswith(f"matex-{os.getuid()}-")]
    if left:
        run.failures.append(f"shared memory is left: {left}")


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where two results differ by more than `TOLERANCE`, relative."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or expected.keys() != found.keys():
            return [f"{where}: {found} for {list(expected)}"]
        return [text for key in expected for text in differences(expected[key], found[key], f"{where} {key}")]
    if np.shape(expected) != np.shape(found):
        return [f"{where}: {found} for {expected}"]
    if np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        return []
    return [f"{where}: {found} for {expected}"]


def main() -> int:
    """Many runs, and a summary."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--hosts", action="store_true", help="on 3 emulated hosts with 2 ranks each (needs root)")
    parser.add_argument("--shard", action="store_true", help="with slots, sums or weights in parts on the ranks")
    parser.add_argument("--joins", action="store_true", help="ranks also come (matex-tf join), or are stopped for 5 s")
    options = parser.parse_args()
    import chaos_hosts
    import chaos_joins

    with tempfile.TemporaryDirectory() as folder, warm.Server(Path(folder) / "socket") as server:
        expected: Any = chaos_joins.undisturbed(Path(folder)) if options.joins else undisturbed(Path(folder), server)
        runs: list[Any] = []
        for number in range(options.first, options.first + options.runs):
            module: Any = chaos_joins if options.joins else chaos_hosts if options.hosts else sys.modules[__name__]
            run = module.plan(number, options.seed)
            run = sharded(run) if options.shard else run
            if options.joins:
                chaos_joins.execute(run, options.seed, expected)
            elif options.hosts:
                chaos_hosts.execute(run, expected)
            else:
                execute(run, expected, server)
            print(("FAILED " if run.failures else "ok     ") + str(run), flush=True)
            runs.append(run)
    failed = [run.number for run in runs if run.failures]
    times = sorted(seconds for run in runs for seconds in run.recovery_seconds)
    print(f"{len(runs)} runs, {sum(run.died for run in runs)} deaths, {len(failed)} failed {failed or ''}")
    if options.joins:
        waited = sorted(seconds for run in runs for seconds in run.waited)
        worst = f"the job waited {statistics.median(waited):.2f} s, worst {waited[-1]:.2f} s" if waited else ""
        print(f"seed {options.seed}: {sum(run.came for run in runs)} ranks came; {worst}")
    if times:
        print(
            f"recovery, from the death to the first survivor's next step: median {statistics.median(times):.2f} s, "
            f"nine in ten {times[int(0.9 * (len(times) - 1))]:.2f} s, worst {times[-1]:.2f} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
