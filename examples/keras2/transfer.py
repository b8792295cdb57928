"""Transfer learning on Keras 2: a head for a backbone of `tf.keras.applications`, then a part of the backbone too.

Without a file of weights the backbone is what its initializers make; a script of yours gives `weights="imagenet"`.
Needs tf_keras. Run it by itself, or on several ranks as it is:

    matex-tf run -n 3 transfer.py
"""

import numpy as np
import tf_keras as keras

keras.utils.set_random_seed(1)
random = np.random.RandomState(0)
labels = random.randint(0, 2, 48)
images = random.uniform(0, 255, (48, 32, 32, 3)).astype("float32")
images[labels == 1, 8:24, 8:24, 0] = 255

backbone = keras.applications.MobileNetV2(input_shape=(32, 32, 3), alpha=0.35, include_top=False, weights=None)
backbone.trainable = False
inputs = keras.Input((32, 32, 3))
changed = keras.layers.RandomFlip("horizontal")(inputs)
features = backbone(keras.applications.mobilenet_v2.preprocess_input(changed), training=False)
pooled = keras.layers.Dropout(0.2)(keras.layers.GlobalAveragePooling2D()(features))
model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
loss = keras.losses.BinaryCrossentropy(from_logits=True)

model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0)])
first = model.fit(images, labels, batch_size=16, epochs=2, verbose=0)

backbone.trainable = True
for layer in backbone.layers[:-12]:
    layer.trainable = False
model.compile(keras.optimizers.SGD(0.001), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0)])
second = model.fit(images, labels, batch_size=16, epochs=4, initial_epoch=first.epoch[-1] + 1, verbose=0)
losses = first.history["loss"] + second.history["loss"]
print("loss by epoch:", " ".join(f"{loss:.5f}" for loss in losses))
