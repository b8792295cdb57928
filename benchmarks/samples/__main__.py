"""Rows that wait (`--prune-samples`): rows left out, CPU seconds saved and accuracy, beside all rows and random ones.

Each network is trained with each seed in each way, in turn: plain Keras on all rows; InfoBatch (`loss`); rows left out
by loss without scaled gradients; as many rows left out at random, others in each epoch; a subset of as many rows, the
same in all epochs; and all rows, with scores. CPU seconds are those from the beginning of the first epoch to the end of
the last one; the graph of a step has been traced before.

Each seed has a process of its own, so seeds may be run in several commands: the last one gets the others' files.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import launching, tables
from benchmarks.samples import cost
from benchmarks.samples.tasks import TASKS, Task
from benchmarks.samples.train import FIRST, OURS, SUBSET, WAYS

#: By way, then by seed, what `train.measure` has told.
Found = dict[str, dict[int, dict[str, float]]]


def main() -> None:
    parser = tables.parser("samples", __doc__)
    parser.add_argument("--tasks", default=",".join(TASKS), help="with commas between: " + ", ".join(TASKS))
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas between: " + ", ".join(WAYS))
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each way (default 5)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    before = "of --json, of the same trainings with other seeds: they are not run again"
    parser.add_argument("--with", dest="before", metavar="FILE", nargs="*", default=[], help=before)
    parser.add_argument("--rate", type=float, default=0, help="of --prune-samples (default: the task's)")
    parser.add_argument("--epochs", type=int, default=0, help="of each training (default: the task's)")
    parser.add_argument("--cost", type=int, metavar="ROWS", help="memory and CPU time of the scores of so many rows")
    options = tables.parse(parser)
    if options.cost:
        cost.show(options.cost)
        return
    ways = options.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        sys.exit(f"scripts/bench samples: there is no way {unknown[0]}; there is {', '.join(WAYS)}.")
    if FIRST not in ways or (SUBSET in ways and OURS not in ways):
        sys.exit(f"scripts/bench samples: --ways needs {FIRST!r}, to compare with, and {OURS!r} for {SUBSET!r}.")
    figures: dict[str, dict[str, Any]] = {}
    rows = []
    for name in options.tasks.split(","):
        task = TASKS[name]
        epochs, rate = options.epochs or task.epochs, options.rate or task.rate
        found = earlier(name, {"epochs": epochs, "rate": rate}, options.before)
        figures[name] = {"epochs": epochs, "rate": rate, "found": found}
        for seed in range(options.first, options.first + options.seeds):
            if any(seed not in found.get(way, {}) for way in ways):
                for way, one in run(name, seed, epochs, rate, ways).items():
                    found.setdefault(way, {})[seed] = one
                    print(f"{name}, seed {seed}, {way}: {one}", file=sys.stderr, flush=True)
                tables.keep({"tasks": figures})
        rows += [line(task, rate, way, found) for way in ways]
    tables.keep({"tasks": figures})
    columns = ["network", "rows", "left out", "CPU seconds", "of all rows", "accuracy %", "spread", "difference"]
    seeds = max(len(by_seed) for of_task in figures.values() for by_seed in of_task["found"].values())
    note = f"{seeds} seeds; spread: the standard deviation among seeds"
    tables.show("training on fewer rows", columns, rows, labels=2, less=["CPU seconds", "of all rows"], note=note)


def earlier(name: str, how: Mapping[str, float], paths: list[str]) -> Found:
    """What files have of a task."""
    found: Found = {}
    for path in paths:
        kept = json.loads(Path(path).read_text())["figures"]["tasks"].get(name)
        if kept is None:
            continue
        if other := [what for what, value in how.items() if kept[what] != value]:
            sys.exit(f"scripts/bench samples: the trainings of {path} were run with another --{other[0]}.")
        for way, by_seed in kept["found"].items():
            found.setdefault(way, {}).update({int(seed): one for seed, one in by_seed.items()})
    return found


def run(name: str, seed: int, epochs: int, rate: float, ways: list[str]) -> dict[str, dict[str, float]]:
    """Train with one seed, in a process of its own."""
    words = ["-m", "matex_tf", "--notes", "off", "-m", "benchmarks.samples.train", name, str(seed), str(epochs)]
    with tempfile.TemporaryDirectory() as folder:
        given = {"MATEX_SAMPLE_SCORES": os.path.join(folder, "scores.csv"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        told: dict[str, dict[str, float]] = launching.on_ranks(1, [*words, f"{rate:g}", ",".join(ways)], environ=given)
    return told


def line(task: Task, rate: float, way: str, found: Found) -> list[str]:
    """A line of the table. Times are ratios of what was measured in turn, so what else the machine does cancels."""
    seeds = sorted(found[way])
    own, whole = ([found[each][seed] for seed in seeds] for each in (way, FIRST))
    ratio = np.median([a["seconds"] / b["seconds"] for a, b in zip(own, whole, strict=True)])
    accuracy, of_all = (100 * np.array([one["accuracy"] for one in each]) for each in (own, whole))
    spread = accuracy.std(ddof=1) if len(accuracy) > 1 else 0.0
    left = 100 * (1 - np.mean([one["used"] for one in own]))
    seconds = np.median([one["seconds"] for one in own])
    numbers = [f"{left:.1f} %", f"{seconds:.1f}", f"{ratio:.2f}", f"{accuracy.mean():.2f}", f"{spread:.2f}"]
    return [f"{task.title}, R {rate:g}", way, *numbers, f"{accuracy.mean() - of_all.mean():+.2f}"]


if __name__ == "__main__":
    main()
