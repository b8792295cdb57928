"""Milliseconds of calls on a few rows, on one rank and on several: `predict` of one row, `test_on_batch` of one batch.

Each kind of call is made often, after those calls in which the ranks find out that each may compute it whole. The least
of all times, as whatever else the machine does comes on top.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import launching, tables

KINDS = {
    "predict": "predict, one row",
    "predict_on_batch": "predict_on_batch, one row",
    "test_on_batch": "test_on_batch, 32 rows",
}
_BEFORE = 5  # the first makes graphs; after the second and the fourth the ranks agree


def measure(times: int) -> None:
    """On a rank: time the calls."""
    import keras
    import numpy as np

    random = np.random.RandomState(0)
    x, y = random.rand(32, 784).astype("float32"), random.randint(0, 10, 32)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((784,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    # Every rank tells: a script that asked for its rank would have its calls shared out.
    launching.tell(
        {
            "predict": _least(lambda: model.predict(x[:1], verbose=0), times),
            "predict_on_batch": _least(lambda: model.predict_on_batch(x[:1]), 10 * times),
            "test_on_batch": _least(lambda: model.test_on_batch(x, y), 10 * times),
        }
    )


def _least(call: Callable[[], Any], times: int) -> float:
    spent = []
    for _ in range(_BEFORE + times):
        begun = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begun)
    return 1000 * min(spent[_BEFORE:])


def main() -> int:
    parser = tables.parser("small_calls", __doc__)
    parser.add_argument("-n", type=int, default=2, dest="ranks", help="ranks, beside one")
    parser.add_argument("--times", type=int, default=30, help="calls of predict; ten times as many of the others")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        measure(options.times)
        return 0
    words = ["-m", "matex_tf", "-m", "benchmarks.small_calls", "--rank", "--times", str(options.times)]
    found = {count: launching.on_ranks(count, words) for count in (1, options.ranks)}
    rows = []
    for kind, title in KINDS.items():
        one, several = found[1][kind], found[options.ranks][kind]
        rows.append([title, f"{one:.2f}", f"{several:.2f}", f"{several / one:.2f}"])
    columns = ["call", "1 rank", f"{options.ranks} ranks", "ratio"]
    tables.show("milliseconds of a call", columns, rows, less=columns[1:3])
    tables.keep(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
