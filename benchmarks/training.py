"""One rank that trains with one strategy after the other, on handwritten digits, and times steps.

python -m benchmarks.training MODEL COMPUTE ROWS ROUNDS STEPS ACCURACY "sync" "sync int8" "server" …     (under mpirun)
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks import accelerator, launching
from benchmarks.step import models

#: Ranks that compute and update, and exchange nothing.
COMPUTE = "compute"
#: A parameter server on rank 0, which is a yardstick and no strategy of matex_tf.
SERVER = "one-server"
#: Steps between two looks at the accuracy, and the most steps that there may be.
LOOK, MOST = 10, 600


def strategy(name: str, settings: Any) -> Any:
    """The strategy that is made here and nowhere else; None for one of matex_tf."""
    import tensorflow as tf

    from matex_tf import strategies
    from matex_tf.core import world

    class Compute(strategies.Strategy):
        replicas_identical = False

    class Server(strategies.Strategy):
        """Rank 0 gets all gradients, adds them up, and gives each rank as many bytes back as it got."""

        comm: Any = None

        def exchange(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
            def serve(*arrays: np.ndarray) -> list[np.ndarray]:
                ranks = world.current()
                from mpi4py import MPI

                comm = self.comm = self.comm or MPI.COMM_WORLD.Dup()
                flat = np.concatenate([array.reshape(-1) for array in arrays])
                if ranks.rank == 0:
                    other = np.empty_like(flat)
                    for source in range(1, ranks.size):
                        comm.Recv(other, source)
                        np.add(flat, other, out=flat)
                    for target in range(1, ranks.size):
                        comm.Send(flat, target)
                else:
                    comm.Send(flat, 0)
                    comm.Recv(flat, 0)
                ends = np.cumsum([array.size for array in arrays])[:-1]
                parts = np.split(flat, ends)
                return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

            sums = tf.numpy_function(serve, list(gradients), [one.dtype for one in gradients], stateful=True)
            for total, gradient in zip(sums, gradients, strict=True):
                total.set_shape(gradient.shape)
            return list(sums)

    return {COMPUTE: Compute, SERVER: Server}[name](settings) if name in (COMPUTE, SERVER) else None


def words(
    model: str, compute: float, rows: int, rounds: int, steps: int, accuracy: float, names: Sequence[str]
) -> list[str]:
    """What follows the interpreter's name, for a rank that does what this module does."""
    return ["-m", "benchmarks.training", model, *map(str, (compute, rows, rounds, steps, accuracy)), *names]


