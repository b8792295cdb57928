"""What training costs where ranks share cores, and where other programs want them too: CPU seconds and seconds.

The digits, a small convolutional network, on 1, 2 and 4 ranks, alone on the machine and beside four busy loops. Own
work is what as many plain TensorFlow processes need at the same time, each with its part of each batch and no exchange:
what ranks need beyond that is what the exchange, and the sharing of cores, cost. Horovod does the same where
`scripts/bench peers` has made its environment, beside the own work of its TensorFlow 2.15 and Keras 2.
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

from benchmarks import launching, peers, tables

ROWS, BATCH = 1437, 48
OUT = "BUSY_OUT"  # a directory, into which each rank writes what it took
WAYS = {"plain": "plain processes", "ranks": "matex_tf", "plain2": "plain processes, TF 2.15", "horovod": "Horovod"}
#: What each way is compared with.
OWN = {"plain": "plain", "ranks": "plain", "plain2": "plain2", "horovod": "plain2"}


def measure(way: str, count: int, epochs: int) -> None:
    """On a rank: train, and write down what that took, after one epoch that does not count."""
    import keras
    import numpy as np
    from keras import layers

    options: dict[str, Any] = {}
    rows, batch = ROWS, BATCH
    if way != "ranks":
        rows, batch = ROWS // count, BATCH // count
    optimizer: Any = keras.optimizers.SGD(0.05, momentum=0.9)
    if way == "horovod":
        import horovod.tensorflow.keras as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer)
        options["callbacks"] = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    random = np.random.RandomState(0)
    x, y = random.rand(rows, 8, 8, 1).astype("float32"), random.randint(0, 10, rows)
    body = [layers.Conv2D(32, 3, padding="same", activation="tanh"), layers.Conv2D(64, 3, activation="tanh")]
    body += [layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(64, activation="tanh"), layers.Dense(10)]
    model = keras.Sequential([layers.InputLayer((8, 8, 1)), *body])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(x, y, batch_size=batch, verbose=0, **options)
    begun, cpu = time.perf_counter(), time.process_time()
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    found = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    (Path(os.environ[OUT]) / f"{os.getpid()}.json").write_text(json.dumps(found))


def run(way: str, count: int, epochs: int) -> dict[str, float]:
    """CPU seconds of all ranks together, and seconds of the slowest."""
    words = ["-m", "benchmarks.busy", "--rank", way, "--count", str(count), "--epochs", str(epochs)]
    python = str(peers.TENSORFLOW.python) if OWN[way] == "plain2" else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        before = ["-m", "matex_tf"] if way == "ranks" else []
        launching.start(count, [*before, *words], environ={OUT: folder}, python=python)
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    if len(found) != count:
        sys.exit(f"{way}: {len(found)} of {count} ranks have told what they took")
    return {"cpu": sum(one["cpu"] for one in found), "seconds": max(one["seconds"] for one in found)}


def main() -> int:
    parser = tables.parser("busy", __doc__)
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, with commas between (default 1,2,4)")
    parser.add_argument("--loops", default="0,4", help="busy loops beside them, with commas between (default 0,4)")
    parser.add_argument("--epochs", type=int, default=20, help="that count (default 20), after one that does not")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind; the least counts (default 3)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        measure(options.rank, options.count, options.epochs)
        return 0
    ways = [way for way in WAYS if OWN[way] == "plain" or peers.TENSORFLOW.ready]
    rows = []
    for loops in map(int, options.loops.split(",")):
        for count in map(int, options.ranks.split(",")):
            taken: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(options.rounds):
                for way in ways:
                    with launching.busy(loops):
                        taken[way].append(run(way, count, options.epochs))
            least = {way: {name: min(one[name] for one in all_) for name in all_[0]} for way, all_ in taken.items()}
            for way in ways:
                cpu, seconds, own = least[way]["cpu"], least[way]["seconds"], least[OWN[way]]
                ratios = [f"{cpu / own['cpu']:.2f}", f"{seconds / own['seconds']:.2f}"]
                rows.append([str(loops), str(count), WAYS[way], f"{cpu:.2f}", ratios[0], f"{seconds:.2f}", ratios[1]])
    columns = ["busy loops", "ranks", "", "CPU s", "CPU / own work", "seconds", "seconds / own work"]
    title = f"{options.epochs} epochs of {ROWS} rows, batches of {BATCH}"
    tables.show(title, columns, rows, labels=3, less=["CPU s", "seconds"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
