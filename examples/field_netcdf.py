"""Rain from the fields of temperature and humidity in a netCDF file: field_netcdf.py FILE."""

import sys

import keras
import numpy as np
from keras import layers

from matex_tf import DataSet

field = DataSet.open(sys.argv[1], x=["temperature", "humidity"], y="rain")
temperature, humidity = field.data
x = np.stack([(temperature - 285) / 10, humidity], axis=-1)

keras.utils.set_random_seed(7)
model = keras.Sequential(
    [
        layers.Input(x.shape[1:]),
        layers.Conv2D(16, 3, activation="relu"),
        layers.Conv2D(16, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae", keras.metrics.R2Score(name="r2")])
history = model.fit(x, field.labels[:, None], batch_size=30, epochs=8, verbose=2)
print(f"after {len(history.epoch)} epochs: mae {history.history['mae'][-1]:.3f}, r2 {history.history['r2'][-1]:.3f}")
