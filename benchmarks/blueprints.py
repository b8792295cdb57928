"""Candidates side by side beside KerasTuner's Hyperband, on the same budget of rows trained: accuracy found, seconds.

Both search the same ranges for the same task, the Higgs-like events of examples/decays.py: units 32..512, blocks 1..4,
an activation and a learning rate. `matex-tf grow` goes first; the rows that it has trained are the tuner's budget.
Seeds are run in turn. Times are those of whole commands, from their start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import launching, peers, tables
from benchmarks.apoptosis import tasks

ROOT = Path(__file__).resolve().parents[1]
RANGES = {"units": "32..512", "blocks": "1..4", "activation": ["relu", "gelu"], "rate": "3e-4..1e-2"}
#: As a user would write it: nothing in it knows of candidates.
SCRIPT = """
import sys
import keras
import numpy as np
import matex_tf

data = np.load(sys.argv[1])
values = matex_tf.Blueprint("net.json").values
dense = [keras.layers.Dense(values["units"], activation=values["activation"]) for _ in range(values["blocks"])]
model = keras.Sequential([keras.layers.Input((28,)), *dense, keras.layers.Dense(1, activation="sigmoid")])
auc = keras.metrics.AUC(name="auc")
model.compile(keras.optimizers.Adam(values["rate"]), "binary_crossentropy", metrics=[auc])
best = keras.callbacks.ModelCheckpoint("best.weights.h5", "val_auc", mode="max", save_best_only=True,
                                       save_weights_only=True)
model.fit(data["train_x"], data["train_y"], batch_size=int(sys.argv[3]), epochs=int(sys.argv[2]), verbose=0,
          validation_data=(data["valid_x"], data["valid_y"]), callbacks=[best])
