"""Gossip beside sync: what a rank sends, milliseconds a step on emulated hosts, and accuracy at the end.

steps     a dense network whose weights take long to send, on 2, 4 and 8 hosts of one rank, each with an accelerator
          that computes for --compute milliseconds a step (emulated, see benchmarks/accelerator.py)
digits    the convnet of examples/digits.py on 4 and 8 ranks of this machine, five seeds; pipe and codecs, too
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import accelerator, jobs
from benchmarks import hosts as emulated
from benchmarks.jobs import table

MODES = {
    "alone": ["--strategy", "gossip", "--gossip-every", "1000000"],
    "sync": [],
    "gossip": ["--strategy", "gossip"],
    "gossip, waits": ["--strategy", "gossip", "--gossip-sync", "on"],
}
#: What is compared by the accuracy that it ends with.
TRAININGS = {
    **{name: MODES[name] for name in ("sync", "gossip", "gossip, waits")},
    "gossip int8": ["--strategy", "gossip", "--codec", "int8"],
    "pipe": ["--strategy", "pipe"],
    "pipe bf16": ["--strategy", "pipe", "--codec", "bf16"],
    "pipe int8": ["--strategy", "pipe", "--codec", "int8"],
}


def train_steps(width: int, steps: int, compute: float) -> dict[str, Any]:
    """On a rank: train a network of four layers, one row a rank; milliseconds of a step, behind the first epoch."""
    import keras
    import numpy as np

    from matex_tf import world

    ranks = world.current()
    keras.utils.set_random_seed(7)
    body = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((width,)), *body, keras.layers.Dense(10)])
    model = accelerator.slowed(model, compute)
    model.compile(keras.optimizers.SGD(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = ranks.size * steps
    x, y = np.zeros((rows, width), np.float32), np.zeros(rows, np.int32)
    ends: list[float] = []
    # Not after each batch: where callbacks of a script are called then, ranks agree each time whether to go on.
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    model.fit(x, y, batch_size=ranks.size, epochs=4, verbose=0, callbacks=[note], shuffle=False)
    slowest = np.array(ranks.gather(np.diff(ends) / steps, "gather the times of steps")).max(axis=0)
    return {"bytes": 4 * model.count_params(), "milliseconds": 1e3 * float(np.median(slowest))}


def train_digits(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """On a rank: train once for each seed."""
    import keras
    import numpy as np
    from keras import layers
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from matex_tf import strategies

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    x, x_test, y, y_test = train_test_split(images, labels, test_size=0.2, random_state=7)
    results = []
    for seed in range(seeds):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential(
            [
                layers.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", activation="tanh"),
                layers.Conv2D(64, 3, activation="tanh"),
                layers.AveragePooling2D(2),
                layers.Flatten(),
                layers.Dense(64, activation="tanh"),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
        model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)
        accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
        spreads = getattr(strategies.current(), "spreads", {})
        results.append({"accuracy": float(accuracy), "spread": spreads.get(model, 0.0)})
    return results


def on_ranks(count: int, mode: Sequence[str], arguments: Sequence[str], hosts: emulated.Hosts | None = None) -> Any:
    """Run this module on ranks; what the first of them found."""
    words = ["-m", "matex_tf", *mode, "--notes", "off", "--threads", "1", "-m", "benchmarks.gossip", *arguments]
    return jobs.on_ranks(count, words, hosts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench gossip", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default="steps,digits", help="of steps,digits (default both)")
    parser.add_argument("--hosts", default="2,4,8", help="numbers of hosts (default 2,4,8)")
    parser.add_argument("--ranks", default="4,8", help="numbers of ranks for the digits (default 4,8)")
    parser.add_argument("--gbit", type=float, default=1, help="rate of each link, in Gbit/s (default 1)")
    parser.add_argument("--width", type=int, default=1024, help="of the layers of the network (default 1024)")
    parser.add_argument("--compute", type=float, default=300, metavar="MS", help="of a step (default 300)")
    parser.add_argument(
        "--steps", type=int, default=10, help="steps of each epoch; the median of three counts (default 10)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="trainings on the digits (default 5)")
    parser.add_argument("--epochs", type=int, default=10, help="of each of those (default 10)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--rank", choices=("steps", "digits"), help=argparse.SUPPRESS)  # what a rank does
    options = parser.parse_args()
    sizes = ["--width", str(options.width), "--steps", str(options.steps), "--compute", str(options.compute)]
    trainings = ["--seeds", str(options.seeds), "--epochs", str(options.epochs)]
    if options.rank:
        found = (
            train_steps(options.width, options.steps, options.compute / 1e3)
            if options.rank == "steps"
            else train_digits(options.seeds, options.epochs)
        )
        jobs.tell(found)
        return
    figures: dict[str, Any] = {}
    if "steps" in options.parts.split(","):
        if reason := emulated.unavailable():
            print(f"scripts/bench gossip: steps skipped, {reason}.")
        else:
            figures["steps"] = steps(options, sizes)
    if "digits" in options.parts.split(","):
        figures["digits"] = digits(options, trainings)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))


def steps(options: argparse.Namespace, sizes: Sequence[str]) -> list[dict[str, Any]]:
    """Milliseconds a step by number of hosts."""
    rows, figures = [], []
    for count in map(int, options.hosts.split(",")):
        with emulated.Hosts(count, options.gbit) as hosts:
            found = {name: on_ranks(count, mode, ["--rank", "steps", *sizes], hosts) for name, mode in MODES.items()}
        figures.append({"hosts": count, **found})
        rows.append((str(count), *(f"{found[name]['milliseconds']:.0f}" for name in MODES)))
    nbytes = figures[0]["sync"]["bytes"]
    title = f"milliseconds a step: {nbytes:,} bytes, {options.gbit:g} Gbit/s, {options.compute:g} ms of computing"
    table(title, ["hosts", *MODES], rows)
    print(f"to send the weights once takes {nbytes * 8 / options.gbit / 1e6:.0f} ms at that rate")
    return figures


def digits(options: argparse.Namespace, trainings: Sequence[str]) -> list[dict[str, Any]]:
    """Accuracy on the test rows by number of ranks."""
    rows, figures = [], []
    for count in map(int, options.ranks.split(",")):
        for name, mode in TRAININGS.items():
            found = on_ranks(count, mode, ["--rank", "digits", *trainings])
            figures.append({"ranks": count, "strategy": name, "trainings": found})
            accuracies = [100 * one["accuracy"] for one in found]
            spread = 100 * statistics.mean(one["spread"] for one in found)
            rows.append(
                (
                    f"{count} {name}", f"{statistics.mean(accuracies):.2f}",
                    f"{min(accuracies):.2f} to {max(accuracies):.2f}", f"{spread:.2g}" if "gossip" in name else "",
                )
            )  # fmt: skip
    columns = ["ranks", "accuracy, %", "least and most", "spread of weights before the last averaging, %"]
    table(f"digits, test rows, {options.seeds} seeds, {options.epochs} epochs", columns, rows)
    return figures


if __name__ == "__main__":
    main()
