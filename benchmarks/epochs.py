"""What an epoch costs beside its steps, and an `evaluate`: milliseconds, plain Keras and ranks.

A small dense network is trained in one long epoch, in short epochs, and in short epochs with a validation. What the
short ones take beyond the steps of the long one is what an epoch costs: callbacks, metrics that are set back, an
iterator that is made and one that is let go of. `tuned` is a script that asks tf.data to tune its pipelines
(`options.autotune.enabled`): a rank with up to 16 cores does not do that by itself, see `patches.imports.thread_pools`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from benchmarks import launching, tables

BATCH, SHORT = 32, 10
WAYS = {
    "plain": "plain Keras, a core",
    "ranks": "matex_tf",
    "plain data": "plain Keras, a core, tf.data",
    "ranks data": "matex_tf, tf.data",
    "ranks tuned": "matex_tf, tf.data, tuned",
}


def measure(way: str, epochs: int) -> dict[str, float]:
    """On a rank: seconds of a step, of an epoch beside its steps, and of an `evaluate` beside its own."""
    import keras
    import numpy as np
    import tensorflow as tf

    random = np.random.RandomState(0)
    x = random.rand(BATCH * SHORT * epochs, 64).astype("float32")
    y = random.randint(0, 10, len(x))
    body = [keras.layers.Dense(64, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((64,)), *body, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    def data(rows: int) -> dict[str, Any]:
        if way in ("plain", "ranks"):
            return {"x": x[:rows], "y": y[:rows], "batch_size": BATCH}
        made = tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows]))
        made = made.map(lambda a, b: (2 * a - 1, b), num_parallel_calls=tf.data.AUTOTUNE)
        made = made.batch(BATCH).prefetch(tf.data.AUTOTUNE)
        if way == "ranks tuned":
            options = tf.data.Options()
            options.autotune.enabled = True
            made = made.with_options(options)
        return {"x": made}

    def seconds(rows: int, count: int, **validation: Any) -> float:
        given = data(rows)
        begun = time.perf_counter()
        model.fit(**given, epochs=count, verbose=0, **validation)
        return time.perf_counter() - begun

    few = data(BATCH * SHORT)
    validation: dict[str, Any] = {"validation_data": few["x"] if "y" not in few else (few["x"], few["y"])}
    if "batch_size" in few:
        validation["validation_batch_size"] = BATCH
    seconds(BATCH * SHORT, 2, **validation)  # traces
    seconds(len(x), 1)
    none = seconds(BATCH * SHORT, 1)
    long = seconds(len(x), 1)
    short = seconds(BATCH * SHORT, epochs + 1)
    both = seconds(BATCH * SHORT, epochs + 1, **validation)
    return {
        "step": (long - none) / (SHORT * (epochs - 1)),
        "epoch": (short - long) / epochs,
        "evaluate": (both - short) / (epochs + 1),
    }


def run(way: str, count: int, epochs: int) -> dict[str, float]:
    """What rank 0 has found."""
    words = ["-m", "benchmarks.epochs", "--rank", way, "--epochs", str(epochs)]
    before = ["-m", "matex_tf"] if way.startswith("ranks") else []
    found: dict[str, float] = launching.on_ranks(count, [*before, *words])
    return found


def main() -> int:
    parser = tables.parser("epochs", __doc__)
    parser.add_argument("--ranks", default="2", help="numbers of ranks, with commas between (default 2)")
    parser.add_argument("--epochs", type=int, default=20, help=f"of {SHORT} steps (default 20)")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind; the least counts (default 3)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        found = measure(options.rank, options.epochs)
        if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
            launching.tell(found)
        return 0
    kinds = [(way, count) for count in map(int, options.ranks.split(",")) for way in WAYS if way.startswith("ranks")]
    kinds = [(way, 1) for way in WAYS if way.startswith("plain")] + kinds
    taken: dict[tuple[str, int], list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            taken[kind].append(run(*kind, options.epochs))
    rows = []
    for (way, count), rounds in taken.items():
        least = [f"{1000 * min(one[what] for one in rounds):.2f}" for what in ("step", "epoch", "evaluate")]
        rows.append([WAYS[way], str(count), *least])
    columns = ["", "ranks", "ms a step", "ms an epoch beside its steps", f"ms an evaluate of {SHORT} steps"]
    tables.show(f"epochs of {SHORT} steps, batches of {BATCH}", columns, rows, labels=2, less=columns[2:])
    tables.keep([{"way": way, "ranks": count, "rounds": rounds} for (way, count), rounds in taken.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
