"""Text classification on Keras 2: words become numbers, their vectors are averaged, and a layer decides.

It is what TensorFlow's tutorial "basic text classification" describes, on sentences that are made here. Needs tf_keras.
Run it by itself, or on several ranks as it is:

    matex-tf run -n 3 text.py
"""

import re
import string

import numpy as np
import tensorflow as tf
import tf_keras as keras

keras.utils.set_random_seed(1)
random = np.random.RandomState(0)
GOOD, BAD = ["fine", "warm", "bright", "clear", "calm"], ["grim", "cold", "dark", "torn", "loud"]
OTHER = ["the", "a", "film", "scene", "plot", "actor", "and", "with", "of", "in"]
labels = random.randint(0, 2, 160)
texts = []
for label in labels:
    words = list(random.choice(OTHER, 12)) + list(random.choice(GOOD if label else BAD, 3))
    texts.append(" ".join(random.permutation(words)).capitalize() + ".<br />")


def standard(text):
    plain = tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")
    return tf.strings.regex_replace(plain, f"[{re.escape(string.punctuation)}]", "")


data = tf.data.Dataset.from_tensor_slices((texts, labels))
held_out, training = data.take(40).batch(32), data.skip(40).shuffle(120, seed=1).batch(32)
vectorize = keras.layers.TextVectorization(standardize=standard, max_tokens=40, output_sequence_length=16)
vectorize.adapt(training.map(lambda text, label: text))


def numbers(text, label):
    return vectorize(tf.expand_dims(text, -1)), label


training, held_out = training.map(numbers).cache().prefetch(1), held_out.map(numbers).cache().prefetch(1)
model = keras.Sequential(
    [
        keras.layers.Embedding(41, 8),
        keras.layers.Dropout(0.2),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), [keras.metrics.BinaryAccuracy(threshold=0.0)])
history = model.fit(training, validation_data=held_out, epochs=4, verbose=0).history
print("loss by epoch:", " ".join(f"{loss:.5f}" for loss in history["loss"] + history["val_loss"]))
