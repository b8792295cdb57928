"""A Horovod script: a small convolutional network, each rank on its own rows, gradients averaged over ranks.

matex-tf run -n 4 examples/horovod_digits.py
"""

import argparse

import horovod.keras as hvd
import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=6)
options = parser.parse_args()

hvd.init()
keras.utils.set_random_seed(7 + hvd.rank())

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=7)
own = slice(hvd.rank(), len(x_train) // hvd.size() * hvd.size(), hvd.size())  # as many rows on every rank
x_train, y_train = x_train[own], y_train[own]

model = keras.Sequential(
    [
        layers.Input((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]
)
rate = 0.02 * hvd.size()
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    x_train,
    y_train,
    batch_size=16,
    epochs=options.epochs,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3, verbose=1),
    ],
    verbose=2 if hvd.rank() == 0 else 0,
)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
different = len({round(value, 4) for value in hvd.allgather_object(float(loss))})
if hvd.rank() == 0:
    print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}, {different} different on {hvd.size()} ranks")
