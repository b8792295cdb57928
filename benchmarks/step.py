"""What an exchange adds to a training step: each schedule and bucket size over lock step, in turn, in one run.

Lock step is the same step with the ranks meeting in each, and no bytes: what no exchange can be faster than. Every
configuration has a model of its own; the rounds go through all of them, so that what else the machine does falls on
all alike. Figures are medians over the rounds of the slowest rank's mean step of a round.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("small", "lenet", "mlp", "resnet")
BATCH = {"small": 32, "lenet": 64, "mlp": 64, "resnet": 16}  # rows of a rank
LOCK_STEP = "lock step"


def build(name: str) -> tuple[Any, tuple[int, ...]]:
    """A model, compiled, and the shape of a row: 7 k, 1.3 M, 25 M and 23.6 M parameters."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(7)
    if name == "small":
        shape: tuple[int, ...] = (64,)
        body = [layers.Dense(64, activation="relu"), layers.Dense(32, activation="relu")]
    elif name == "lenet":
        shape = (28, 28, 1)
        body = [
            layers.Conv2D(20, 5, activation="relu", padding="same"),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5, activation="relu", padding="same"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
        ]
    elif name == "mlp":
        shape = (2048,)
        body = [layers.Dense(2048, activation="relu") for _ in range(6)]
    else:
        shape = (64, 64, 3)
        body = [keras.applications.ResNet50(include_top=False, weights=None, input_shape=shape, pooling="avg")]
    model = keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.001), loss, jit_compile=False)
    return model, shape


class LockStep:
    """A strategy that lets the ranks meet, and sums nothing."""

    def __call__(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        import tensorflow as tf

        from matex_tf import world

        def meet() -> np.ndarray:
            world.current().meet("exchange gradients")
            return np.array(0, np.int32)

        with tf.control_dependencies(list(gradients)):
            met = tf.numpy_function(meet, [], tf.int32, stateful=True)
        with tf.control_dependencies([met]):
            return [tf.identity(gradient) for gradient in gradients]


class Configuration:
    """One way to exchange, with a model that trains so."""

    def __init__(self, model: str, name: str, batch: int):
        import tensorflow as tf

        from matex_tf import settings, strategies, world
        from matex_tf.patches import optimizer

        self.name = name
        before, strategy = settings.current(), optimizer._strategy
        if name == LOCK_STEP:
            optimizer._strategy = LockStep()  # type: ignore[assignment]
        else:
            optimizer._strategy = strategies.create()
            schedule, _, bucket = name.partition(" ")
            settings.use(dataclasses.replace(before, schedule=schedule, bucket_mb=int(bucket)))
        self.model, shape = build(model)
        random = np.random.RandomState(0)
        # The same rows for every rank, so that weights stay alike in lock step too.
        x = np.concatenate([random.normal(size=(batch, *shape)).astype("float32")] * world.size())
        y = np.concatenate([random.randint(0, 10, batch).astype("int32")] * world.size())
        data = tf.data.Dataset.from_tensors((x, y)).repeat()
        self._batches = iter(data)
        self._step = self.model.make_train_function()
        for _ in range(2):  # the first traces the graph, by the settings of now
            self._step(self._batches)
        optimizer._strategy = strategy
        settings.use(before)

    def run(self, steps: int) -> float:
        """Seconds of a step, the mean of some."""
        begin = time.perf_counter()
        for _ in range(steps):
            self._step(self._batches)
        return (time.perf_counter() - begin) / steps


def rank_main(options: argparse.Namespace) -> None:
    """One rank: every configuration in turn; rank 0 prints the figures."""
    from matex_tf import patches, world

    ranks = world.init()
    patches.install(seed=7)
    figures = []
    for model in options.models.split(","):
        names = [LOCK_STEP, *options.configurations.split(",")]
        every = [Configuration(model, name, options.batch or BATCH[model]) for name in names]
        seconds: dict[str, list[float]] = {name: [] for name in names}
        steps = options.steps
        for _ in range(options.rounds + 1):
            for one in every:
                ranks.meet("start a round")
                mean = one.run(steps)
                seconds[one.name].append(max(ranks.gather(mean, "compare steps")))
        weights = int(sum(np.prod(v.shape) for v in every[0].model.trainable_variables))
        base = statistics.median(seconds[LOCK_STEP][1:])
        for name in names:
            counted = seconds[name][1:]
            median = statistics.median(counted)
            figures.append(
                {
                    "model": model, "parameters": weights, "ranks": ranks.size, "configuration": name,
                    "milliseconds": median * 1e3, "spread": [min(counted) * 1e3, max(counted) * 1e3],
                    "over_lock_step": (median - base) * 1e3,
                }
            )  # fmt: skip
    if ranks.rank == 0:
        print("RESULT " + json.dumps(figures), flush=True)
    ranks.meet("end")
    os._exit(0)  # TensorFlow takes seconds to leave by itself


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench step", description=__doc__.split("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--hosts", default="", help="as for matex-tf run; with benchmarks/hosts.py, emulated ones")
    parser.add_argument("--models", default="small,lenet,mlp", help=f"of {', '.join(MODELS)} (default small,lenet,mlp)")
    parser.add_argument(
        "--configurations",
        default="chained 1024,chained 32,funneled 32,concurrent 32,chained 8,funneled 8,concurrent 8",
        help="schedule and megabytes of a bucket, one behind the other, with commas between",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default 7), behind one that does not")
    parser.add_argument("--steps", type=int, default=5, help="steps of a round (default 5)")
    parser.add_argument("--batch", type=int, default=0, help="rows of a rank (default: the model's)")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        rank_main(options)
        return
    from rich.console import Console
    from rich.table import Table

    from matex_tf import launch

    line = launch.mpirun_line(launch.find_mpirun(), options.ranks, options.hosts)
    given = [word for word in sys.argv[1:] if word != "--as-rank"]
    environ = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    here = str(Path(__file__).resolve())
    done = launch_and_read([*line, sys.executable, here, "--as-rank", *given], environ)
    figures = json.loads(done)
    table = Table(title=f"a training step on {options.ranks} ranks (median of {options.rounds} rounds)")
    for column in ("model", "parameters", "exchange", "ms a step", "spread", "over lock step"):
        table.add_column(column, justify="left" if column in ("model", "exchange") else "right")
    for figure in figures:
        low, high = figure["spread"]
        over = "" if figure["configuration"] == LOCK_STEP else f"{figure['over_lock_step']:+.2f}"
        table.add_row(
            figure["model"], f"{figure['parameters']:,}", figure["configuration"], f"{figure['milliseconds']:.2f}",
            f"{low:.2f} to {high:.2f}", over,
        )  # fmt: skip
    Console(highlight=False, width=110).print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))


def launch_and_read(command: Sequence[str], environ: dict[str, str]) -> str:
    """Run a job; what it printed behind RESULT."""
    import subprocess

    done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace")
    for text in done.stdout.splitlines():
        if text.startswith("RESULT "):
            return text.removeprefix("RESULT ")
    sys.exit(f"the job failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    main()
