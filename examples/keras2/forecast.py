"""Forecasting a time series on Keras 2: windows of the past go through an LSTM, with early stopping.

It is what TensorFlow's tutorial "time series forecasting" describes, on a series that is made here. Needs tf_keras.
Run it by itself, or on several ranks as it is:

    matex-tf run -n 3 forecast.py
"""

import numpy as np
import tf_keras as keras

keras.utils.set_random_seed(1)
hours = np.arange(700)
series = np.sin(2 * np.pi * hours / 24) + 0.5 * np.sin(2 * np.pi * hours / 168)
series += 0.1 * np.random.RandomState(0).normal(size=hours.size)
columns = np.stack([series, np.sin(2 * np.pi * hours / 24), np.cos(2 * np.pi * hours / 24)], 1).astype("float32")
training, held_out = columns[:500], columns[500:]
mean, spread = training.mean(0), training.std(0)


def windows(rows, shuffle):
    rows = (rows - mean) / spread
    past = 24
    return keras.utils.timeseries_dataset_from_array(
        rows[:-1], rows[past:, :1], past, batch_size=32, shuffle=shuffle, seed=1
    )


model = keras.Sequential([keras.layers.LSTM(16, return_sequences=False), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError(), [keras.metrics.MeanAbsoluteError()])
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, mode="min")
history = model.fit(
    windows(training, True), epochs=4, validation_data=windows(held_out, False), callbacks=[stop], verbose=0
).history
print("loss by epoch:", " ".join(f"{loss:.5f}" for loss in history["loss"] + history["val_loss"]))
