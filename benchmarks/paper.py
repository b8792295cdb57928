"""Scale on paper: steps of sync, of state in parts and of gossip on 2 to 4,096 ranks, by the formulas of a plan.

Nothing runs, and nothing is measured: links, computing and updating are given. `scripts/bench plan` measures how far
the formulas are off, on the few ranks that there are. A rank keeps its rows, so the global batch grows with the ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from benchmarks import tables
from matex_tf.features.plan import predict
from matex_tf.planning import plotting
from matex_tf.planning.cost_model import FRAMES, Machine

#: Weights in millions, seconds to compute a step on one rank, seconds to update all weights with Adam.
NETWORKS = {
    "LeNet": predict.Job("LeNet", 1, 0.010, 0.0005, 4 * 1.3e6, 1),
    "ResNet-50": predict.Job("ResNet-50", 1, 0.25, 0.008, 4 * 25.6e6, 4),
    "BERT-large": predict.Job("BERT-large", 1, 0.60, 0.1, 4 * 340e6, 16),
}
RANKS = [1 << power for power in range(1, 13)]


def machine(gbit: float, latency: float, node_ranks: int) -> Machine:
    """Nodes with so many ranks and a link of so many Gbit/s. Args: latency: of a message, in microseconds."""
    beta = 8 / gbit / 1e9 * FRAMES
    return Machine(
        latency * 1e-6, beta, 1e-10, node_ranks=node_ranks, node_sync=5e-5, node_beta=3e-10, pieces=16, piece=1 << 16
    )


def step(job: predict.Job, where: Machine, ranks: int) -> dict[str, float]:
    """Seconds of a step, by what is compared."""
    row = predict.predict(job, where, ranks)
    return {
        "sync": row.seconds["sync"],
        "--shard state": row.shards["state"],
        "--shard weights": row.shards["weights"],
        "gossip": row.seconds["gossip"],
    }


def wins(found: Mapping[int, Mapping[str, float]]) -> str:
    """Which is the fastest from how many ranks on, in words; one that is as good to 2 % and stands before it counts."""
    parts, last = [], ""
    for ranks, each in found.items():
        least = min(each.values())
        best = next(name for name, seconds in each.items() if seconds <= predict.AS_GOOD * least)
        if best != last:
            parts.append(f"{best} from {ranks:,} ranks" if last else best)
            last = best
    return ", ".join(parts)


def draw(found: Mapping[str, Mapping[int, Mapping[str, float]]], title: str, path: str) -> None:
    """Draw steps by the number of ranks, a panel for each network.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    pyplot = plotting.pyplot()
    figure, panels = pyplot.subplots(1, len(found), figsize=(4 * len(found), 3.6), squeeze=False, layout="constrained")
    for axes, (name, steps) in zip(panels[0], found.items(), strict=True):
        for what in next(iter(steps.values())):
            axes.plot(list(steps), [1e3 * each[what] for each in steps.values()], marker=".", label=what)
        axes.set(title=name, xlabel="ranks", ylim=(0, None))
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("milliseconds of a step")
    panels[0][0].legend(frameon=False, loc="lower right")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    parser = tables.parser("paper", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--gbit", type=float, default=10, help="of a node's link (default 10)")
    parser.add_argument(
        "--latency", type=float, default=30, metavar="US", help="of a message, microseconds (default 30)"
    )
    parser.add_argument("--node-ranks", type=int, default=4, help="ranks of a node (default 4)")
    parser.add_argument("--picture", metavar="FILE", help="draw the steps to this file (needs matplotlib)")
    options = tables.parse(parser)
    where = machine(options.gbit, options.latency, options.node_ranks)
    title = f"nodes of {options.node_ranks} ranks, {options.gbit:g} Gbit/s, {options.latency:g} µs"
    found = {name: {ranks: step(job, where, ranks) for ranks in RANKS} for name, job in NETWORKS.items()}
    for name, steps in found.items():
        show(name, steps, title)
    if options.picture:
        draw(found, title, options.picture)
    tables.keep({name: {str(ranks): each for ranks, each in steps.items()} for name, steps in found.items()})
    return 0


def show(name: str, steps: Mapping[int, Mapping[str, float]], title: str) -> None:
    """Print the table of a network, and which is the fastest where."""
    columns: Sequence[str] = ["ranks", *next(iter(steps.values()))]
    rows = [[f"{ranks:,}", *(f"{1e3 * seconds:.1f}" for seconds in each.values())] for ranks, each in steps.items()]
    tables.show(f"{name}: milliseconds of a step by formula, {title}", columns, rows)
    print(f"fastest: {wins(steps)}\n")


if __name__ == "__main__":
    sys.exit(main())
