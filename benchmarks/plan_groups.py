"""What `matex-tf plan` predicts for groups beside what is measured: scripts/bench plan --groups.

Four emulated hosts of one rank in two clusters, each a group: links of --inside inside, and of several rates between
the clusters. The plan is made on the two hosts of one cluster, and is told the rate between; so it predicts more ranks,
and links, than it has seen. Then a model is trained with `fit` on all hosts, with each strategy.

python -m benchmarks.plan_groups MODEL ROWS COMPUTE "sync" "elastic int8" …     (under mpirun)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import accelerator, launching
from benchmarks import hosts as emulated

HOSTS, GROUP = 4, 2
NAMES = [
    f"{name}{codec}" for codec in ("", " int8") for name in ("sync", "pipe", "gossip", "local", "elastic", "server")
]
#: The first and the last of the steps that are timed. A meeting every 16 steps is the default of local and of elastic.
WINDOWS = {"local": (16, 48), "elastic": (16, 48)}
WINDOW = (4, 12)
LATENCY = "200us"  # of a message between emulated clusters


def compare(gbit: float, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step by strategy, predicted and measured, with so fast a link between the clusters."""
    compute = options.compute / 1e3
    with (
        tempfile.TemporaryDirectory() as folder,
        emulated.Hosts(HOSTS, options.inside, clusters=HOSTS // GROUP, between=gbit) as hosts,
    ):
        planned = Path(folder) / "plan.json"
        near = ",".join(f"{name}:1" for name in hosts.names[:GROUP])
        flags = ["--hosts", near, "--threads", "1", "--between", f"{gbit:g}Gbit,{LATENCY}", "--per-group", str(GROUP)]
        flags += ["--ranks", str(HOSTS), "--json", str(planned), "--png", str(Path(folder) / "plan.png")]
        flags += ["--cores", f"{len(os.sched_getaffinity(0))}/{HOSTS}"]  # accelerators leave them to the exchange
        script = ["-m", "benchmarks.plan", "--rank", options.model, str(options.rows), str(compute)]
        launching.run([str(Path(sys.executable).with_name("matex-tf")), "plan", *flags, *script], hosts)
        plan = json.loads(planned.read_text())
        predicted = next(row["seconds"] for row in plan["rows"] if row["ranks"] == HOSTS)
        words = ["-m", "benchmarks.plan_groups", options.model, str(options.rows), str(compute), *NAMES]
        measured = launching.on_ranks(HOSTS, words, hosts)
    return {
        "hosts": HOSTS,
        "gbit": gbit,
        "predicted": {name: predicted[name] for name in NAMES},
        "measured": measured,
        "job": plan["job"],
        "machine": plan["machine"],
    }


def train(name: str, model_name: str, rows: int, compute: float) -> float:
    """Seconds of a step of this rank."""
    import numpy as np
    from tensorflow import keras

    from benchmarks.step import models
    from matex_tf import settings, strategies
    from matex_tf.core import world

    kind, _, codec = name.partition(" ")
    chosen = {"groups": str(HOSTS // GROUP)} if strategies.STRATEGIES[kind].in_groups else {}
    before = settings.use(
        settings.Settings().changed(seed=1, notes=False, strategy=kind, codec=codec or "none", **chosen)
    )
    strategy = strategies.create()
    first, last = WINDOWS.get(kind, WINDOW)
    after_step, times = strategy.after_step, [0.0]

    def timed(model: Any) -> None:
        after_step(model)
        times.append(time.perf_counter())

    strategy.after_step = timed  # type: ignore[method-assign]
    strategies.use(strategy)
    model = accelerator.slowed(models.in_keras(model_name), compute)
    models.compile_keras(model, keras.optimizers.SGD(0.02))
    batch = rows * world.size()
    x, y = models.rows(model_name, batch)
    model.fit(np.tile(x, (last + 2, 1)), np.tile(y, last + 2), batch_size=batch, verbose=0)
    settings.use(before)
    return (times[last] - times[first]) / (last - first)


def main() -> None:
    model_name, rows, compute = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    from matex_tf import patches
    from matex_tf.core import world

    ranks = world.init()
    patches.install(seed=7)
    found = {}
    for name in sys.argv[4:]:
        own = train(name, model_name, rows, compute)
        found[name] = max(ranks.allgather(own, "compare steps"))
        if ranks.rank == 0:
            print(name, found[name], file=sys.stderr, flush=True)
    if ranks.rank == 0:
        launching.tell(found)


if __name__ == "__main__":
    main()
