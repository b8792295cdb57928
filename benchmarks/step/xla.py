"""A step with `jit_compile=True` on some ranks, beside Keras' own XLA step and the exchange by itself."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.step.turns import LOCK_STEP

MODELS = {"dense": 64, "lenet": 64, "transformer": 32}  # and the rows of a rank
STEPS = 10
OURS, MEET, ALONE, CUT = "chained 32", "meet", "exchange alone", "Keras' step cut in two"


def run(options: argparse.Namespace, kind: Any) -> None:
    """Measure, and print a table.

    Args:
        kind: the class of jobs.
    """
    kinds = [
        kind("lockstep", "", Path(sys.executable), "matex", ["lockstep", CUT]),
        kind("matex", "", Path(sys.executable), "matex", [OURS, MEET, ALONE]),
    ]
    rows, figures = [], []
    for model in options.models.split(","):
        batch = MODELS[model]
        rounds = measure(model, options, kinds, options.batch or batch)
        middle = {name: 1e3 * statistics.median(seconds) for name, seconds in rounds.items()}
        limit = [plain + alone for plain, alone in zip(rounds[LOCK_STEP], rounds[ALONE], strict=True)]
        ratio = [ours / both for ours, both in zip(rounds[OURS], limit, strict=True)]
        ours = 1e3 * min(rounds[OURS]), 1e3 * max(rounds[OURS])
        least = min(rounds[OURS]) / min(limit)
        halves = [ours - plain for ours, plain in zip(rounds[CUT], rounds[LOCK_STEP], strict=True)]
        possible = [ours_ / (both + cut) for ours_, both, cut in zip(rounds[OURS], limit, halves, strict=True)]
        cells = [middle[LOCK_STEP], middle[CUT], middle[ALONE], middle[MEET], middle[OURS]]
        rows.append(
            [model, *(f"{one:.2f}" for one in cells), f"{ours[0]:.2f} to {ours[1]:.2f}"]
            + [f"{statistics.median(ratio):.2f}", f"{least:.2f}", f"{statistics.median(possible):.2f}"]
        )
        figures.append({"model": model, "ranks": options.ranks, "rows": batch, "seconds": rounds})
    columns = ["model", "Keras' XLA step", "cut in two", "exchange alone", "XLA step that only meets"]
    columns += ["XLA step that exchanges", "spread", "of both", "least", "of both, cut"]
    tables.show(
        f"a training step with XLA on {options.ranks} ranks, milliseconds",
        columns,
        rows,
        less=[columns[5], "of both"],
        spreads={columns[5]: "spread"},
        note=f"median of {options.rounds} rounds; of both: the step over Keras' step plus the exchange; cut: over "
        "Keras' step in two functions, gradients and update, plus the exchange",
    )
    tables.keep(figures)


def measure(model: str, options: argparse.Namespace, kinds: list[Any], batch: int) -> dict[str, list[float]]:
    """Seconds of a step in each round, by what ran."""
    with tempfile.TemporaryDirectory(prefix="step-") as folder, contextlib.ExitStack() as stack:
        jobs = []
        for kind in kinds:
            jobs.append(kind.start(model, batch, options, Path(folder)))
            stack.callback(jobs[-1].end)
            print(f"  {model}: {kind.name} is ready", file=sys.stderr, flush=True)
        measured = [(job, name) for job in jobs for name in job.contestants]
        rounds: dict[str, list[float]] = {name: [] for _, name in measured}
        for number in range(options.rounds + 1):
            for job, name in measured if number % 2 else measured[::-1]:
                seconds = job.turn(name, options.steps or STEPS)
                if number:  # the first round does not count
                    rounds[name].append(seconds)
        return rounds
