"""Accuracy at the end of short jobs, by strategy, with the defaults of each: five small data sets, beside sync.

Each is trained for a few hundred steps, by SGD with momentum, in a network of two hidden layers. Two ranks, each a
group of its own where a strategy has groups. What a strategy changes shows in such jobs first: there are few rounds,
and weights move far in each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, NamedTuple

import numpy as np

from benchmarks import jobs, tables

#: Options of each strategy that is compared.
COMPARED = {
    "sync": ["--strategy", "sync"],
    "pipe": ["--strategy", "pipe"],
    "gossip": ["--strategy", "gossip"],
    "local": ["--strategy", "local", "--groups", "2"],
    "elastic": ["--strategy", "elastic", "--groups", "2"],
    "server": ["--strategy", "server", "--groups", "2"],
    "local, outer step of DiLoCo": [
        "--strategy", "local", "--groups", "2", "--outer-learning-rate", "0.7", "--outer-momentum", "0.9",
    ],
}  # fmt: skip


class Task(NamedTuple):
    """Rows of a batch, and epochs."""

    batch: int
    epochs: int


TASKS = {
    "digits": Task(56, 12),
    "cancer": Task(32, 12),
    "wine": Task(16, 20),
    "moons": Task(32, 12),
    "circles": Task(32, 12),
}
#: The first so many of all rows train, the others test.
TRAINED = 0.7


def rows_of(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, float32 of shape (rows, columns) with mean 0 and deviation 1, and classes, int32; in random order."""
    from sklearn import datasets

    if task == "moons":
        x, y = datasets.make_moons(1500, noise=0.25, random_state=0)
    elif task == "circles":
        x, y = datasets.make_circles(1500, noise=0.1, factor=0.5, random_state=0)
    else:
        found = getattr(datasets, {"cancer": "load_breast_cancer"}.get(task, f"load_{task}"))()
        x, y = found.data, found.target
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    order = np.random.RandomState(0).permutation(len(x))
    return x[order].astype("float32"), y[order].astype("int32")


def network(columns: int, classes: int) -> Any:
    """Two hidden layers, and logits."""
    import keras

    hidden = [keras.layers.Dense(units, activation="relu") for units in (64, 32)]
    return keras.Sequential([keras.Input((columns,)), *hidden, keras.layers.Dense(classes)])


def train(names: list[str], seeds: int, rate: float) -> dict[str, list[float]]:
    """On a rank: the accuracy on test rows, for each seed."""
    import keras

    found: dict[str, list[float]] = {}
    for name in names:
        (x, y), task = rows_of(name), TASKS[name]
        count = int(TRAINED * len(x))
        model = network(x.shape[1], int(y.max()) + 1)
        optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        optimizer.build(model.trainable_variables)
        begin = [np.array(variable) for variable in optimizer.variables]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        for seed in range(seeds):  # the step is compiled once for all of them
            keras.utils.set_random_seed(seed)
            model.set_weights(network(x.shape[1], int(y.max()) + 1).get_weights())
            for variable, value in zip(optimizer.variables, begin, strict=True):
                variable.assign(value)
            model.fit(x[:count], y[:count], batch_size=task.batch, epochs=task.epochs, verbose=0)
            found.setdefault(name, []).append(float(model.evaluate(x[count:], y[count:], verbose=0)[1]))
    return found


def main() -> None:
    parser = tables.parser("accuracy", __doc__)
    parser.add_argument("--ranks", type=int, default=2, help="in two groups where a strategy has them (default 2)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings on each data set (default 3)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of SGD (default 0.05)")
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"of {', '.join(TASKS)} (default all)")
    parser.add_argument("--only", metavar="NAME/…", help=f"of {' / '.join(COMPARED)} (default all)")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    names = options.tasks.split(",")
    if options.as_rank:
        jobs.tell(train(names, options.seeds, options.rate))
        return
    figures: dict[str, Any] = {}
    for name in options.only.split("/") if options.only else COMPARED:
        words = ["-m", "matex_tf", *COMPARED[name], "--seed", "1", "--notes", "off", "--threads", "1"]
        words += ["-m", "benchmarks.accuracy", "--as-rank", "--tasks", options.tasks]
        words += ["--seeds", str(options.seeds), "--rate", str(options.rate)]
        figures[name] = jobs.on_ranks(options.ranks, words)
        print(f"  {name}: {figures[name]}", file=sys.stderr, flush=True)
    means = {name: [100 * statistics.mean(found[task]) for task in names] for name, found in figures.items()}
    rows = []
    for name, own in means.items():
        base = means.get("sync", own)
        behind = max(there - here for there, here in zip(base, own, strict=True))
        rows.append((name, *(f"{one:.2f}" for one in own), f"{max(behind, 0.0):.2f}"))
    note = f"SGD {options.rate:g}, momentum 0.9; {options.ranks} ranks, {options.seeds} seeds"
    tables.show("accuracy on test rows, %", ["strategy", *names, "most behind sync"], rows, note=note)
    tables.keep(figures)


if __name__ == "__main__":
    main()
