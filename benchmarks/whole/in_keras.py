"""A job in Keras: python benchmarks/whole/in_keras.py TASK WAY RESULT TABLE

The ways plain, jax and matex_tf are one script, which knows nothing of ranks. But matex_tf reads the table by
`DataSet`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.whole import clock, tasks

PORTS = "WHOLE_PORTS"  # of the workers of a strategy, with commas between


def read(table: str, way: str) -> tuple[Any, Any]:
    """The columns of a CSV file, float32, and its labels."""
    if way == "matex_tf":
        from matex_tf import DataSet

        data = DataSet("CSV", train_file=table, y="label", one_hot=False)
        return data.training_data, data.training_labels
    import pandas

    frame = pandas.read_csv(table, dtype="float32")
    return frame[frame.columns[:-1]].to_numpy(), frame["label"].to_numpy().astype("int32")


def steps_of(time: clock.Clock, keras: Any) -> Any:
    """A callback that notes how long the first step takes, and validations."""

    class Steps(keras.callbacks.Callback):
        first, test = True, 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.first:
                time.done("first step")
                self.first = False

        def on_test_begin(self, logs: Any = None) -> None:
            self.test = clock.now()

        def on_test_end(self, logs: Any = None) -> None:
            time.done("evaluation", clock.now() - self.test)

    return Steps()


def worker() -> int:
    """Which worker of a strategy this is; tells TensorFlow so."""
    number = int(os.environ["OMPI_COMM_WORLD_RANK"])
    workers = [f"127.0.0.1:{port}" for port in os.environ[PORTS].split(",")]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": number}})
    return number


def main(name: str, way: str, result: str, table: str) -> None:
    time = clock.Clock()
    task, rank, size = tasks.TASKS[name], worker() if way == "mirrored" else 0, 1
    if way in ("horovod", "mirrored"):
        from tensorflow import keras
    else:
        import keras
    time.done("import")
    callbacks = [steps_of(time, keras)]
    scope: Any = None
    if way == "horovod":
        import horovod.tensorflow.keras as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        callbacks += [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    if way == "mirrored":
        import tensorflow as tf

        scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
    keras.utils.set_random_seed(7)
    time.done("start")
    if name == "tabular":
        (x, y), held = read(table, way), None
    else:
        x, y = tasks.rows(name, task.steps * task.batch)
        held = tasks.rows(name, task.validation or 1000, seed=1)
    if way == "horovod":
        x, y = x[rank::size], y[rank::size]
    time.done("input")
    if scope is not None:
        scope.__enter__()
    model, trainer = tasks.network(name, keras), keras.optimizers.Adam(0.001)
    if way == "horovod":
        trainer = hvd.DistributedOptimizer(trainer)
    model.compile(trainer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    if scope is not None:
        scope.__exit__(None, None, None)
    time.done("model")
    more = {"validation_data": held} if task.validation else {}
    fitted = model.fit(x, y, batch_size=task.batch // size, epochs=task.epochs, verbose=0, callbacks=callbacks, **more)
    time.done("steps")
    if held is not None and not task.validation:
        model.evaluate(*held, verbose=0)
    time.done("evaluation")
    if not rank or way == "mirrored":  # every worker of a strategy has to save
        model.save(f"{result}.{rank}.keras")
    time.done("saving")
    time.write(result, fitted.history["accuracy"][-1])


if __name__ == "__main__":
    main(*sys.argv[1:5])
