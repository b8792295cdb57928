"""A small convolutional network that reads handwritten digits."""

import argparse
import json
import time

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--result", help="write loss, accuracy and seconds to this file, as JSON")
options = parser.parse_args()

keras.utils.set_random_seed(7)

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=7)

model = keras.Sequential(
    [
        layers.Input((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="tanh"),
        layers.Conv2D(64, 3, activation="tanh"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(64, activation="tanh"),
        layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.summary()

begin = time.perf_counter()
history = model.fit(
    x_train,
    y_train,
    batch_size=options.batch_size,
    epochs=options.epochs,
    validation_data=(x_test, y_test),
    shuffle=True,
    verbose=2,
)
seconds = time.perf_counter() - begin
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test loss {loss:.6f}, accuracy {accuracy:.4f}, trained in {seconds:.1f} s")

if options.result:
    result = {
        "loss": loss,
        "accuracy": accuracy,
        "seconds": seconds,
        "training loss": history.history["loss"][-1],
        "training accuracy": history.history["accuracy"][-1],
    }
    with open(options.result, "w") as file:
        json.dump(result, file)
