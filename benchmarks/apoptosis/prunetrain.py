"""A peer: the idea of PruneTrain (Lym et al., SC'19): group lasso from the start, smaller matrices every few epochs.

    python -m benchmarks.apoptosis.prunetrain TASK DATA SEED EPOCHS BATCH WIDTH PENALTY

The penalty is the sum of the norms of each neuron's incoming and outgoing weights (its equation 2), scaled once, so
that it is PENALTY of the whole loss at the start (its section 4.1). What has almost no norm left is cut out by this
package's surgery. Penalty 0 trains without it, in the same process otherwise, which is what its seconds are beside.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

from benchmarks import launching
from benchmarks.apoptosis import measure, tasks
from matex_tf.features.dynamics import surgery

EVERY = 2  # epochs
#: A neuron goes when the weights that read it, or those that it reads, are below this part of the layer's largest.
THRESHOLD = 0.05


class GroupLasso(keras.Regularizer):
    """The sum of norms over the channels that a kernel reads and over those that it makes."""

    def __init__(self, strength: float, reads: bool, makes: bool):
        self.strength, self.reads, self.makes = strength, reads, makes

    def __call__(self, kernel: Any) -> Any:
        ops = keras.ops
        flat = ops.reshape(kernel, (-1, *kernel.shape[-2:]))
        square = ops.sum(ops.square(flat), axis=0)
        total = ops.sum(ops.sqrt(ops.sum(square, axis=0) + 1e-12)) if self.makes else 0.0
        total += ops.sum(ops.sqrt(ops.sum(square, axis=1) + 1e-12)) if self.reads else 0.0
        return self.strength * total


def penalise(model: Any, inputs: np.ndarray, labels: np.ndarray, part: float) -> None:
    """Give all kernels the penalty, scaled to be so much of the loss at the start."""
    layers = [layer for layer in model.layers if hasattr(layer, "kernel")]
    loss = model.evaluate(inputs[:1000], labels[:1000], verbose=0)[0]
    total = sum(
        float(GroupLasso(1.0, place > 0, layer is not layers[-1])(layer.kernel)) for place, layer in enumerate(layers)
    )
    strength = part / (1 - part) * loss / total
    for place, layer in enumerate(layers):
        layer.kernel.regularizer = GroupLasso(strength, place > 0, layer is not layers[-1])


def small(group: surgery.Group) -> list[int]:
    """Of a group of channels, those with almost no weights in all kernels that make them, or in all that read them."""
    dead = np.zeros(group.count, bool)
    for parts in (group.made_by(), group.read_by()):
        total = np.zeros(group.count)
        for part in parts:
            array = np.moveaxis(keras.ops.convert_to_numpy(part.variable), part.axis, 0)
            if array.ndim > 1:
                squares = (array.reshape(len(array), -1) ** 2).sum(axis=1)
                for place, channel in enumerate(group.channels):
                    total[place] += squares[part.channels == channel].sum()
        norms = np.sqrt(total)
        dead |= norms < THRESHOLD * norms.max()
    return [int(place) for place in np.flatnonzero(dead)[: group.count - 1]]


def cut(model: Any) -> None:
    """Take them out, with what is tied to them."""
    groups = surgery.channel_groups(model)
    if gone := {group.name: places for group in groups if (places := small(group))}:
        surgery.remove(model, gone)


def main() -> None:
    name, path, seed, epochs, batch, width, penalty = sys.argv[1:]
    task = tasks.TASKS[name]
    data = np.load(path)
    keras.utils.set_random_seed(int(seed))
    model = task.model(keras, float(width))
    task.compile(keras, model, -(-len(data["train_y"]) // int(batch)) * int(epochs))
    if float(penalty):
        penalise(model, data["train_x"], data["train_y"], float(penalty))
    recorder = measure.recorder(keras, task.score, len(data["train_y"]))
    for first in range(0, int(epochs), EVERY):
        model.fit(
            data["train_x"],
            data["train_y"],
            batch_size=int(batch),
            initial_epoch=first,
            epochs=min(first + EVERY, int(epochs)),
            validation_data=(data["valid_x"], data["valid_y"]),
            callbacks=[recorder],
            verbose=0,
        )
        if float(penalty) and first + EVERY < int(epochs):
            cut(model)
    test = model.evaluate(data["test_x"], data["test_y"], batch_size=2000, verbose=0)[1]
    launching.tell({"epochs": recorder.epochs, "test": float(test)})


if __name__ == "__main__":
    main()
