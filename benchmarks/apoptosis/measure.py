"""What is measured of a training: parameters, FLOPs, seconds, processor seconds and the score, after each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def places(model: Any) -> dict[str, int]:
    """For each layer with a kernel, at how many places of a row it is applied; taken before neurons go."""
    found = {}
    for layer in model.layers:
        if _kernel(layer) is not None:
            shape = layer.output.shape[1:-1] if hasattr(layer, "output") else ()
            found[layer.name] = int(np.prod([size or 1 for size in shape])) if len(shape) else 1
    return found


def _kernel(layer: Any) -> Any:
    """The kernel of a layer, or of the one that it wraps; None where there is none."""
    return getattr(getattr(layer, "layer", layer), "kernel", None)


def flops(model: Any, at: dict[str, int]) -> int:
    """Of a row, forward: two for each weight of a kernel and each place."""
    total = 0
    for layer in model.layers:
        kernel = _kernel(layer)
        if kernel is not None:
            total += 2 * int(np.prod([int(size) for size in kernel.shape])) * at.get(layer.name, 1)
    return total


def parameters(model: Any) -> int:
    """Weights that are trained."""
    return sum(int(np.prod([int(size) for size in weight.shape])) for weight in model.trainable_variables)


def recorder(keras: Any, score: str, rows: int, sum_over_ranks: Callable[[float], float] = float) -> Any:
    """A callback with `epochs`, a list of what was found after each epoch.

    Args:
        keras: whose callback it is.
        score: the name in the logs.
        rows: that are trained an epoch.
        sum_over_ranks: adds up processor seconds.
    """

    class Recorder(keras.callbacks.Callback):
        epochs: list[dict[str, float]]

        def on_train_begin(self, logs: Any = None) -> None:
            if hasattr(self, "epochs"):  # another fit of the same training
                return
            self.epochs = []
            self.at = places(self.model)
            self.begin, self.cpu = time.perf_counter(), time.process_time()
            self.done = 0.0
            self.before = flops(self.model, self.at)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now = flops(self.model, self.at)
            self.done += 3 * rows * (self.before + now) / 2  # backward takes twice what forward takes
            self.before = now
            self.epochs.append(
                {
                    "score": float(logs[score]),
                    "parameters": parameters(self.model),
                    "flops": now,
                    "trained flops": self.done,
                    "seconds": time.perf_counter() - self.begin,
                    "cpu": sum_over_ranks(time.process_time() - self.cpu),
                }
            )

    return Recorder()
