"""Sums and training steps on hosts that are emulated on this machine, against what the wire allows.

Each host has a link of a given rate (network namespaces and `tc tbf`, see benchmarks/hosts.py); all share the cores of
this machine. The least that a sum of n bytes over p hosts can take is 2 (p-1)/p · n/B: so much has to leave each host.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import hosts as emulated
from benchmarks import launching, tables


def sums(count: int, each: int, gbit: float, sizes: str, repeats: int, layers: bool = False) -> list[dict[str, Any]]:
    """Sums over `count` hosts of `each` ranks; see `benchmarks.wire`."""
    words = [*launching.module("benchmarks.wire", layers), sizes, str(repeats)]
    with emulated.Hosts(count, gbit) as hosts:
        figures = launching.on_ranks(count * each, words, hosts, each)
    for figure in figures:
        figure["limit_sent"] = 2 * (count - 1) / count * figure["bytes"]
        figure["limit_seconds"] = figure["limit_sent"] * 8 / (gbit * 1e9)
        figure.update(hosts=count, ranks_of_a_host=each, gbit=gbit)
    return list(figures)


def steps(count: int, gbit: float, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Steps of a model on `count` hosts of a rank each; see `benchmarks.step`. A core each where there are enough."""
    cores = 1 if count <= len(os.sched_getaffinity(0)) else 0
    with tempfile.TemporaryDirectory() as folder, emulated.Hosts(count, gbit, cores=cores) as hosts:
        file = Path(folder) / "steps.json"
        words = [sys.executable, "-m", "benchmarks.step", "-n", str(count), "--hosts", launching.listed(hosts)]
        words += ["--peers", "none", "--models", options.model, "--configurations", options.configurations]
        words += ["--compute", str(options.compute), "--batch", str(options.batch)]
        words += ["--steps", "2"] if options.model == "mlp" else []
        words += ["--layers"] if options.layers else []
        launching.run([*words, "--rounds", str(options.rounds), "--json", str(file)], hosts)
        return list(json.loads(file.read_text())["figures"])


def show_sums(figures: Sequence[dict[str, Any]], title: str, note: str) -> None:
    """Seconds and bytes of sums, each beside its limit."""
    rows = []
    for figure in figures:
        own, mpi = figure["matex_tf"], figure["MPI_Allreduce"]
        low, high = own["spread"]
        rows.append(
            (
                f"{figure['bytes']:,}", f"{figure['hosts']} × {figure['ranks_of_a_host']}",
                f"{1e3 * own['seconds']:.1f}", f"{1e3 * low:.1f} to {1e3 * high:.1f}", f"{1e3 * mpi['seconds']:.1f}",
                f"{1e3 * figure['limit_seconds']:.1f}", f"{own['seconds'] / figure['limit_seconds']:.2f}",
                f"{own['sent']:,.0f}", f"{own['sent'] / figure['limit_sent']:.4f}", f"{mpi['sent']:,.0f}",
            )
        )  # fmt: skip
    columns = ["bytes", "hosts × ranks", "ms", "spread", "MPI ms", "limit ms", "ms / limit"]
    columns += ["bytes sent a host", "/ limit", "MPI sends"]
    less, spreads = ["ms", "bytes sent a host"], {"ms": "spread"}
    tables.show(title, columns, rows, labels=2, less=less, spreads=spreads, note=note)


def show_steps(figures: Sequence[dict[str, Any]], sum_seconds: float, title: str, note: str) -> None:
    """Steps, and the longer of computing and of summing, which is what perfect overlap would take."""
    base = figures[0]["milliseconds"]
    least = max(base, 1e3 * sum_seconds)
    rows = []
    for figure in figures:
        low, high = figure["spread"]
        over = "" if figure is figures[0] else f"{figure['overhead']:+.0f}"
        part = "" if figure is figures[0] else f"{figure['milliseconds'] / least:.2f}"
        rows.append((figure["exchange"], f"{figure['milliseconds']:.0f}", f"{low:.0f} to {high:.0f}", over, part))
    columns = ["exchange", "ms a step", "spread", "over lock step", "/ longer of step and sum"]
    tables.show(title, columns, rows, less=["ms a step"], spreads={"ms a step": "spread"}, note=note)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The parts that are wanted."""
    found: dict[str, Any] = {}
    parts, note = options.parts.split(","), f"median of {options.rounds}"
    beside = f", beside {options.busy_loops} busy loops" if options.busy_loops else ""
    rate = f"links of {options.gbit:g} Gbit/s{beside}"
    if "sums" in parts:
        found["sums"] = sums(4, 1, options.gbit, options.sizes, options.rounds, options.layers)
        show_sums(found["sums"], f"allreduce on 4 hosts, {rate}", note)
    if "pairs" in parts:
        found["pairs"] = [
            figure
            for each in (1, 2)
            for figure in sums(2, each, options.gbit, options.sizes, options.rounds, options.layers)
        ]
        show_sums(found["pairs"], f"allreduce on 2 hosts of 1 and of 2 ranks, {rate}", note)
        half = len(found["pairs"]) // 2
        for one, two in zip(found["pairs"][:half], found["pairs"][half:], strict=True):
            more = two["matex_tf"]["sent"] / one["matex_tf"]["sent"]
            print(f"{one['bytes']:,} bytes: 2 ranks a host send {more:.4f} times what 1 rank a host sends")
    if "steps" in parts:
        found["steps"] = steps(options.step_hosts, options.gbit, options)
        weights = 4 * found["steps"][0]["parameters"]
        alone = sums(options.step_hosts, 1, options.gbit, str(weights), 3, options.layers)[0]["matex_tf"]["seconds"]
        found["sum_of_a_step"] = alone
        print(f"the {weights:,} bytes of a step's gradients alone take {1e3 * alone:.0f} ms")
        show_steps(found["steps"], alone, f"a step of {options.model} on {options.step_hosts} hosts, {rate}", note)
    return found


def main() -> None:
    parser = tables.parser("cluster", __doc__, layers=True)
    parser.add_argument("--gbit", type=float, default=1, help="rate of each link, in Gbit/s (default 1)")
    parser.add_argument("--sizes", default="1M,10M,100M", help="bytes of the sums (default 1M,10M,100M)")
    parser.add_argument("--rounds", type=int, default=7, help="of which the median counts (default 7)")
    parser.add_argument("--parts", default="sums,steps,pairs", help="of sums,steps,pairs (default all)")
    parser.add_argument(
        "--configurations",
        default="chained 32,funneled 16",
        help="as for scripts/bench step (default chained 32,funneled 16)",
    )
    parser.add_argument("--compute", type=float, default=0, metavar="MS", help="emulate so much computing a step")
    parser.add_argument("--batch", type=int, default=0, help="rows of a rank in a step (default: the model's)")
    parser.add_argument("--step-hosts", type=int, default=4, help="hosts of a rank each, for steps (default 4)")
    parser.add_argument("--model", default="mlp", help="of the steps: small, lenet, mlp or resnet (default mlp)")
    parser.add_argument("--busy-loops", type=int, default=0, metavar="N", help="so many busy loops beside (default 0)")
    options = tables.parse(parser)
    if reason := emulated.unavailable():
        print(f"scripts/bench cluster: skipped, {reason}.")
        return
    with launching.busy(options.busy_loops):
        tables.keep(measure(options))


if __name__ == "__main__":
    main()
