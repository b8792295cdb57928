"""Train a network that is wide enough to be work, and write how many CPU seconds this process has taken for an epoch.

It is run on one rank and on several by `scripts/demo`, and knows nothing of ranks.
"""

import json
import sys
import time

import keras
import numpy as np

keras.utils.set_random_seed(7)
rows = np.random.default_rng(7).normal(size=(4096, 1024)).astype(np.float32)
layers = keras.layers
model = keras.Sequential([layers.Dense(2048, "relu"), layers.Dense(2048, "relu"), layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


class Work(keras.callbacks.Callback):
    """CPU seconds of this process in each epoch."""

    seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.process_time() - self.begin)


model.fit(rows, np.arange(len(rows)) % 10, batch_size=1024, epochs=4, verbose=0, callbacks=[Work()])
with open(sys.argv[1], "w") as file:
    json.dump({"work": min(Work.seconds)}, file)
