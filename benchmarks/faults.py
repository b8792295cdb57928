"""What surviving a rank's death costs: in each step while nothing fails, and once when a rank dies.

cost      a training step with --faults shrink against one with --faults abort, in turn, in one job
recovery  from the death of a rank to the next step that is new, for shrink, for restart, and for what a script with
          BackupAndRestore does under plain mpirun: the job ends, is started again at once, and repeats the epoch
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import launching, tables
from matex_tf.launch import mpirun_command
from matex_tf.planning import plotting

_EPOCHS, _STEPS, _VICTIM = 3, 40, 1
_CHECKPOINT_SECONDS = 1

#: What is compared: title, and colour in the plot.
WAYS = {
    "shrink": ("--faults shrink", "tab:green"),
    "restart": (f"--faults restart --checkpoint-seconds {_CHECKPOINT_SECONDS}", "tab:blue"),
    "backup": ("BackupAndRestore, job started again at once", "tab:gray"),
}

SCRIPT = """
import os, signal, sys, time
import numpy as np, keras

how, death = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(1)
x, y = np.random.RandomState(0).rand(ROWS, 256).astype("float32"), np.arange(ROWS) % 10
layers = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rank = os.environ["OMPI_COMM_WORLD_RANK"]

class Clock(keras.callbacks.Callback):
    epoch = 0
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        if rank == "VICTIM" and self.epoch * STEPS + batch == death and not os.path.exists("died"):
            with open("died", "w") as file:
                file.write(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
    def on_train_batch_end(self, batch, logs=None):
        with open("steps." + rank, "a") as file:
            file.write(f"{self.epoch * STEPS + batch} {time.time()}\\n")

callbacks = [Clock()] + ([keras.callbacks.BackupAndRestore("backup")] if how == "backup" else [])
model.fit(x, y, batch_size=32, epochs=EPOCHS, verbose=0, callbacks=callbacks)
"""


def cost_rank(models: str, steps: int, rounds: int) -> None:
    """A rank of the job that measures what a step costs; rank 0 prints."""
    import tensorflow as tf

    from benchmarks.step import models as known
    from matex_tf import patches
    from matex_tf.core import world
    from matex_tf.faults import transactions

    ranks = world.init()
    patches.install(seed=7)
    guard = transactions.TransactionGuard(ranks, notes=False)
    figures = []
    for name in models.split(","):
        x, y = known.rows(name, known.BATCH[name] * ranks.size)
        ways: dict[str, Any] = {}
        for way, wanted in (("abort", None), ("shrink", guard)):
            ranks.guard = wanted
            model = known.in_keras(name)
            known.compile_keras(model)
            batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
            ways[way] = model.make_train_function(), batches, wanted
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, (function, batches, wanted) in ways.items():
                ranks.guard = wanted
                ranks.barrier("begin a round")
                begin = time.perf_counter()
                for _ in range(steps):
                    function(batches)
                mean = (time.perf_counter() - begin) / steps
                seconds[way].append(max(ranks.allgather(mean, "compare steps")))
        ratios = [b / a for a, b in zip(seconds["abort"][1:], seconds["shrink"][1:], strict=True)]
        medians = {way: statistics.median(values[1:]) * 1e3 for way, values in seconds.items()}
        figures.append({"model": name, "ranks": ranks.size, **medians, "ratio": statistics.median(ratios),
                        "spread": [min(ratios), max(ratios)]})  # fmt: skip
    ranks.guard = None
    if ranks.rank == 0:
        launching.tell(figures)
    ranks.barrier("end")
    os._exit(0)


def cost(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a step with either setting."""
    words = ["-m", "benchmarks.faults", "--as-rank", "--models", options.models, "--steps", str(options.steps)]
    words += ["--rounds", str(options.rounds)]
    return list(launching.on_ranks(options.ranks, words, survive=True, environ={"TF_CPP_MIN_LOG_LEVEL": "3"}))


def recovery(how: str, ranks: int, death: int) -> dict[str, Any]:
    """Kill a rank in the middle of a training; what that costs.

    Args:
        how: one of `WAYS`.
        death: the step in which it dies.
    """
    with tempfile.TemporaryDirectory(prefix="matex-bench-") as name:
        folder = Path(name)
        script = SCRIPT
        for word, number in (("ROWS", 32 * _STEPS), ("STEPS", _STEPS), ("EPOCHS", _EPOCHS), ("VICTIM", _VICTIM)):
            script = script.replace(word, str(number))
        (folder / "train.py").write_text(script)
        settings = ["--faults", "abort" if how == "backup" else how]
        if how == "restart":
            line = [str(Path(sys.executable).with_name("matex-tf")), "run", "-n", str(ranks)]
            settings += ["--checkpoint-seconds", str(_CHECKPOINT_SECONDS)]
        else:
            line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, survive=how == "shrink")
            line += [sys.executable, "-m", "matex_tf"]
        command = [*line, *settings, "train.py", how, str(death)]
        jobs = 0
        while jobs == 0 or (how == "backup" and jobs == 1):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
            jobs += 1
        if done.returncode:
            sys.exit(f"the training failed:\n{done.stderr[-4000:]}")
        died = float((folder / "died").read_text())
        timed = [line.split() for line in (folder / "steps.0").read_text().splitlines()]
        steps = [(int(step), float(when)) for step, when in timed]
    before = [step for step, when in steps if when < died]
    usual = statistics.median(np.diff([when for _, when in steps if when < died][1:]))
    caught_up = next(when for step, when in steps if when > died and step > max(before))
    repeated = sum(when > died and step <= max(before) for step, when in steps)
    return {"how": how, "seconds": caught_up - died - usual, "steps_repeated": repeated, "step_seconds": usual}


