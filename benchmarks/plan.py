"""What `matex-tf plan` predicts beside what is measured: every strategy, on emulated hosts of one rank each.

Hosts have links of given rates and accelerators that compute for --compute milliseconds a step; links, accelerators and
hosts are emulated on this machine, see benchmarks/hosts.py and benchmarks/accelerator.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import hosts as emulated
from benchmarks import launching, plan_groups, tables, training
from benchmarks.training import SERVER
from matex_tf.features.plan.predict import best, compared


def train(model_name: str, rows: int, compute: float) -> None:
    """On a rank, the script that is planned: trains for as long as it may."""
    import numpy as np
    from tensorflow import keras

    from benchmarks import accelerator
    from benchmarks.step import models
    from matex_tf.core import world

    model = accelerator.slowed(models.in_keras(model_name), compute)
    models.compile_keras(model, keras.optimizers.SGD(0.02))
    batch = rows * world.current().size
    x, y = models.rows(model_name, batch)
    model.fit(np.tile(x, (64, 1)), np.tile(y, 64), batch_size=batch, verbose=0)


def compare(count: int, gbit: float, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step by strategy, predicted and measured, on so many hosts."""
    compute = options.compute / 1e3
    with tempfile.TemporaryDirectory() as folder, emulated.Hosts(count, gbit) as hosts:
        planned = Path(folder) / "plan.json"
        flags = ["--hosts", launching.listed(hosts), "--threads", "1"]
        flags += ["--json", str(planned), "--png", str(Path(folder) / "plan.png")]
        flags += ["--cores", f"{len(os.sched_getaffinity(0))}/{count}"]  # accelerators leave them to the exchange
        script = ["-m", "benchmarks.plan", "--rank", options.model, str(options.rows), str(compute)]
        launching.run([str(Path(sys.executable).with_name("matex-tf")), "plan", *flags, *script], hosts)
        predicted = next(row["seconds"] for row in json.loads(planned.read_text())["rows"] if row["ranks"] == count)
        wanted = [name for name in compared() if name in predicted and name != SERVER]
        words = training.words(options.model, compute, options.rows, options.rounds, options.steps, 0, wanted)
        found = launching.on_ranks(count, words, hosts)
    measured = {one["strategy"]: one["seconds"] for one in found if one["strategy"] in wanted}
    return {"hosts": count, "gbit": gbit, "predicted": {name: predicted[name] for name in wanted}, "measured": measured}


def main() -> None:
    parser = tables.parser("plan", __doc__)
    parser.add_argument("--hosts", default="2,3,4,8", help="numbers of hosts (default 2,3,4,8)")
    parser.add_argument(
        "--gbit", help="rates of the links, in Gbit/s (default 0.25,0.5,1; with --groups 0.05,0.1,0.25)"
    )
    parser.add_argument("--model", default="wide", help="of benchmarks/step/models.py (default wide)")
    parser.add_argument("--rows", type=int, default=1, help="of a rank in each batch (default 1)")
    parser.add_argument("--compute", type=float, default=100, metavar="MS", help="of a step (default 100)")
    parser.add_argument("--rounds", type=int, default=2, help="in which strategies take turns (default 2)")
    parser.add_argument("--steps", type=int, default=5, help="of a turn (default 5)")
    parser.add_argument(
        "--groups", action="store_true", help="groups of two hosts in place of --hosts, links between them of --gbit"
    )
    parser.add_argument("--inside", type=float, default=1, help="with --groups: rate in a group, in Gbit/s (default 1)")
    parser.add_argument("--rank", nargs=3, metavar=("MODEL", "ROWS", "COMPUTE"), help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        train(options.rank[0], int(options.rank[1]), float(options.rank[2]))
        return
    if reason := emulated.unavailable():
        print(f"scripts/bench plan: skipped, {reason}.")
        return
    figures: list[dict[str, Any]] = []
    rates = options.gbit or ("0.05,0.1,0.25" if options.groups else "0.25,0.5,1")
    for gbit in map(float, rates.split(",")):
        for count in [plan_groups.HOSTS] if options.groups else map(int, options.hosts.split(",")):
            figures.append(plan_groups.compare(gbit, options) if options.groups else compare(count, gbit, options))
            print(f"  {count} hosts at {gbit:g} Gbit/s are measured", file=sys.stderr, flush=True)
            tables.keep(figures)
    show(figures, options)


def show(figures: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """A table with a line for each strategy, the median error, and whether the best was named."""
    names = list(figures[0]["measured"])
    errors = [abs(figure["predicted"][name] / figure["measured"][name] - 1) for figure in figures for name in names]
    named = [best(figure["predicted"]) for figure in figures]
    losses = [
        figure["measured"][one] / min(figure["measured"].values()) - 1
        for figure, one in zip(figures, named, strict=True)
    ]
    rows = [
        (name, *(f"{1e3 * one['predicted'][name]:.0f} / {1e3 * one['measured'][name]:.0f}" for one in figures))
        for name in names
    ]
    rows += [("named", *named), ("slower than the best", *(f"{100 * loss:.0f} %" for loss in losses))]
    columns = ["strategy", *(f"{one['hosts']} hosts, {one['gbit']:g} Gbit/s" for one in figures)]
    title = f"ms a step, predicted / measured; {options.compute:g} ms of computing"
    if options.groups:
        title += f"; groups of {plan_groups.GROUP} hosts, {options.inside:g} Gbit/s in a group"
    tables.show(title, columns, rows)
    error, worst = 100 * statistics.median(errors), 100 * max(errors)
    print(f"error of {len(errors)} predictions: median {error:.1f} %, worst {worst:.0f} %")
    print(f"the strategy that is named is slower than the best by {100 * max(losses):.0f} % at most")


if __name__ == "__main__":
    main()
