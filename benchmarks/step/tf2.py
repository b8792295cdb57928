"""A rank with TensorFlow 2.15 and Keras 2: in lock step, with Horovod, or with MultiWorkerMirroredStrategy.

python -m benchmarks.step.tf2 MODEL BATCH lockstep|horovod|mirrored
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.step import models
from benchmarks.step.matex import plain
from benchmarks.step.turns import LOCK_STEP, Rank

HOROVOD, MIRRORED = "Horovod", "MultiWorkerMirrored"
PORTS = "STEP_PORTS"  # one for each rank, with commas between


def horovod(model_name: str, batch: int) -> tuple[Any, Callable[[], Any]]:
    """A model with Horovod's optimizer, and its step; Horovod's settings are its own."""
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    hvd.init()
    model = models.in_keras(model_name)
    models.compile_keras(model, hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.001)))
    batches = iter(tf.data.Dataset.from_tensors(models.rows(model_name, batch)).repeat())
    model.make_train_function()
    function = model.train_function
    return model, lambda: function(batches)


def mirrored(model_name: str, batch: int, rank: Rank) -> tuple[Any, Callable[[], Any]]:
    """A model of the strategy, whose workers talk over gRPC, and its step."""
    workers = [f"127.0.0.1:{port}" for port in os.environ[PORTS].split(",")]
    task = {"type": "worker", "index": rank.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = models.in_keras(model_name)
        models.compile_keras(model)
    data = tf.data.Dataset.from_tensors(models.rows(model_name, batch)).repeat()
    batches = iter(strategy.distribute_datasets_from_function(lambda _: data))
    model.make_train_function()
    function = model.train_function
    return model, lambda: function(batches)


def main() -> None:
    rank = Rank()
    model_name, batch, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if how == "lockstep":
        model, step = plain(model_name, batch)
        rank.serve({LOCK_STEP: rank.lock_step(step)}, models.parameters(model))
    elif how == "horovod":
        model, step = horovod(model_name, batch)
        rank.serve({HOROVOD: step}, models.parameters(model))
    model, step = mirrored(model_name, batch, rank)
    rank.serve({MIRRORED: step}, models.parameters(model))


if __name__ == "__main__":
    main()
