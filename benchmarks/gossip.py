"""Gossip beside sync: milliseconds a step on emulated hosts, and accuracy at the end.

steps     a dense network whose weights take long to send, on 2, 4 and 8 hosts of one rank, each with an accelerator
          that computes for --compute milliseconds a step (emulated, see benchmarks/accelerator.py)
digits    the convnet of examples/digits.py on 4 and 8 ranks of this machine, five seeds; pipe, too, and codecs on
          emulated hosts of one rank, since gradients are encoded between nodes
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from typing import Any

from benchmarks import hosts as emulated
from benchmarks import launching, tables, training

#: What is compared by the accuracy that it ends with.
TRAININGS = {
    "sync": [],
    "gossip": ["--strategy", "gossip"],
    "gossip that waits": ["--strategy", "gossip", "--gossip-sync", "on"],
    "gossip int8": ["--strategy", "gossip", "--codec", "int8"],
    "pipe": ["--strategy", "pipe"],
    "pipe bf16": ["--strategy", "pipe", "--codec", "bf16"],
    "pipe int8": ["--strategy", "pipe", "--codec", "int8"],
}


def train_digits(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """On a rank: train once for each seed."""
    import keras
    from sklearn.model_selection import train_test_split

    from benchmarks.step import models
    from matex_tf import strategies

    images, labels = training.digits("digits")
    x, x_test, y, y_test = train_test_split(images, labels, test_size=0.2, random_state=7)
    results = []
    for seed in range(seeds):
        model = models.in_keras("digits", seed)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
        model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)
        accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
        spreads = getattr(strategies.current(), "spreads", {})
        results.append({"accuracy": float(accuracy), "spread": spreads.get(model, 0.0)})
    return results


def main() -> None:
    parser = tables.parser("gossip", __doc__)
    parser.add_argument("--parts", default="steps,digits", help="of steps,digits (default both)")
    parser.add_argument("--hosts", default="2,4,8", help="numbers of hosts (default 2,4,8)")
    parser.add_argument("--ranks", default="4,8", help="numbers of ranks for the digits (default 4,8)")
    parser.add_argument("--gbit", type=float, default=1, help="rate of each link, in Gbit/s (default 1)")
    parser.add_argument("--model", default="dense", help="of benchmarks/step/models.py (default dense)")
    parser.add_argument("--compute", type=float, default=300, metavar="MS", help="of a step (default 300)")
    parser.add_argument("--rounds", type=int, default=5, help="of 8 steps, of which the median counts (default 5)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings on the digits (default 5)")
    parser.add_argument("--epochs", type=int, default=10, help="of each of those (default 10)")
    parser.add_argument(
        "--only", metavar="NAME,…", help=f"of {', '.join(TRAININGS)} (default all); codecs on emulated hosts"
    )
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.as_rank:
        launching.tell(train_digits(options.seeds, options.epochs))
        return
    figures: dict[str, Any] = {}
    if "steps" in options.parts.split(","):
        if reason := emulated.unavailable():
            print(f"scripts/bench gossip: steps skipped, {reason}.")
        else:
            figures["steps"] = steps(options)
    if "digits" in options.parts.split(","):
        figures["digits"] = digits(options)
    tables.keep(figures)


def steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds a step by number of hosts."""
    rows, figures, names = [], [], ("sync", "gossip")
    for count in map(int, options.hosts.split(",")):
        with emulated.Hosts(count, options.gbit) as hosts:
            words = training.words(options.model, options.compute / 1e3, 1, options.rounds, 8, 0, names)
            found = launching.on_ranks(count, words, hosts)
        figures.append({"hosts": count, "strategies": found})
        rows.append((str(count), *(f"{1e3 * one['seconds']:.0f}" for one in found)))
    nbytes = 4 * figures[0]["strategies"][0]["parameters"]
    title = f"milliseconds a step: {nbytes:,} bytes, {options.gbit:g} Gbit/s, {options.compute:g} ms of computing"
    tables.show(title, ["hosts", training.COMPUTE, *names], rows, less=names)
    print(f"to send the weights once takes {nbytes * 8 / options.gbit / 1e6:.0f} ms at that rate")
    return figures


def digits(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy on the test rows by number of ranks."""
    rows, figures = [], []
    for count in map(int, options.ranks.split(",")):
        for name in options.only.split(",") if options.only else TRAININGS:
            mode = TRAININGS[name]
            words = ["-m", "matex_tf", *mode, "--notes", "off", "--threads", "1", "-m", "benchmarks.gossip"]
            words += ["--as-rank", "--seeds", str(options.seeds), "--epochs", str(options.epochs)]
            apart = "--codec" in mode  # gradients are encoded between nodes: each rank has an emulated one then
            if apart and (reason := emulated.unavailable()):
                print(f"scripts/bench gossip: {name} skipped, {reason}.")
                continue
            with emulated.Hosts(count) if apart else contextlib.nullcontext() as hosts:
                found = launching.on_ranks(count, words, hosts)
            figures.append({"ranks": count, "strategy": name, "trainings": found})
            accuracies = [100 * one["accuracy"] for one in found]
            print(f"  {count} ranks, {name}: {statistics.mean(accuracies):.2f} %", file=sys.stderr, flush=True)
            spread = 100 * statistics.mean(one["spread"] for one in found)
            rows.append(
                (
                    f"{count} {name}", f"{statistics.mean(accuracies):.2f}",
                    f"{min(accuracies):.2f} to {max(accuracies):.2f}", f"{spread:.2g}" if "gossip" in name else "",
                )
            )  # fmt: skip
    columns = ["ranks", "accuracy, %", "least and most", "spread of weights before the last averaging, %"]
    tables.show("digits, test rows", columns, rows, note=f"{options.seeds} seeds, {options.epochs} epochs")
    return figures


if __name__ == "__main__":
    main()
