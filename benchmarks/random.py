"""What random draws by row add to a training step, beside draws that each rank makes for itself.

One job for each number of ranks trains with both, in turn, in blocks of steps. Of all steps of a way the fastest tenth
counts, and its median, as whatever else the machine does comes on top.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from benchmarks import launching, tables

WAYS = ("own", "by row")
MODELS = {"convnet": "convnet, 3 dropouts", "transformer": "transformer, 2 blocks", "noise": "MLP, tf.random noise"}
_BATCH, _STEPS = 64, 20  # rows of a batch, steps of a block


def _model(name: str) -> Any:
    import keras
    import tensorflow as tf
    from keras import layers

    if name == "convnet":
        body: list[Any] = [keras.Input((28, 28, 3))]
        for filters in (16, 32):
            body += [layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D(), layers.SpatialDropout2D(0.2)]
        body += [layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dropout(0.5)]
        return keras.Sequential([*body, layers.Dense(10, activation="softmax")])
    inputs = keras.Input((32, 64))
    hidden = inputs
    if name == "transformer":
        for _ in range(2):
            seen = layers.MultiHeadAttention(4, 16, dropout=0.1)(hidden, hidden)
            hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.1)(seen))
            wide = layers.Dense(64)(layers.Dense(128, activation="relu")(hidden))
            hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.1)(wide))
    else:

        class Noise(layers.Layer):
            def call(self, x: Any) -> Any:
                return x + tf.random.normal(tf.shape(x), stddev=0.1)

        for _ in range(2):
            hidden = layers.Dense(64, activation="relu")(Noise()(hidden))
    pooled = layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(pooled))


def measure(name: str, rounds: int) -> None:
    """On a rank: milliseconds of a step of each way."""
    import keras
    import numpy as np

    from matex_tf.patches.common import under_way

    class Clock(keras.callbacks.Callback):
        def __init__(self, times: list[float]):
            super().__init__()
            self.times = times

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(1000 * (time.perf_counter() - self.begun))

    random = np.random.RandomState(0)
    models = {}
    for way in WAYS:
        keras.utils.set_random_seed(1)
        models[way] = _model(name)
        models[way].compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    x = random.rand(_BATCH * _STEPS, *models[WAYS[0]].input_shape[1:]).astype("float32")
    y = random.randint(0, 10, len(x))
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(1 + rounds):
        for way, model in models.items():
            # What a step draws is settled when it is traced, in the first round.
            with under_way.having(draws_apart=True) if way == "own" else contextlib.nullcontext():
                model.fit(x, y, batch_size=_BATCH, shuffle=False, verbose=0, callbacks=[Clock(spent[way])])
    launching.tell({way: float(np.median(sorted(times[_STEPS:])[: len(times) // 10])) for way, times in spent.items()})


def main() -> int:
    parser = tables.parser("random", __doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="with commas between: " + ", ".join(MODELS))
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas between (default 2,4)")
    parser.add_argument("--rounds", type=int, default=20, help="blocks of steps of each way (default 20)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        measure(options.rank, options.rounds)
        return 0
    rows, figures = [], []
    for name in options.models.split(","):
        words = ["-m", "matex_tf", "-m", "benchmarks.random", "--rank", name, "--rounds", str(options.rounds)]
        for count in options.ranks.split(","):
            times = launching.on_ranks(int(count), words)
            ratio = times["by row"] / times["own"]
            numbers = [f"{times[way]:.2f}" for way in WAYS]
            figures.append({"model": name, "ranks": int(count), **times})
            rows.append([MODELS[name], f"{count} ranks", *numbers, f"{ratio:.3f}"])
    columns = ["model", "on", "each rank's own", "by row", "ratio"]
    tables.show("milliseconds of a step, by random draws", columns, rows, labels=2, less=columns[2:4])
    tables.keep(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
