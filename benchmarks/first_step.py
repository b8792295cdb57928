"""What it takes to hold the first training step of a model against one rank (`--check`), beside a step.

One job for each number of ranks trains models with a `train_step` of their own, a new one each time, whose first steps
are checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from benchmarks import launching, tables

MODELS = {"mlp": "MLP, 1.3 M weights", "convnet": "convnet"}
_BATCH, _STEPS = 64, 20  # rows of a batch, steps after the first


def _body(name: str) -> Any:
    import keras
    from keras import layers

    if name == "mlp":
        hidden = [layers.Flatten(), layers.Dense(512, activation="relu"), layers.Dense(256, activation="relu")]
    else:
        hidden = [
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3),
            layers.Flatten(),
        ]
    return keras.Sequential([keras.Input((28, 28, 3)), *hidden, layers.Dense(10)])


def measure(name: str, rounds: int) -> None:
    """On a rank: milliseconds of a check, and of a step."""
    import keras
    import numpy as np
    import tensorflow as tf

    from matex_tf.patches.checking import one_rank
    from matex_tf.patches.fit.step import first_step

    spent: list[float] = []

    def timed(function: Any) -> Any:
        def call(*args: Any) -> Any:
            begun = time.perf_counter()
            result = function(*args)
            spent.append(1000 * (time.perf_counter() - begun))
            return result

        return call

    setattr(first_step, "begin", timed(first_step.begin))  # noqa: B010 (of a module)
    setattr(one_rank.Check, "tell", timed(one_rank.Check.tell))  # noqa: B010

    class Trained(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = _body(name)

        def train_step(self, data: Any) -> Any:
            x, y, *_ = data
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.body(x, training=True))
                loss = tf.reduce_mean(each)
            self.optimizer.apply(tape.gradient(loss, self.body.trainable_variables), self.body.trainable_variables)
            return {"loss": loss}

    random = np.random.RandomState(0)
    x = random.rand(_BATCH, 28, 28, 3).astype("float32")
    y = random.randint(0, 10, _BATCH).astype("int32")
    steps, checks = [], []
    for _ in range(rounds):
        model = Trained()
        model.compile(keras.optimizers.SGD(0.01))
        spent.clear()
        for _ in range(1 + _STEPS):
            begun = time.perf_counter()
            model.train_on_batch(x, y)
            steps.append(1000 * (time.perf_counter() - begun))
        checks.append(sum(spent))
    launching.tell({"check": min(checks), "step": statistics.median(steps)})


def main() -> int:
    parser = tables.parser("first_step", __doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="with commas between: " + ", ".join(MODELS))
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas between (default 2,4)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="models of each kind, of which the least counts (default 5)"
    )
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        measure(options.rank, options.rounds)
        return 0
    rows, figures = [], []
    for name in options.models.split(","):
        words = ["-m", "matex_tf", "-m", "benchmarks.first_step", "--rank", name, "--rounds", str(options.rounds)]
        for count in options.ranks.split(","):
            times = launching.on_ranks(int(count), words)
            figures.append({"model": name, "ranks": int(count), **times})
            rows.append([MODELS[name], f"{count} ranks", f"{times['step']:.1f}", f"{times['check']:.0f}"])
    columns = ["model", "on", "a step", "the check, once"]
    tables.show("milliseconds of a step, and of the check", columns, rows, labels=2, less=columns[2:])
    tables.keep(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
