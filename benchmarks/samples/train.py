"""On one rank: train a network with one seed in each way, in turn."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks import launching
from benchmarks.samples.tasks import TASKS, Task

_PLAIN = {"prune_samples": 0.0}
#: Ways to train, by what they change of the settings.
WAYS: dict[str, dict[str, Any]] = {
    "all rows": _PLAIN,
    "InfoBatch": {},
    "not scaled": {"prune_samples_rescale": False},
    "at random": {"prune_samples_by": "random"},
    "fixed subset": _PLAIN,
    "all rows scored": _PLAIN,
}
#: The way that all are compared with; ours; the one that trains on as many rows; the one that writes a file.
FIRST, OURS, SUBSET, SCORED = "all rows", "InfoBatch", "fixed subset", "all rows scored"


class Clock:
    """The CPU seconds of the process, and the time, at the ends of epochs."""

    def __init__(self) -> None:
        import keras

        self.times: list[float] = []
        self.walls: list[float] = []
        self.callback = keras.callbacks.LambdaCallback(on_epoch_begin=self._note, on_epoch_end=self._note)

    def _note(self, epoch: int, logs: Any) -> None:
        self.times.append(time.process_time())
        self.walls.append(time.perf_counter())


def compiled(task: Task, rows: int, epochs: int, seed: int) -> Any:
    """A network that begins as this seed has it, for a training on so many rows."""
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(100 + seed)
    model = task.model(keras, task.width)
    model.compile(task.optimizer(keras, rows, epochs), task.loss, metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    return model


def traced(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> None:
    """Trace the step, also for a last batch that is not full; the network is then as it was before."""
    variables = model.variables + model.optimizer.variables
    begin, few = [np.array(variable) for variable in variables], 5 * batch // 2
    model.fit(x[:few], y[:few], batch_size=batch, verbose=0)
    for variable, value in zip(variables, begin, strict=True):
        variable.assign(value)


def measure(task: Task, seed: int, epochs: int, rate: float, wanted: list[str]) -> None:
    """Tell of each way CPU seconds, accuracy of the test, and the part of the rows that was used."""
    import keras

    from matex_tf import settings
    from matex_tf.features.samples.options import SampleOptions, Scored
    from matex_tf.state import run_state

    data, labels = task.make_data(task.rows + task.tested)
    test = data[task.rows :], labels[task.rows :]
    chosen = settings.current()
    first = seed % len(wanted)
    order = [*wanted[first:], *wanted[:first]]
    found: dict[str, dict[str, float]] = {}
    for way in sorted(order, key=SUBSET.__eq__):  # the subset has as many rows as InfoBatch has used
        file = chosen.of(SampleOptions).sample_scores if way == SCORED else ""
        settings.use(chosen.changed(**{"prune_samples": rate, "sample_scores": file, **WAYS[way]}))
        run_state.current().begin(Scored())  # draws depend on the number of the fit
        x, y = data[: task.rows], labels[: task.rows]
        if way == SUBSET:
            count = round(found[OURS]["used"] * task.rows)
            kept = np.sort(np.random.default_rng(seed).permutation(task.rows)[:count])
            x, y = x[kept], y[kept]
        model = compiled(task, len(y), epochs, seed)
        traced(model, x, y, task.batch)
        keras.utils.set_random_seed(200 + seed)
        clock = Clock()
        history = model.fit(x, y, batch_size=task.batch, epochs=epochs, verbose=0, callbacks=[clock.callback])
        used = sum(history.history.get("rows_used", [len(y)] * epochs)) / (task.rows * epochs)
        found[way] = {
            "seconds": clock.times[-1] - clock.times[0],
            "accuracy": model.evaluate(*test, batch_size=500, verbose=0)[1],
            "used": used,
            "wall": clock.walls[-1] - clock.walls[0],
            "last_loss": history.history["loss"][-1],
        }
    launching.tell(found)


if __name__ == "__main__":
    measure(TASKS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5].split(","))
