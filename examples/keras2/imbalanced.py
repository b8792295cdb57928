"""Few positives among many rows, on Keras 2: a bias to begin with, class weights, and metrics of what matters.

It is what TensorFlow's tutorial "classification on imbalanced data" describes, on rows that are made here. Needs
tf_keras. Run it by itself, or on several ranks as it is:

    matex-tf run -n 3 imbalanced.py
"""

import numpy as np
import tf_keras as keras

keras.utils.set_random_seed(1)
random = np.random.RandomState(0)
x = random.normal(size=(1000, 10)).astype("float32")
y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * random.normal(size=1000) > 2.4).astype("float32")
positive = y.sum()
weights = {0: len(y) / (2 * (len(y) - positive)), 1: len(y) / (2 * positive)}
metrics = [
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="auc"),
    keras.metrics.AUC(name="prc", curve="PR"),
]
first_guess = keras.initializers.Constant(np.log(positive / (len(y) - positive)))
layers = [
    keras.layers.Dense(16, activation="relu", input_shape=(10,)),
    keras.layers.Dropout(0.5),
    keras.layers.Dense(1, activation="sigmoid", bias_initializer=first_guess),
]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(), metrics)
stop = keras.callbacks.EarlyStopping(monitor="val_prc", patience=3, mode="max", restore_best_weights=True)
history = model.fit(
    *(x[:800], y[:800]),
    batch_size=128, epochs=5, callbacks=[stop], validation_data=(x[800:], y[800:]), class_weight=weights, verbose=0,
).history  # fmt: skip
print("loss by epoch:", " ".join(f"{loss:.5f}" for loss in history["loss"] + history["val_auc"]))
