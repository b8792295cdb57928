"""A peer: magnitude pruning by tensorflow_model_optimization (Zhu and Gupta 2017), in the environment .peers/networks.

    python -m benchmarks.apoptosis.pruning TASK DATA SEED EPOCHS BATCH WIDTH SPARSITY

It puts zeros into kernels that keep their shapes. With SPARSITY 0 the same network is trained without it, in the same
framework (tf_keras), which is what its seconds are beside.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np

from benchmarks.apoptosis import measure, tasks


def main() -> None:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # which tensorflow_model_optimization looks at
    import tf_keras as keras

    name, path, seed, epochs, batch, width, sparsity = sys.argv[1:]
    task = tasks.TASKS[name]
    data = np.load(path)
    keras.utils.set_random_seed(int(seed))
    model = task.model(keras, float(width))
    rows = len(data["train_y"])
    callbacks = [measure.recorder(keras, task.score, rows)]
    if float(sparsity):
        import tensorflow_model_optimization as tfmot

        steps = -(-rows // int(batch)) * int(epochs)
        schedule = tfmot.sparsity.keras.PolynomialDecay(
            0.0, float(sparsity), steps // 10, steps * 6 // 10, frequency=20
        )
        model = tfmot.sparsity.keras.prune_low_magnitude(model, pruning_schedule=schedule)
        callbacks.insert(0, tfmot.sparsity.keras.UpdatePruningStep())
    test = task.train(keras, model, data, int(batch), int(epochs), callbacks)
    weights = [weight.numpy() for weight in model.trainable_variables]
    zeros = sum(int((weight == 0).sum()) for weight in weights)
    found = {"epochs": callbacks[-1].epochs, "test": test, "zeros": zeros}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
