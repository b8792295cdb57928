"""One rank of an example of Horovod's (see horovod_examples.py): little made data, few steps; else as it is."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import wrapt

ROWS = 256


def made_data(*_: Any, **__: Any) -> Any:
    """Images and labels in MNIST's shapes."""
    draw = np.random.default_rng(0)
    parts = [
        (draw.integers(0, 256, (rows, 28, 28), np.uint8), draw.integers(0, 10, rows)) for rows in (ROWS, ROWS // 2)
    ]
    return tuple((images, labels.astype(np.uint8)) for images, labels in parts)


def _take(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(3)


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    most = {"epochs": 2, "steps_per_epoch": 2, "validation_steps": 2}
    return wrapped(
        *args, **{**kwargs, **{name: min(kwargs[name] or n, n) for name, n in most.items() if name in kwargs}}
    )


def main(script: str, arguments: list[str]) -> None:
    """Run it."""
    for package in {keras, tf.keras, sys.modules.get("tf_keras", keras)}:
        package.datasets.mnist.load_data = made_data
    wrapt.wrap_function_wrapper(tf.data.Dataset, "take", _take)
    for model in {keras.Model, tf.keras.Model}:  # two where TF_USE_LEGACY_KERAS is set
        wrapt.wrap_function_wrapper(model, "fit", _fit)
    sys.argv[:] = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


main(sys.argv[1], sys.argv[2:])