def main() -> None:
    parser = tables.parser("faults", __doc__)
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks of the cost (default 2)")
    parser.add_argument("--models", default="lenet,mlp", help="default lenet,mlp")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round (default 10)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count (default 9)")
    parser.add_argument("--deaths", type=int, default=3, help="trainings in which a rank dies, each way (default 3)")
    parser.add_argument("--plot", help="draw the recoveries into this file")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.as_rank:
        cost_rank(options.models, options.steps, options.rounds)
    costs, rows = cost(options), []
    for figure in costs:
        low, high = figure["spread"]
        cells = [f"{figure['abort']:.2f}", f"{figure['shrink']:.2f}", f"{figure['ratio']:.3f}"]
        rows.append([figure["model"], *cells, f"{low:.3f} to {high:.3f}"])
    tables.show(
        f"a step on {options.ranks} ranks while nothing fails",
        ["model", "abort, ms", "shrink, ms", "shrink / abort", "spread"],
        rows,
        less=["shrink / abort"],
        spreads={"shrink / abort": "spread"},
        note=f"median of {options.rounds} rounds",
    )
    chance = np.random.RandomState(1)
    deaths = [int(death) for death in chance.randint(_STEPS // 4, (_EPOCHS - 1) * _STEPS, options.deaths)]
    recoveries = [recovery(how, 4, death) for death in deaths for how in WAYS]
    rows = []
    for how, (title, _) in WAYS.items():
        mine = [one for one in recoveries if one["how"] == how]
        seconds = [one["seconds"] for one in mine]
        repeated = statistics.median(one["steps_repeated"] for one in mine)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        rows.append([title, f"{statistics.median(seconds):.2f}", spread, f"{repeated:g}"])
    tables.show(
        "a rank of 4 dies: what is lost",
        ["with", "seconds", "spread", "steps repeated"],
        rows,
        less=["seconds"],
        spreads={"seconds": "spread"},
        note=f"once in each of {options.deaths} trainings",
    )
    tables.keep({"cost": costs, "recovery": recoveries})
    if options.plot:
        draw(recoveries, options.plot)


def draw(recoveries: list[dict[str, Any]], path: str) -> None:
    """Seconds lost, each way."""
    pyplot = plotting.pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 2.4), layout="constrained")
    for place, (how, (_, colour)) in enumerate(WAYS.items()):
        seconds = [one["seconds"] for one in recoveries if one["how"] == how]
        axes.barh(place, statistics.median(seconds), color=colour)
        axes.plot(seconds, [place] * len(seconds), "k.")
    axes.set_yticks(range(len(WAYS)), [title for title, _ in WAYS.values()])
    axes.set_xlabel("seconds from the death of a rank to the next new step")
    figure.savefig(path, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
