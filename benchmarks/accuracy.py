"""Accuracy at the end of short jobs, by strategy, with the defaults of each: five small data sets, beside sync.

Each is trained for a few hundred steps, by SGD with momentum at two rates and by Adam, in a network of two hidden
layers. Two ranks, each a group of its own where a strategy has groups. What a strategy changes shows in such jobs
first: there are few rounds, and weights move far in each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, NamedTuple

import numpy as np

from benchmarks import launching, tables

#: Options of each strategy that is compared.
COMPARED = {
    "sync": ["--strategy", "sync"],
    "pipe": ["--strategy", "pipe"],
    "pipe, as published": ["--strategy", "pipe", "--pipe-predict", "off"],
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
#: By its name an optimizer, from its learning rate.
OPTIMIZERS = {
    "sgd": lambda rate: {"learning_rate": rate, "momentum": 0.9},
    "adam": lambda rate: {"learning_rate": rate},
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


def train(names: list[str], optimizers: list[str], seeds: int) -> dict[str, dict[str, list[float]]]:
    """On a rank: by optimizer and data set the accuracy on test rows, for each seed."""
    import keras

    found: dict[str, dict[str, list[float]]] = {}
    for name in names:
        (x, y), task = rows_of(name), TASKS[name]
        count, classes = int(TRAINED * len(x)), int(y.max()) + 1
        for chosen in optimizers:
            kind, _, rate = chosen.partition(" ")
            model = network(x.shape[1], classes)
            optimizer = keras.optimizers.get({"class_name": kind, "config": OPTIMIZERS[kind](float(rate))})
            optimizer.build(model.trainable_variables)
            begin = [np.array(variable) for variable in optimizer.variables]
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"])
            for seed in range(seeds):  # the step is compiled once for all of them
                keras.utils.set_random_seed(seed)
                model.set_weights(network(x.shape[1], classes).get_weights())
                for variable, value in zip(optimizer.variables, begin, strict=True):
                    variable.assign(value)
                model.fit(x[:count], y[:count], batch_size=task.batch, epochs=task.epochs, verbose=0)
                right = float(model.evaluate(x[count:], y[count:], verbose=0)[1])
                found.setdefault(chosen, {}).setdefault(name, []).append(right)
    return found


def main() -> None:
    parser = tables.parser("accuracy", __doc__)
    parser.add_argument("--ranks", type=int, default=2, help="in two groups where a strategy has them (default 2)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings on each data set (default 3)")
    parser.add_argument(
        "--optimizers",
        default="sgd 0.05,sgd 0.1,adam 0.001",
        help="of sgd (with momentum 0.9) and adam, each with a rate (default 'sgd 0.05,sgd 0.1,adam 0.001')",
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"of {', '.join(TASKS)} (default all)")
    parser.add_argument("--only", metavar="NAME/…", help=f"of {' / '.join(COMPARED)} (default all)")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    names, optimizers = options.tasks.split(","), options.optimizers.split(",")
    if options.as_rank:
        launching.tell(train(names, optimizers, options.seeds))
        return
    figures: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    columns = ["optimizer", "strategy", *names, "most behind sync"]
    for name in options.only.split("/") if options.only else COMPARED:
        words = ["-m", "matex_tf", *COMPARED[name], "--seed", "1", "--notes", "off", "--threads", "1"]
        words += ["-m", "benchmarks.accuracy", "--as-rank", "--tasks", options.tasks]
        words += ["--seeds", str(options.seeds), "--optimizers", options.optimizers]
        figures[name] = launching.on_ranks(options.ranks, words)
        tables.keep(figures)
        for optimizer in optimizers:
            own, base = (_means(figures.get(one, figures[name])[optimizer], names) for one in (name, "sync"))
            behind = max(there - here for there, here in zip(base, own, strict=True))
            rows.append((optimizer, name, *(f"{one:.2f}" for one in own), f"{max(behind, 0.0):.2f}"))
            print("  ", *rows[-1], sep="  ", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: optimizers.index(row[0]))
    note = f"momentum of SGD 0.9; {options.ranks} ranks, {options.seeds} seeds"
    tables.show("accuracy on test rows, %", columns, rows, labels=2, note=note)


def _means(found: dict[str, list[float]], names: list[str]) -> list[float]:
    """The mean over the seeds of each data set, in per cent."""
    return [100 * statistics.mean(found[name]) for name in names]


if __name__ == "__main__":
    main()
