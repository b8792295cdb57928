"""One training, as a script of a user's: python -m benchmarks.apoptosis.train TASK DATA SEED EPOCHS BATCH WIDTH.

`fit` knows nothing of neurons that go and come: `matex-tf run --apoptosis` and `--grow` see to that.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

from benchmarks import jobs
from benchmarks.apoptosis import measure, tasks
from matex_tf.core import world


def main() -> None:
    name, path, seed, epochs, batch, width = sys.argv[1:]
    task = tasks.TASKS[name]
    data = np.load(path)
    keras.utils.set_random_seed(int(seed))
    model = task.model(keras, float(width))
    task.compile(keras, model)

    def over_ranks(seconds: float) -> float:
        return float(world.current().allreduce(np.array([seconds]), "add up processor seconds")[0])

    recorder = measure.recorder(keras, task.score, len(data["train_y"]), over_ranks)
    model.fit(
        data["train_x"],
        data["train_y"],
        batch_size=int(batch),
        epochs=int(epochs),
        validation_data=(data["valid_x"], data["valid_y"]),
        callbacks=[recorder],
        verbose=0,
    )
    # On several ranks Keras gives the whole answer everywhere; a batch is larger, as nothing is trained.
    test = model.evaluate(data["test_x"], data["test_y"], batch_size=2000, verbose=0)[1]
    jobs.tell({"epochs": recorder.epochs, "test": float(test)})


if __name__ == "__main__":
    main()
