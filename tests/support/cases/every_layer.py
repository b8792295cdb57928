"""Every layer of `keras.layers`, each in a tiny model that is trained.

The models of a case are trained in one step, as branches that share nothing but data: a graph is traced once for many.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.support.cases.common import momentum

ROWS, BATCH = 11, 5  # batches of 5, 5 and 1: ragged on 3 ranks, with ranks without a row in the last one
LABELS = ["a", "b", "c", "d", "e"]

#: What a model gets: the shape of a row.
SHAPES = {
    "table": (6,),
    "sequence": (5, 4),
    "image": (8, 8, 3),
    "volume": (4, 4, 4, 2),
    "lines": (3, 4, 2),
    "video": (3, 4, 4, 2),
    "volumes": (2, 3, 3, 3, 2),
    "sound": (64,),
    "words": (6,),
    "number": (1,),
    "text": (1,),
}


def data(kind):
    """Rows of a kind: floats, pixels up to 255, numbers of words (0 pads), or strings."""
    random = np.random.RandomState(0)
    shape = (ROWS, *SHAPES[kind])
    if kind == "words":
        return (random.randint(1, 9, shape) * (np.arange(6) < random.randint(1, 7, (ROWS, 1)))).astype("int32")
    if kind == "number":
        return random.randint(0, 4, shape).astype("int32")
    if kind == "text":
        return tf.constant([[" ".join(random.choice(LABELS, 3))] for _ in range(ROWS)])
    if kind == "image":
        return random.uniform(0, 255, shape).astype("float32")
    return random.normal(size=shape).astype("float32")


def stem(x):
    """Weights before a layer, so that it has a gradient to pass on."""
    return layers.Dense(x.shape[-1], activation="tanh", use_bias=False)(
        layers.Rescaling(1 / 128, -1.0)(x) if x.name == "image" else x
    )


class Own(layers.Layer):
    """A layer of a script's own, with a weight, a loss and a state that counts rows' sums."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x * self.scale)))
        return x * self.scale


class Wrapped(layers.Wrapper):
    """A wrapper of a script's own."""

    def call(self, x):
        return 2.0 * self.layer(x)


def two(layer, x):
    """Layers that merge."""
    return layer([stem(x), stem(x)])


def masked(layer, x):
    """Words, of which some pad."""
    return layer(layers.Embedding(9, 4, mask_zero=True)(x))


def adapted(layer, x):
    """A layer that learns from all rows beforehand."""
    layer.adapt(data(x.name))
    return spread(layer(x))


def plain(layer, x):
    """A layer without a gradient for what it gets."""
    return spread(layer(x))


def decibels(layer, x):
    """Sound, of which the layer makes numbers down to -100."""
    return layers.Rescaling(0.01)(layer(x))


def of_channels(layer, x):
    """Sound with an axis of channels."""
    return layer(layers.Reshape((-1, 1))(x))


def spread(x):
    """Numbers of words as floats."""
    return keras.ops.cast(x, "float32")


def crossed(layer, x):
    """Two columns that are one feature."""
    return layer((x, x))


def attended(layer, x):
    """Queries and values of the same rows."""
    return layer([stem(x), stem(x)])


def to_itself(layer, x):
    """The same for layers that take them one by one."""
    return layer(stem(x), stem(x))


def there_and_back(layer, x):
    """An embedding whose weights are those of the output too."""
    return layer(keras.ops.tanh(layer(x)), reverse=True)


def alone(layer, x):
    """A layer that gets nothing."""
    return keras.Sequential([layer, layers.Dense(3)])(stem(x))


def masking(layer, x):
    """What it masks is left out by the next layer."""
    return layers.LSTM(3)(layer(keras.ops.relu(stem(x))))


def cell(layer, x):
    """A cell of a recurrent layer."""
    return layers.RNN(layer)(stem(x))


_POOL = {"pool_size": 2}
_SIZE = {"output_size": 2}
_CONV = {"filters": 3, "kernel_size": 2}
_DEEP = {"kernel_size": 2, "depth_multiplier": 2}
_NOISE = {"dropout": 0.3, "recurrent_dropout": 0.3}
_HEADS = {"num_heads": 2, "key_dim": 3}
_GROUPS = {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2}


def _spaces(name, arguments=None, dimensions=(1, 2, 3), way=None):
    """Entries of a layer that is there for lines, images and volumes."""
    kinds = {1: "sequence", 2: "image", 3: "volume"}
    return {name.replace("#", f"{n}D"): (kinds[n], arguments or {}, way) for n in dimensions}


