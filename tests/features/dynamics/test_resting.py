"""Repeated blocks that rest: nothing of them is computed, and that they begin changes no output."""

import networks
import numpy as np
import pytest

from matex_tf.features.dynamics import resting
from matex_tf.features.dynamics.growth import Growth


def bottlenecks():
    """Three blocks of three convolutions each, as in a ResNet-50."""
    import keras
    from keras import layers

    inputs = x = keras.Input((8, 8, 3))
    x = layers.Conv2D(16, 3)(x)
    for _ in range(3):
        y = x
        for filters, size in ((8, 1), (8, 3), (16, 1)):
            y = layers.BatchNormalization()(layers.Conv2D(filters, size, padding="same")(y))
            y = layers.ReLU()(y) if filters == 8 else y
        x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))


def inverted():
    """Three inverted residual blocks, as in MobileNetV2."""
    import keras
    from keras import layers

    inputs = x = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3)(x)
    for _ in range(3):
        y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(24, 1)(x)))
        y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(y)))
        x = x + layers.BatchNormalization()(layers.Conv2D(8, 1)(y))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))


#: Networks, and how many of their blocks repeat another.
BLOCKS = [(bottlenecks, 2), (networks.transformer, 2), (inverted, 2)]


@pytest.mark.variants(1)
@pytest.mark.parametrize("make, count", BLOCKS, ids=lambda one: getattr(one, "__name__", None))
def test_blocks_begin(make, count):
    """A clone, whose blocks do not rest, gives the same; so does the model after they have begun. All weights learn."""
    import keras

    model = networks.weathered(make())
    growth = Growth.begin(model, 1.0, by_depth=True)
    branches = [block.branch for block in growth.waiting]
    assert len(branches) == count and None not in branches
    rows = networks.rows_for(model)
    before = np.asarray(model(rows))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(rows), before, rtol=1e-6)
    assert growth.grow(model).startswith(f"{count} blocks begin, ")
    np.testing.assert_allclose(model(rows), before, rtol=1e-6)
    layers = [layer for branch in branches for layer in (branch.total, *branch.layers)]
    assert not any("call" in vars(layer) for layer in layers)
    weights = {one.path: one for layer in layers for one in getattr(layer, "trainable_variables", ())}
    begun = {path: np.asarray(one) for path, one in weights.items()}
    model.compile(keras.optimizers.Adam(0.01), "mse")
    for _ in range(3):
        model.train_on_batch(rows, np.ones(before.shape))
    still = [path for path, one in weights.items() if np.array_equal(one, begun[path])]
    assert not still


def test_blocks_of_a_script_s_own_layers_learn():
    """Nothing is left out of these; what reads their channels is 0 at first, in the last kernel of a block alone."""
    import keras
    from keras import layers

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.parts = [layers.Dense(20, "tanh"), layers.Dense(24, "tanh"), layers.Dense(8)]

        def call(self, x):
            y = x
            for part in self.parts:
                y = part(y)
            return x + y

    inputs = keras.Input((6,))
    x = layers.Dense(8)(inputs)
    blocks = [Block(), Block()]
    for block in blocks:
        x = block(x)
    model = keras.Model(inputs, layers.Dense(3)(x))
    growth = Growth.begin(model, 1.0, by_depth=True)
    assert [block.branch for block in growth.waiting] == [None]
    rows = networks.rows_for(model)
    before = np.asarray(model(rows))
    np.testing.assert_allclose(blocks[1](np.ones((2, 8))), np.ones((2, 8)))
    assert growth.grow(model)
    np.testing.assert_allclose(model(rows), before, rtol=1e-5)
    kernels = [np.asarray(part.kernel) for part in blocks[1].parts]
    model.compile(keras.optimizers.Adam(0.01), "mse")
    for _ in range(3):
        model.train_on_batch(rows, np.ones(before.shape))
    assert not any(np.array_equal(part.kernel, kernel) for part, kernel in zip(blocks[1].parts, kernels, strict=True))


