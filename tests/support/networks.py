"""Models of each kind that surgery has to know, small, with weights that are not those of a fresh model."""

import numpy as np


def lenet():
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, activation="relu"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def resnet():
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)


def mobilenet():
    import keras

    return keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), classes=10, alpha=0.5)


def unet():
    import keras
    from keras import layers

    images, skips = keras.Input((16, 16, 3)), []
    x = images
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((16, 8), skips[::-1], strict=True):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return keras.Model(images, layers.Conv2D(2, 1)(x))


def tagger():
    import keras
    from keras import layers

    words = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16, mask_zero=True)(words)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    x = layers.GRU(10, return_sequences=True)(x)
    x = layers.SimpleRNN(6, return_sequences=True)(x)
    return keras.Model(words, layers.TimeDistributed(layers.Dense(5, activation="softmax"))(x))


def transformer():
    import keras
    from keras import layers

    words = keras.Input((10,), dtype="int32")
    x = layers.Embedding(50, 16)(words)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 8)(y, y)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(32, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(16)(layers.Dropout(0.1)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(words, layers.Dense(3)(x))


def separable():
    """Depthwise kernels of two outputs, in each kind of layer, squeeze and excitation, a Reshape of given sizes."""
    import keras
    from keras import layers

    images = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, groups=8, padding="same")(layers.Conv2D(8, 3)(images))
    x = layers.SeparableConv2D(12, 3, depth_multiplier=2)(x)
    x = layers.PReLU(shared_axes=[1, 2])(layers.DepthwiseConv2D(3, depth_multiplier=2)(x))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(4, 1, activation="relu")(gate)
    x = layers.Multiply()([x, layers.Conv2D(24, 1, activation="sigmoid")(gate)])
    x = layers.Conv1D(6, 3)(layers.Reshape((100, 24))(x))
    return keras.Model(images, layers.Dense(3)(layers.Flatten()(x)))


def nested():
    import keras
    from keras import layers

    inner = lenet()
    inner = keras.Model(inner.inputs, inner.layers[-2].output)
    images = keras.Input((28, 28, 1))
    return keras.Model(images, layers.Dense(4)(inner(images)))


def subclassed():
    import keras
    from keras import layers

    class Block(layers.Layer):
        def __init__(self, units):
            super().__init__()
            self.wide, self.narrow = layers.Dense(units, activation="relu"), layers.Dense(12)

        def call(self, x):
            return x + self.narrow(self.wide(x))

    class Residual(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = layers.Dense(12), layers.Dense(2)
            self.blocks = [Block(20), Block(24)]

        def call(self, x, training=False):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return self.last(keras.ops.relu(x))

    model = Residual()
    model(np.zeros((2, 7), np.float32))
    return model


MAKERS = (lenet, tagger, transformer, unet, subclassed, separable, nested)


def weathered(model, seed=0):
    """The model, with biases and moving statistics as after a training."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        if "moving_variance" in variable.path:
            variable.assign(rng.uniform(0.5, 1.5, variable.shape))
        elif any(word in variable.path for word in ("moving_mean", "beta", "bias")):
            variable.assign(rng.normal(0, 0.1, variable.shape))
    return model


def rows_for(model, count=4, seed=0):
    """Rows that a model takes."""
    rng = np.random.default_rng(seed)
    if not hasattr(model, "inputs") or not model.inputs:
        return rng.normal(size=(count, 7)).astype("float32")
    of = model.inputs[0]
    if "int" in of.dtype:
        return rng.integers(0, 50, (count, *of.shape[1:]))
    return rng.normal(size=(count, *of.shape[1:])).astype("float32")


def silence(model, seed=0):
    """Let nothing read a third of the channels of each group; which ones, by group."""
    from matex_tf.features.dynamics import surgery

    rng, chosen = np.random.default_rng(seed), {}
    for group in surgery.channel_groups(model):
        if group.together:
            continue
        gone = rng.choice(group.count, min(group.count - 1, max(1, group.count // 3)), replace=False)
        chosen[group.name] = gone
        for part in group.read_by():
            value = np.array(np.asarray(part.variable))
            place = [slice(None)] * value.ndim
            place[part.axis] = np.flatnonzero(np.isin(part.channels, group.channels[gone]))
            value[tuple(place)] = 0
            part.variable.assign(value)
    return chosen
