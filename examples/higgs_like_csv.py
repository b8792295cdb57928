"""Tell signal from background in a CSV file of collision events: higgs_like_csv.py FILE."""

import sys

import keras
import numpy as np
from keras import layers
from tensorflow import DataSet

events = DataSet("CSV", train_file=sys.argv[1], y="signal", one_hot=False, valid_pct=0.2)

keras.utils.set_random_seed(7)
model = keras.Sequential(
    [
        layers.Input((28,)),
        layers.Dense(64, activation="relu"),
        layers.Dense(64, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.003), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
model.fit(events.training_data, events.training_labels.astype(np.float32), batch_size=100, epochs=5, verbose=2)
loss, accuracy, auc = model.evaluate(events.validation_data, events.validation_labels, verbose=0)
print(f"held-out events: accuracy {accuracy:.3f}, AUC {auc:.3f}")
