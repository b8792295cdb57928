"""What the same bits on any number of ranks cost: a training step with `--reproducible` and without.

One job for each number of ranks trains with both, in turn, in blocks of steps; the least block of each, as whatever
else the machine does comes on top. Ops have one thread in both.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

from benchmarks import launching, tables

MODELS = {"convnet": "convnet, 1.3 M parameters", "lstm": "LSTM, 0.1 M parameters"}
_STEPS = 10  # of a block


def _made(name: str) -> tuple[Any, Any, Any]:
    """A model, and rows for a block of steps, with batches of 128."""
    import keras
    import numpy as np
    from keras import layers

    random = np.random.RandomState(0)
    keras.utils.set_random_seed(1)
    y = random.randint(0, 10, 128 * _STEPS)
    if name == "convnet":
        x = random.rand(len(y), 28, 28, 1).astype("float32")
        body = [layers.Conv2D(20, 5, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(50, 5), layers.ReLU()]
        body += [layers.MaxPooling2D(), layers.Dropout(0.25), layers.Flatten(), layers.Dense(1500, activation="relu")]
    else:
        x = random.rand(len(y), 28, 28).astype("float32")
        body = [layers.LSTM(128, dropout=0.1)]
    return keras.Sequential([keras.Input(x.shape[1:]), *body, layers.Dense(10, activation="softmax")]), x, y


def measure(name: str, virtual: int, rounds: int) -> None:
    """On a rank: milliseconds of a step, with virtual ranks and, on several ranks, without."""
    import keras

    from matex_tf import settings

    ways = {"with": virtual, "without": 0}
    models = {way: _made(name) for way in ways}
    for model, _, _ in models.values():
        model.compile(keras.optimizers.Adam(), "sparse_categorical_crossentropy")
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + rounds):
        for way, (model, x, y) in models.items():
            settings.use(dataclasses.replace(settings.current(), reproducible=ways[way]))
            begun = time.perf_counter()
            model.fit(x, y, batch_size=128, shuffle=False, verbose=0)
            spent[way].append(1000 * (time.perf_counter() - begun) / _STEPS)
    launching.tell({way: min(times[1:]) for way, times in spent.items()})


def main() -> int:
    parser = tables.parser("reproducible", __doc__)
    parser.add_argument("--models", default="convnet,lstm", help="with commas between: convnet, lstm")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, with commas between (default 1,2,4)")
    parser.add_argument("--virtual", type=int, default=4, help="virtual ranks (default 4)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each way that count (default 7)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        measure(options.rank, options.virtual, options.rounds)
        return 0
    rows, figures = [], []
    for name in options.models.split(","):
        words = ["-m", "matex_tf", "--reproducible", str(options.virtual), "-m", "benchmarks.reproducible"]
        words += ["--rank", name, "--virtual", str(options.virtual), "--rounds", str(options.rounds)]
        for count in map(int, options.ranks.split(",")):
            times = launching.on_ranks(count, words)
            figures.append({"model": name, "ranks": count, **times})
            ratio = times["with"] / times["without"]
            where = f"{count} rank{'s' * (count > 1)}"
            rows.append([MODELS[name], where, f"{times['without']:.1f}", f"{times['with']:.1f}", f"{ratio:.2f}"])
    columns = ["model", "on", "without", "with", "ratio"]
    title = f"milliseconds of a step, with --reproducible {options.virtual} and without"
    tables.show(title, columns, rows, labels=2, less=columns[2:4])
    tables.keep(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
