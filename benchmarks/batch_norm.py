"""What BatchNormalization over the whole batch adds to a training step, beside each rank's own rows.

One job for each number of ranks trains with both, in turn, in blocks of steps; the least block of each, as whatever
else the machine does comes on top.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

from benchmarks import hosts as emulated
from benchmarks import launching, tables

WAYS = ("rank", "batch")
MODELS = {"convnet": "convnet, 2 layers", "resnet50": "ResNet-50, 53 layers"}
_SIZES = {"convnet": (28, 128, 20), "resnet50": (64, 16, 2)}  # pixels, rows of the batch, steps of a block


def _model(name: str) -> Any:
    import keras
    from keras import layers

    if name == "resnet50":
        pixels = _SIZES[name][0]
        return keras.applications.ResNet50(weights=None, input_shape=(pixels, pixels, 3), classes=10)
    body: list[Any] = [keras.Input((28, 28, 3))]
    for filters in (16, 32):
        body += [layers.Conv2D(filters, 3), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()]
    return keras.Sequential([*body, layers.Flatten(), layers.Dense(10, activation="softmax")])


def measure(name: str, rounds: int) -> None:
    """On a rank: milliseconds of a step of each way, and of CPU time of this rank."""
    import keras
    import numpy as np

    from matex_tf import settings

    pixels, batch, steps = _SIZES[name]
    random = np.random.RandomState(0)
    x = random.rand(batch * steps, pixels, pixels, 3).astype("float32")
    y = random.randint(0, 10, len(x))
    models = {}
    for way in WAYS:
        keras.utils.set_random_seed(1)
        models[way] = _model(name)
        models[way].compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(1 + rounds):
        for way, model in models.items():
            settings.use(dataclasses.replace(settings.current(), batch_norm=way))
            begun, cpu = time.perf_counter(), time.process_time()
            model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
            now, cpu_now = time.perf_counter(), time.process_time()
            spent[way].append((1000 * (now - begun) / steps, 1000 * (cpu_now - cpu) / steps))
    launching.tell({way: [min(column) for column in zip(*times[1:], strict=True)] for way, times in spent.items()})


def main() -> int:
    parser = tables.parser("batch_norm", __doc__)
    parser.add_argument("--models", default="convnet,resnet50", help="with commas between: convnet, resnet50")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas between (default 2,4)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each way that count (default 7)")
    parser.add_argument("--hosts", type=int, default=0, help="also on so many emulated hosts, a rank on each (root)")
    parser.add_argument("--gbit", type=float, default=1.0, help="rate of the links between them (default 1)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        measure(options.rank, options.rounds)
        return 0
    rows, figures = [], []
    for name in options.models.split(","):
        words = ["-m", "matex_tf", "-m", "benchmarks.batch_norm", "--rank", name, "--rounds", str(options.rounds)]
        found = {f"{count} ranks": launching.on_ranks(int(count), words) for count in options.ranks.split(",")}
        if options.hosts:
            with emulated.Hosts(options.hosts, options.gbit) as hosts:
                found[f"{options.hosts} hosts"] = launching.on_ranks(options.hosts, words, hosts)
        for where, times in found.items():
            figures.append({"model": name, "where": where, **times})
            row = [MODELS[name], where]
            for rank, batch in zip(times["rank"], times["batch"], strict=True):
                row += [f"{rank:.1f}", f"{batch:.1f}", f"{batch / rank:.2f}"]
            rows.append(row)
    columns = ["model", "on", "rank", "batch", "ratio", "CPU, rank", "CPU, batch", "CPU ratio"]
    less = ["rank", "batch", "CPU, rank", "CPU, batch"]
    tables.show("milliseconds of a step, by --batch-norm", columns, rows, labels=2, less=less)
    tables.keep(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