class Training:
    """A model that is trained in one way.

    Args:
        name: a strategy and, if any, a codec: "pipe int8".
        rows: of a rank in each batch.
        compute: seconds of computing that are emulated, see `accelerator`.
    """

    def __init__(self, name: str, model_name: str, rows: int, compute: float):
        from matex_tf import settings

        kind, _, codec = name.partition(" ")
        self.name, self._x, self._y = name, *digits(model_name)
        own = kind in (COMPUTE, SERVER)
        before = settings.current()
        changes: dict[str, Any] = {"strategy": "sync" if own else kind, "codec": codec or "none"}
        self._settings = dataclasses.replace(before, **changes)
        self._strategy = strategy(kind, self._settings)
        self._before = before
        self._begin()
        self.model = accelerator.slowed(models.in_keras(model_name), compute)
        from tensorflow import keras

        models.compile_keras(self.model, keras.optimizers.SGD(0.02))
        self.model.make_train_function()
        self._batches = self._shared_out(rows)
        self.steps(3)
        self.end()

    def _begin(self) -> None:
        """Let the settings and the strategy be those of this training."""
        from matex_tf import settings, strategies

        settings.use(self._settings)
        if self._strategy is None:
            self._strategy = strategies.create()
        strategies.use(self._strategy)

    def _shared_out(self, rows: int) -> Iterator[Any]:
        """This rank's rows of each batch, for ever, as they come out of the pipeline of `fit`."""
        import tensorflow as tf

        from matex_tf.core import world
        from matex_tf.patches.common.row_slicing import RowRange
        from matex_tf.patches.data.local_batch import LocalBatch

        ranks = world.current()
        order = np.random.RandomState(0).permutation(len(self._x))
        whole = order[: len(order) // (rows * ranks.size) * rows * ranks.size].reshape(-1, ranks.size, rows)
        mine = whole[:, ranks.rank]
        share = tf.constant(RowRange.own([rows] * ranks.size, ranks.rank))
        data = tf.data.Dataset.from_tensor_slices(mine).map(
            lambda here: LocalBatch.unknown(tf.gather(self._x, here), tf.gather(self._y, here))._replace(share=share)
        )
        return iter(data.repeat())

    def steps(self, count: int) -> None:
        """Run so many steps."""
        self._begin()
        for _ in range(count):
            self.model.train_function(self._batches)

    def end(self) -> None:
        """Apply what is under way."""
        from matex_tf import settings

        self._begin()
        self._strategy.flush(self.model)
        settings.use(self._before)

    def accuracy(self) -> float:
        """Of all digits."""
        parts = [self.model(self._x[low : low + 256]).numpy().argmax(1) for low in range(0, len(self._x), 256)]
        return float((np.concatenate(parts) == self._y).mean())


def digits(model_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's handwritten digits in the shape of a model's input, float32 and int32."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    if model_name == "lenet":
        large = np.kron(images.reshape(-1, 8, 8), np.ones((1, 3, 3), np.float32))
        images = np.pad(large, ((0, 0), (2, 2), (2, 2)))[..., None]
    elif model_name == "digits":
        images = images.reshape(-1, *models.SHAPES[model_name])
    else:
        images = np.tile(images, (1, models.SHAPES[model_name][0] // images.shape[1]))
    return images, labels.astype(np.int32)


def sums(model: Any, names: Sequence[str], rounds: int) -> dict[str, float]:
    """Median seconds of a strategy's exchange of a model's gradients alone."""
    from matex_tf import settings
    from matex_tf.core import world
    from matex_tf.exchange import process_group
    from matex_tf.exchange.bucket import BucketPlan

    ranks, random = world.current(), np.random.default_rng(0)
    arrays = [random.normal(size=tuple(one.shape)).astype(np.float32) for one in model.trainable_variables]
    labels, found = [one.path for one in model.trainable_variables], {}
    for name in names:
        strategy, _, codec = name.partition(" ")
        before = settings.use(dataclasses.replace(settings.current(), codec=codec or "none"))
        plan = BucketPlan.of("measure", labels, arrays, coded=True, at_once=strategy == "pipe")
        settings.use(before)
        seconds = []
        for _ in range(rounds + 1):
            ranks.barrier("begin")
            begin = time.perf_counter()
            process_group.sum_planned(ranks, plan, arrays)
            seconds.append(max(ranks.allgather(time.perf_counter() - begin, "compare sums")))
        found[name] = statistics.median(seconds[1:])
    return found


def timed(training: Training, steps: int) -> float:
    """Seconds of a step, of the slowest rank, with the pipe full."""
    from matex_tf.core import world

    ranks = world.current()
    training.steps(2)
    ranks.barrier("begin")
    begin = time.perf_counter()
    training.steps(steps)
    seconds = (time.perf_counter() - begin) / steps
    training.end()
    return float(max(ranks.allgather(seconds, "compare steps")))


def until(training: Training, target: float) -> tuple[float | None, int, float]:
    """Seconds of training until this accuracy, None where it was not reached; steps; and the accuracy then."""
    from matex_tf.core import world

    ranks, spent, reached = world.current(), 0.0, 0.0
    for steps in range(LOOK, MOST + 1, LOOK):
        ranks.barrier("begin")
        begin = time.perf_counter()
        training.steps(LOOK)
        training.end()
        spent += time.perf_counter() - begin
        reached = ranks.broadcast(training.accuracy(), "share the accuracy")
        if reached >= target:
            return spent, steps, reached
    return None, MOST, reached


def main() -> None:
    model_name, compute, (rows, rounds, steps) = sys.argv[1], float(sys.argv[2]), map(int, sys.argv[3:6])
    target, names = float(sys.argv[6]), sys.argv[7:]
    from matex_tf import patches
    from matex_tf.core import world

    ranks = world.init()
    patches.install(seed=7)
    trainings = [Training(name, model_name, rows, compute) for name in (COMPUTE, *names)]
    seconds: dict[str, list[float]] = {training.name: [] for training in trainings}
    for _ in range(rounds):
        for training in trainings:
            seconds[training.name].append(timed(training, steps))
    summing = [name for name in names if name.split()[0] in ("sync", "pipe")]
    alone = sums(trainings[0].model, summing, rounds)
    parameters = models.parameters(trainings[0].model)
    found: list[dict[str, Any]] = []
    for name in seconds:
        figure: dict[str, Any] = {"strategy": name, "model": model_name, "parameters": parameters}
        figure["seconds"] = statistics.median(seconds[name])
        figure["spread"] = [min(seconds[name]), max(seconds[name])]
        figure["exchange"] = alone.get(name)
        if target and name != COMPUTE:
            fresh = Training(name, model_name, rows, compute)
            figure["until"], figure["steps"], figure["accuracy"] = until(fresh, target)
        found.append(figure)
    if ranks.rank == 0:
        launching.tell(found)


if __name__ == "__main__":
    main()