def two_blocks(within=None, merge=None, behind=None, shared=False):
    """Two blocks that are alike; `within` and `behind` the second one's activation stands something else."""
    import keras
    from keras import layers

    inputs = x = keras.Input((6,))
    x = layers.Dense(8)(x)
    for number in range(2):
        hidden = layers.Dense(20, "relu", name=f"hidden_{number}")(x)
        y = (within if number and within is not None else lambda data: data)(hidden)
        y = layers.Dense(8)(y)
        y = (behind if number and behind is not None else lambda data: data)(y)
        x = (merge or (lambda pair: pair[0] + pair[1]))([x, y])
    outputs = layers.Dense(2)(x)
    return keras.Model(inputs, [outputs, hidden] if shared else outputs)


def branch_of(model):
    found = [one for one in resting.branches(model) if any(layer.name == "hidden_1" for layer in one.layers)]
    return found[0] if found else None


def test_nothing_of_it_is_computed():
    """Not forwards and not backwards; gradients of its weights are 0, so that no optimizer misses one."""
    import keras
    import tensorflow as tf

    computed = []

    def counted(data):
        def count(array):
            computed.append(len(array))
            return array

        @tf.custom_gradient
        def both(data):
            done = tf.numpy_function(count, [data], data.dtype, stateful=False)
            done.set_shape(data.shape)
            return done, lambda gradient: gradient

        return both(data)

    model = two_blocks(within=keras.layers.Activation(counted))
    model.compile("sgd", "mse")
    x, y = np.ones((4, 6), "float32"), np.ones((4, 2), "float32")
    branch = branch_of(model)
    branch.rest(0.5)
    model.train_on_batch(x, y)
    model.predict_on_batch(x)
    assert not computed
    weights = [variable.value for layer in branch.layers for variable in layer.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    gradients = tape.gradient(loss, weights)
    assert len(gradients) == 4 and not any(np.any(one) for one in gradients)
    branch.begin()
    model.make_train_function(force=True)
    model.train_on_batch(x, y)
    assert computed


def test_what_can_rest():
    """One of two tensors that are added is made of the other alone, and is 0 when its last weights are."""
    import keras
    from keras import layers

    can = [
        {},
        {"merge": lambda pair: layers.Add()(pair)},
        {"within": layers.Dropout(0.5)},
        {"within": layers.BatchNormalization()},
        {"behind": layers.LayerNormalization()},
        {"behind": layers.Activation("gelu")},
        {"behind": lambda data: layers.ReLU()(layers.BatchNormalization()(data))},
        {"behind": layers.Dropout(0.5)},
    ]
    cannot = [
        {"merge": layers.Concatenate()},
        {"merge": lambda pair: layers.Average()(pair)},
        {"merge": layers.Add()},  # one layer for both sums
        {"behind": layers.Activation("sigmoid")},
        {"behind": lambda data: data * layers.Dense(8, "sigmoid")(data)},
        {"behind": layers.PReLU()},
        {"shared": True},
    ]
    for how in can:
        assert branch_of(two_blocks(**how)) is not None, how
    for how in cannot:
        assert branch_of(two_blocks(**how)) is None, how
    frozen = two_blocks()
    frozen.get_layer("hidden_1").trainable = False
    assert branch_of(frozen) is None
    assert branch_of(keras.Sequential([keras.Input((2,)), layers.Dense(3)])) is None


def test_layers_count_nothing_while_they_rest():
    """A BatchNormalization keeps its means as they were; it would be computed for them."""
    from keras import layers

    model = two_blocks(behind=layers.BatchNormalization())
    model.compile("sgd", "mse")
    branch = branch_of(model)
    branch.rest(0.5)
    (normalization,) = branch.normalizations
    model.train_on_batch(np.ones((4, 6), "float32"), np.ones((4, 2), "float32"))
    np.testing.assert_array_equal(normalization.moving_variance, np.ones(8))
    np.testing.assert_array_equal(normalization.gamma, np.full(8, 0.5))
    branch.begin()
    model.make_train_function(force=True)
    model.train_on_batch(np.ones((4, 6), "float32"), np.ones((4, 2), "float32"))
    assert not np.any(np.asarray(normalization.moving_variance) == 1)
