"""Handwritten digits from an HDF5 file, streamed: digits_hdf5.py FILE."""

import sys

import keras
from keras import layers

from matex_tf import DataSet

train = DataSet.open(sys.argv[1], rows=slice(0, 1500), normalize=16, dtype="float32")
test = DataSet.open(sys.argv[1], rows=slice(1500, None), normalize=16, dtype="float32")

keras.utils.set_random_seed(7)
model = keras.Sequential(
    [
        layers.Input((8, 8)),
        layers.Reshape((8, 8, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(train.to_tf_data(50, shuffle=True), epochs=4, verbose=2)
loss, accuracy = model.evaluate(test.data, test.labels, batch_size=100, verbose=0)
print(f"test loss {loss:.4f}, accuracy {accuracy:.3f} of {test.total_rows} digits")