model.load_weights("best.weights.h5")
print("TEST", model.evaluate(data["test_x"], data["test_y"], batch_size=2000, verbose=0)[1])
"""


def tune(path: str, epochs: int, batch: int, seed: int, budget: int) -> None:
    """In the peers' environment: KerasTuner's Hyperband, until so many rows are trained."""
    import keras
    import keras_tuner

    data = np.load(path)
    rows = len(data["train_y"])
    state: dict[str, Any] = {"rows": 0, "best": 0.0, "test": 0.0, "values": {}, "trials": 0}

    class Over(BaseException):
        """The budget is used up."""

    def build(hp: Any) -> Any:
        state["trials"] += 1
        units = hp.Int("units", 32, 512, sampling="log")
        activation = hp.Choice("activation", ["relu", "gelu"])
        dense = [keras.layers.Dense(units, activation=activation) for _ in range(hp.Int("blocks", 1, 4))]
        model = keras.Sequential([keras.layers.Input((28,)), *dense, keras.layers.Dense(1, activation="sigmoid")])
        rate = hp.Float("rate", 3e-4, 1e-2, sampling="log")
        model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
        model.values = dict(hp.values)
        return model

    class Counter(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            state["rows"] += rows
            if logs["val_auc"] > state["best"]:
                state.update(best=float(logs["val_auc"]), values=self.model.values)
                test = self.model.evaluate(data["test_x"], data["test_y"], batch_size=2000, verbose=0)
                state["test"] = float(test[1])
            if state["rows"] >= budget:
                raise Over

    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.Hyperband(
            build, keras_tuner.Objective("val_auc", "max"), max_epochs=epochs, factor=2, seed=seed, directory=folder
        )
        with contextlib.suppress(Over):
            tuner.search(
                data["train_x"], data["train_y"], batch_size=batch, validation_data=(data["valid_x"], data["valid_y"]),
                callbacks=[Counter()], verbose=0,
            )  # fmt: skip
    launching.tell(state)


def main() -> None:
    parser = tables.parser("blueprints", __doc__)
    parser.add_argument("--ranks", type=int, default=2, help="of this package (default 2)")
    parser.add_argument("--candidates", type=int, default=8, help="of the first bracket (default 8)")
    parser.add_argument("--brackets", type=int, default=3, help="of candidates (default 3)")
    parser.add_argument("--rows", type=int, default=60_000, help="of which four fifths are trained (default 60000)")
    parser.add_argument("--epochs", type=int, default=8, help="of a whole training (default 8)")
    parser.add_argument("--batch", type=int, default=500, help="size of a batch (default 500)")
    parser.add_argument("--seeds", type=int, default=3, help="searches of each kind (default 3)")
    parser.add_argument("--draw", metavar="FILE", help="a PNG file: the tree of candidates of the first seed")
    parser.add_argument("--tune", metavar="DATA,SEED,BUDGET", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.tune:
        path, seed, budget = options.tune.split(",")
        return tune(path, options.epochs, options.batch, int(seed), int(budget))
    peers.need(peers.NETWORKS)
    found: dict[str, list[dict[str, Any]]] = {"matex-tf grow": [], "KerasTuner Hyperband": []}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        tasks.TASKS["higgs"].write(data, options.rows)
        (Path(folder) / "net.json").write_text(json.dumps(RANGES))
        (Path(folder) / "train.py").write_text(SCRIPT)
        for seed in range(options.seeds):
            draw = ["--png", str(Path(options.draw).resolve())] if options.draw and not seed else []
            one = grow(folder, data, seed, options, draw)
            found["matex-tf grow"].append(one)
            words = ["-m", "benchmarks.blueprints", "--tune", f"{data},{seed},{one['rows']}"]
            words += ["--epochs", str(options.epochs), "--batch", str(options.batch)]
            found["KerasTuner Hyperband"].append(timed([str(peers.NETWORKS.python), *words], str(ROOT))[0])
            for name, runs in found.items():
                print(f"seed {seed}, {name}: {runs[-1]}", file=sys.stderr, flush=True)
            tables.keep(found)
    show(found, options)


def grow(folder: str, data: Path, seed: int, options: argparse.Namespace, more: Sequence[str]) -> dict[str, Any]:
    """One search of `matex-tf grow`."""
    words = [
        "grow",
        "-n",
        str(options.ranks),
        "--candidates",
        str(options.candidates),
        "--brackets",
        str(options.brackets),
        "--seed",
        str(seed),
        *more,
    ]
    words += ["--json", "found.json", "net.json", "train.py", str(data), str(options.epochs), str(options.batch)]
    result, printed = timed([str(Path(sys.executable).parent / "matex-tf"), *words], folder)
    told = json.loads((Path(folder) / "found.json").read_text())
    best = told["candidates"][0]
    test = next(line.split()[1] for line in printed.splitlines() if line.startswith("TEST"))
    rows = sum(one["rows"] for one in told["candidates"])
    return {**result, "rows": rows, "best": best["scores"][-1], "test": float(test), "values": best["values"],
            "trials": len(told["candidates"])}  # fmt: skip


def timed(line: Sequence[str], folder: str) -> tuple[dict[str, Any], str]:
    """Run a command: what it told, its seconds and those of processors; and what it printed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, errors="replace")
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    told = next((text for text in done.stdout.splitlines() if text.startswith("RESULT ")), "RESULT {}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(told.removeprefix("RESULT ")), "seconds": seconds, "cpu": cpu}, done.stdout


def show(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    rows = []
    for name, runs in found.items():
        row = [name]
        for what, form in (("rows", "{:,.0f}"), ("trials", "{:.0f}"), ("best", "{:.4f}"), ("test", "{:.4f}"),
                           ("seconds", "{:.1f}"), ("cpu", "{:.1f}")):  # fmt: skip
            row.append(form.format(statistics.median(float(run[what]) for run in runs)))
        rows.append(row)
    note = (
        f"{options.rows:,} rows, {options.epochs} epochs, {options.seeds} seeds, medians; {options.ranks} ranks beside"
    )
    tables.show(
        "searches on the same budget of rows",
        ["search", "rows trained", "candidates", "best AUC", "test AUC", "s", "CPU s"],
        rows,
        less=["s", "CPU s"],
        note=f"{note} one process with all cores",
    )


if __name__ == "__main__":
    main()
