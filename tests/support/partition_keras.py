"""Training steps of Keras for the partitioner's unit tests: traced, not trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.partition.step import Partitioned
from tests.support.partition import Meeting, ThreadExchange


def model_of(layers: Sequence[Any], shape: Sequence[int], optimizer: Any = "sgd", **options: Any) -> Any:
    """A compiled model, whose variables are all made."""
    model = keras.Sequential([keras.Input(tuple(shape)), *layers])
    model.compile(optimizer, options.pop("loss", "mse"), jit_compile=False, **options)
    model.optimizer.build(model.trainable_variables)
    return model


def plan_of(model: Any, *specs: Any, **options: Any) -> Any:
    """The plan of a model's training step on batches of these specs; options: of `Partitioned`."""

    def step(*batch: Any) -> Any:
        return model.train_step(batch)

    model.train_step(tuple(np.ones([2, *spec.shape[1:]], spec.dtype.as_numpy_dtype) for spec in specs))
    traced = tf.function(step).get_concrete_function(*specs)
    return Partitioned(traced, [True] * len(specs), ThreadExchange(Meeting(1), 0), **options).plan


def levels(plan: Any) -> list[list[str]]:
    """The names of what is exchanged, by level."""
    found: dict[int, list[str]] = {}
    for tensor, level in plan.exchanges.items():
        found.setdefault(level, []).append(tensor.name)
    return [found[level] for level in sorted(found)]