#: By the name of a layer, and of one of its forms: the kind of data, the arguments, and how the layer is used (a
#: `stem`, then the layer, where that is None). An argument that is a function makes it, so each model has its own.
LAYERS = {
    "Activation": ("table", {"activation": "tanh"}, None),
    "ActivityRegularization": ("table", {"l1": 0.01, "l2": 0.02}, None),
    **_spaces("AdaptiveAveragePooling#", _SIZE),
    **_spaces("AdaptiveMaxPooling#", _SIZE),
    **{name: ("table", {}, two) for name in ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply")},
    "AdditiveAttention": ("sequence", {"dropout": 0.3}, attended),
    "AlphaDropout": ("table", {"rate": 0.3}, None),
    "Attention": ("sequence", {"dropout": 0.3, "use_scale": True}, attended),
    "AutoContrast": ("image", {}, plain),
    **_spaces("AveragePooling#", _POOL),
    "BatchNormalization": ("table", {"momentum": 0.8}, None),
    "BatchNormalization, images": ("image", {"momentum": 0.8}, None),
    "Bidirectional": ("sequence", {"layer": lambda: layers.LSTM(3)}, None),
    "CategoryEncoding": ("words", {"num_tokens": 9, "output_mode": "multi_hot"}, plain),
    "CategoryEncoding, counts": ("words", {"num_tokens": 9, "output_mode": "count"}, plain),
    "CenterCrop": ("image", {"height": 5, "width": 6}, plain),
    "ContrastLimitedAdaptiveHistogramEqualization": ("image", {"tile_grid_size": (2, 2)}, plain),
    **_spaces("Conv#", _CONV),
    **_spaces("Conv#Transpose", _CONV),
    "ConvLSTM1D": ("lines", {"filters": 2, "kernel_size": 2, **_NOISE}, None),
    "ConvLSTM2D": ("video", {"filters": 2, "kernel_size": 2, **_NOISE}, None),
    "ConvLSTM3D": ("volumes", {"filters": 2, "kernel_size": 2, **_NOISE}, None),
    **_spaces("Cropping#", {"cropping": 1}),
    "CutMix": ("image", {}, plain),
    "Dense": ("table", {"units": 4}, None),
    "TernaryDense": ("table", {"units": 4}, None),
    **_spaces("DepthwiseConv#", _DEEP, (1, 2)),
    "Discretization": ("table", {"num_bins": 4}, adapted),
    "Discretization, one-hot": ("table", {"num_bins": 4, "output_mode": "one_hot"}, adapted),
    "Dot": ("table", {"axes": 1}, two),
    "Dropout": ("table", {"rate": 0.4}, None),
    "ELU": ("table", {}, None),
    "EinsumDense": ("sequence", {"equation": "abc,cd->abd", "output_shape": (5, 3), "bias_axes": "d"}, None),
    "Embedding": ("words", {"input_dim": 9, "output_dim": 3}, lambda layer, x: layer(x)),
    "Equalization": ("image", {}, plain),
    "Flatten": ("sequence", {}, None),
    "GRU": ("sequence", {"units": 3}, None),
    "GRU, masked, with noise": ("words", {"units": 3, **_NOISE}, masked),
    "GRUCell": ("sequence", {"units": 3, "dropout": 0.3}, cell),
    "GaussianDropout": ("table", {"rate": 0.3}, None),
    "GaussianNoise": ("table", {"stddev": 0.3}, None),
    **_spaces("GlobalAveragePooling#"),
    **_spaces("GlobalMaxPooling#"),
    "GlobalAveragePooling1D, masked": ("words", {}, masked),
    "GroupNormalization": ("table", {"groups": 2}, None),
    "GroupQueryAttention": ("sequence", {**_GROUPS, "dropout": 0.3}, to_itself),
    "HashedCrossing": ("number", {"num_bins": 5, "output_mode": "one_hot"}, crossed),
    "Hashing": ("words", {"num_bins": 5, "output_mode": "multi_hot"}, plain),
    "Hashing, text": ("text", {"num_bins": 5, "output_mode": "one_hot"}, plain),
    "Identity": ("table", {}, None),
    "InputLayer": ("table", {"shape": (6,)}, alone),
    "IntegerLookup": ("words", {"output_mode": "multi_hot"}, adapted),
    "IntegerLookup, numbers": ("words", {"vocabulary": [1, 2, 3, 4]}, plain),
    "LSTM": ("sequence", {"units": 3}, None),
    "LSTM, backwards": ("sequence", {"units": 3, "go_backwards": True, "return_sequences": True}, None),
    "LSTMCell": ("sequence", {"units": 3, "dropout": 0.3}, cell),
    "Lambda": ("table", {"function": lambda: lambda x: x * x}, None),
    "Layer": ("table", {}, lambda layer, x: Own()(stem(x))),
    "LayerNormalization": ("table", {}, None),
    "LeakyReLU": ("table", {}, None),
    "Masking": ("sequence", {}, masking),
    "MaxNumBoundingBoxes": ("image", {"max_number": 3}, plain),
    **_spaces("MaxPooling#", _POOL),
    "MelSpectrogram": ("sound", {"num_mel_bins": 4, "fft_length": 32, "sequence_stride": 16, "sampling_rate": 64,
                                 "max_freq": 32.0, "min_freq": 1.0}, decibels),
    "MixUp": ("image", {}, plain),
    "Mosaic": ("image", {}, plain),
    "MultiHeadAttention": ("sequence", {**_HEADS, "dropout": 0.3}, to_itself),
    "Normalization": ("table", {}, adapted),
    "PReLU": ("table", {}, None),
    "Permute": ("sequence", {"dims": (2, 1)}, None),
    "Pipeline": ("image", {"layers": lambda: [layers.RandomFlip(), layers.RandomBrightness(0.3)]}, plain),
    "RMSNormalization": ("table", {}, None),
    "RNN": ("sequence", {"cell": lambda: [layers.LSTMCell(3), layers.GRUCell(2)], "return_sequences": True}, None),
    "RandomBrightness": ("image", {"factor": 0.3}, plain),
    "RandomColorDegeneration": ("image", {"factor": 0.5}, plain),
    "RandomColorJitter": ("image", {f"{what}_factor": 0.3 for what in ("brightness", "contrast", "hue")}, plain),
    "RandomContrast": ("image", {"factor": 0.3}, plain),
    "RandomCrop": ("image", {"height": 5, "width": 6}, plain),
    "RandomErasing": ("image", {}, plain),
    "RandomFlip": ("image", {}, plain),
    "RandomGaussianBlur": ("image", {"sigma": 0.7}, plain),
    "RandomGrayscale": ("image", {}, plain),
    "RandomHue": ("image", {"factor": 0.4}, plain),
    "RandomInvert": ("image", {"factor": 0.5}, plain),
    "RandomPerspective": ("image", {}, plain),
    "RandomPosterization": ("image", {"factor": 4}, plain),
    "RandomRotation": ("image", {"factor": 0.3}, plain),
    "RandomSaturation": ("image", {"factor": 0.4}, plain),
    "RandomSharpness": ("image", {"factor": 0.7}, plain),
    "RandomShear": ("image", {"x_factor": 0.3, "y_factor": 0.3}, plain),
    "RandomTranslation": ("image", {"height_factor": 0.3, "width_factor": 0.3}, plain),
    "RandomZoom": ("image", {"height_factor": 0.3, "width_factor": 0.3}, plain),
    "ReLU": ("table", {}, None),
    "RepeatVector": ("table", {"n": 2}, None),
    "Rescaling": ("table", {"scale": 0.5, "offset": 1.0}, None),
    "Reshape": ("table", {"target_shape": (2, 3)}, None),
    "Resizing": ("image", {"height": 5, "width": 6}, plain),
    "ReversibleEmbedding": ("words", {"input_dim": 9, "output_dim": 3}, there_and_back),
    "STFTSpectrogram": ("sound", {"frame_length": 16, "frame_step": 16, "fft_length": 16}, of_channels),
    **_spaces("SeparableConv#", _CONV, (1, 2)),
    "SimpleRNN": ("sequence", {"units": 3, **_NOISE}, None),
    "SimpleRNNCell": ("sequence", {"units": 3, "dropout": 0.3}, cell),
    "Softmax": ("table", {}, None),
    "Solarization": ("image", {"addition_factor": 0.3}, plain),
    **_spaces("SpatialDropout#", {"rate": 0.4}),
    "StackedRNNCells": ("sequence", {"cells": lambda: [layers.LSTMCell(3), layers.SimpleRNNCell(2)]}, cell),
    "StringLookup": ("text", {"output_mode": "one_hot"}, adapted),
    "StringLookup, numbers": ("text", {}, adapted),
    "Subtract": ("table", {}, two),
    "TextVectorization": ("text", {"output_mode": "tf_idf"}, adapted),
    "TextVectorization, numbers": ("text", {"output_sequence_length": 3}, adapted),
    "SpectralNormalization": ("table", {"layer": lambda: layers.Dense(4)}, None),
    "TimeDistributed": ("sequence", {"layer": lambda: layers.Dense(3)}, None),
    "TimeDistributed, masked": ("words", {"layer": lambda: layers.BatchNormalization()}, masked),
    "UnitNormalization": ("table", {}, None),
    **_spaces("UpSampling#", {"size": 2}),
    "Wrapper": ("table", {}, lambda layer, x: Wrapped(layers.Dense(4))(stem(x))),
    **_spaces("ZeroPadding#", {"padding": 1}),
}  # fmt: skip

#: Layers that are not trained here, and why.
LEFT_OUT = {
    "AugMix": "it draws by Python's `random` while a step is traced: alike on every rank, and other numbers on one",
    "RandAugment": "its weights differ by 0.1 % in `fit`, which is not explained",
    "RandomElasticTransform": "its weights differ by 2 % in `fit`: it draws by row where the number of rows is known",
    "FlaxLayer": "it runs on the JAX backend alone",
    "JaxLayer": "it needs JAX, and a step of TensorFlow with it cannot be differentiated without jax2tf",
    "TorchModuleWrapper": "it runs on the PyTorch backend alone",
    "TFSMLayer": "it runs a SavedModel, of any layers",
}


def unknown():
    """Names in `keras.layers` of layers that are neither trained nor left out; a class may have several."""
    known = {label.partition(",")[0] for label in LAYERS} | set(LEFT_OUT)
    classes = {getattr(layers, name) for name in known if hasattr(layers, name)}
    found = {n: c for n, c in vars(layers).items() if isinstance(c, type) and issubclass(c, layers.Layer)}
    return sorted(name for name, one in found.items() if one not in classes)


def labels_here():
    """The entries whose layer this Keras has."""
    return [label for label in LAYERS if hasattr(layers, label.partition(",")[0])]


def branch(label, inputs):
    """The output of a tiny model with one layer; what it gets is among the inputs, or put there."""
    kind, arguments, way = LAYERS[label]
    if kind not in inputs:
        dtype = {"words": "int32", "number": "int32", "text": "string"}.get(kind, "float32")
        inputs[kind] = keras.Input(SHAPES[kind], dtype=dtype, name=kind)
    name, x = label.partition(",")[0], inputs[kind]
    made = {key: value() if callable(value) else value for key, value in arguments.items()}
    layer = None if name in ("Layer", "Wrapper") else getattr(layers, name)(**made)
    out = layer(stem(x)) if way is None else way(layer, x)
    if way is plain and kind == "image":
        out = layers.Rescaling(1 / 128, -1.0)(out)
    return layers.Dense(1, use_bias=False)(layers.Flatten()(out))


def trained(part=0, parts=1, labels=(), adam=False):
    """Two epochs of the models of these entries, on ragged batches; the weights and states of each, and the loss."""
    labels = labels or labels_here()[part::parts]
    keras.utils.set_random_seed(7)
    inputs, outputs = {}, {}
    for label in labels:
        try:
            outputs[label] = branch(label, inputs)
        except Exception as error:
            raise RuntimeError(f"a model with {label} cannot be made") from error
    model = keras.Model(inputs, layers.Concatenate()(list(outputs.values())))
    optimizer = keras.optimizers.Adam(0.01) if adam else momentum(0.001 * len(outputs))
    model.compile(optimizer, "mse", jit_compile=False)
    optimizer.build(model.trainable_variables)  # or TensorFlow traces the first step twice
    targets = np.random.RandomState(1).normal(size=(ROWS, len(outputs))).astype("float32")
    rows = {kind: data(kind) for kind in inputs}
    history = model.fit(rows, targets, batch_size=BATCH, epochs=2, verbose=0).history
    models = {label: keras.Model(inputs, out) for label, out in outputs.items()}
    found = {label: [keras.ops.convert_to_numpy(one) for one in m.variables] for label, m in models.items()}
    return {"models": found, "loss": history["loss"]}
