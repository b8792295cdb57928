"""One training, as a script of a user's: python -m benchmarks.apoptosis.train TASK DATA SEED EPOCHS BATCH WIDTH.

`fit` knows nothing of neurons that go and come: `matex-tf run --apoptosis` and `--grow` see to that.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

from benchmarks import launching
from benchmarks.apoptosis import measure, tasks
from matex_tf.core import world


def main() -> None:
    name, path, seed, epochs, batch, width = sys.argv[1:]
    task = tasks.TASKS[name]
    data = np.load(path)
    keras.utils.set_random_seed(int(seed))
    model = task.model(keras, float(width))

    def over_ranks(seconds: float) -> float:
        return float(world.current().allreduce(np.array([seconds]), "add up processor seconds")[0])

    recorder = measure.recorder(keras, task.score, len(data["train_y"]), over_ranks)
    test = task.train(keras, model, data, int(batch), int(epochs), [recorder])
    launching.tell({"epochs": recorder.epochs, "test": test})


if __name__ == "__main__":
    main()
