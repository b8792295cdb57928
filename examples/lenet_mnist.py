"""LeNet on MNIST through MaTEx's DataSet (arXiv 1704.04560), in the spelling of Keras 3: lenet_mnist.py DIRECTORY."""

import sys

import keras
from keras import layers
from tensorflow import DataSet

batch_size = 100
epochs = 2

mnist = DataSet("MNIST", data_directory=sys.argv[1], normalize=255.0, valid_pct=0.1)
x_train, y_train = mnist.training_data, mnist.training_labels
x_valid, y_valid = mnist.validation_data, mnist.validation_labels
x_test, y_test = mnist.testing_data, mnist.testing_labels

model = keras.Sequential(
    [
        layers.Input((28, 28, 1)),
        layers.Conv2D(6, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(120, activation="relu"),
        layers.Dense(84, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_data=(x_valid, y_valid), verbose=2)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print("Test score:", loss)
print("Test accuracy:", accuracy)
