"""Training steps and time to an accuracy by strategy and codec, on hosts that are emulated on this machine.

Each host has a link of a given rate (network namespaces and `tc tbf`, see benchmarks/hosts.py) and one rank; all share
the cores of this machine, or with --compute have accelerators that are emulated, too. After Pipe-SGD (arXiv
1811.03619), Figure 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import groups, launching, tables, training
from benchmarks import hosts as emulated
from benchmarks.training import COMPUTE, SERVER
from matex_tf.planning import plotting
from matex_tf.strategies import STRATEGIES

#: What is compared; a strategy that this matex_tf does not have is left out.
COMPARED = (
    SERVER,
    "sync",
    "sync bf16",
    "sync int8",
    "pipe",
    "pipe bf16",
    "pipe int8",
    "gossip",
    "local",
    "local int8",
)
STEPS = {"mlp": 4, "lenet": 15}


def measure(model: str, options: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    """Figures of one model, see `benchmarks.training`."""
    with emulated.Hosts(options.hosts, options.gbit) as hosts:
        accuracy = options.accuracy if model in options.until.split(",") else 0
        words = training.words(
            model, options.compute / 1e3, options.rows, options.rounds, STEPS[model], accuracy, names
        )
        return list(launching.on_ranks(options.hosts, words, hosts))


def show(figures: Sequence[dict[str, Any]], title: str, note: str) -> None:
    """Step times, each beside sync's and beside the longer of computing and its exchange."""
    by_name = {figure["strategy"]: figure for figure in figures}
    compute, sync = by_name[COMPUTE]["seconds"], by_name.get("sync")
    rows = []
    for figure in figures:
        name, own = figure["strategy"], figure["seconds"]
        alone = figure["exchange"]
        reached = figure.get("until")
        rows.append(
            (
                name, f"{1e3 * own:.0f}", " to ".join(f"{1e3 * one:.0f}" for one in figure["spread"]),
                f"{sync['seconds'] / own:.2f}" if sync else "", f"{1e3 * alone:.0f}" if alone else "",
                f"{own / max(compute, alone):.2f}" if alone else "",
                "" if "until" not in figure else f"{reached:.1f}" if reached else "not reached",
                str(figure.get("steps", "")),
            )
        )  # fmt: skip
    columns = ["strategy", "ms a step", "spread", "sync / it", "exchange alone, ms", "/ longer of both"]
    less, spreads = ["ms a step", "s to accuracy"], {"ms a step": "spread"}
    tables.show(title, [*columns, "s to accuracy", "steps"], rows, less=less, spreads=spreads, note=note)


def draw(found: dict[str, list[dict[str, Any]]], file: str) -> None:
    """Bars of step times, a picture for each model."""
    pyplot = plotting.pyplot()
    figure, axes = pyplot.subplots(1, len(found), figsize=(6 * len(found), 4), squeeze=False)
    for place, (model, figures) in zip(axes[0], found.items(), strict=True):
        names = [one["strategy"] for one in figures]
        place.barh(names, [1e3 * one["seconds"] for one in figures], color="tab:blue")
        place.axvline(1e3 * figures[0]["seconds"], color="black", linewidth=0.8, linestyle=":")
        place.invert_yaxis()
        place.set_xlabel("milliseconds a step")
        place.set_title(f"{model}, {figures[0]['parameters']:,} parameters")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = tables.parser("strategies", __doc__)
    parser.add_argument("--gbit", type=float, default=1, help="rate of each link, in Gbit/s (default 1)")
    parser.add_argument("--hosts", type=int, default=4, help="hosts of one rank (default 4)")
    parser.add_argument("--models", default="mlp,lenet", help="of mlp,lenet (default both)")
    parser.add_argument("--rows", type=int, default=16, help="rows of a rank in each batch (default 16)")
    parser.add_argument("--compute", type=float, default=0, metavar="MS", help="emulate so much computing a step")
    parser.add_argument("--rounds", type=int, default=5, help="in which strategies take turns (default 5)")
    parser.add_argument("--only", help="strategies and codecs (default all)")
    parser.add_argument("--until", default="lenet", help="models that train to an accuracy (default lenet)")
    parser.add_argument("--accuracy", type=float, default=0.9, help="which accuracy (default 0.9)")
    parser.add_argument(
        "--groups", action="store_true", help="on two clusters of hosts with a slow link between them, see below"
    )
    parser.add_argument("--between", type=float, default=0.05, help="rate of that link, in Gbit/s (default 0.05)")
    parser.add_argument("--seconds", type=float, default=150, help="the most of a training there (default 150)")
    parser.add_argument("--seeds", type=int, default=0, help="with --groups: train a small convnet from so many seeds")
    parser.add_argument("--epochs", type=int, default=30, help="of each training with --seeds (default 30)")
    parser.add_argument("--picture", metavar="FILE", help="draw step times to this file (needs matplotlib)")
    options = tables.parse(parser)
    wanted = options.only.split(",") if options.only else COMPARED
    names = [name for name in wanted if name.split()[0] in (*STRATEGIES, SERVER)]
    if reason := emulated.unavailable():
        print(f"scripts/bench strategies: skipped, {reason}.")
        return
    if options.groups:
        tables.keep(groups.measure(options))
        return
    found = {}
    for model in options.models.split(","):
        found[model] = measure(model, options, names)
        title = f"{model} on {options.hosts} hosts, {options.gbit:g} Gbit/s"
        show(found[model], title, f"median of {options.rounds}")
    if options.picture:
        draw(found, options.picture)
    tables.keep(found)


if __name__ == "__main__":
    main()
