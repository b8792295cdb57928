"""How many exchanges of a partitioned step follow each other, and what a variance is that has but one."""

import numpy as np
import pytest

ROWS, SIZES = 37, (0, 11, 12, 37)  # where the rows of three ranks begin


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition, partition_keras

    return partition, partition_keras


def _layers(kind):
    from keras import layers

    def norm():
        return layers.BatchNormalization(synchronized=kind == "synchronized")

    return {
        "dense": [layers.Dense(5), norm(), layers.ReLU(), layers.Dense(6), norm(), layers.Dense(2)],
        "synchronized": [layers.Dense(5), norm(), layers.ReLU(), layers.Dense(6), norm(), layers.Dense(2)],
        "images": [
            layers.Reshape((4, 4, 1)), layers.Conv2D(3, 2, use_bias=False), norm(), layers.ReLU(),
            layers.DepthwiseConv2D(2), norm(), layers.Conv2D(2, 1), norm(), layers.Flatten(), layers.Dense(2),
        ],
        "by row": [
            layers.Reshape((4, 4, 1)), layers.Conv2D(4, 2), layers.LayerNormalization(),
            layers.GroupNormalization(groups=2), layers.UnitNormalization(), layers.Flatten(),
            layers.RMSNormalization(), layers.Dense(2), layers.Softmax(),
        ],
    }[kind]  # fmt: skip


@pytest.mark.parametrize(("kind", "norms"), [("dense", 2), ("synchronized", 2), ("images", 3), ("by row", 0)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rounds_of_a_step(support, kind, norms, optimizer):
    """One round for each BatchNormalization forward, one backward, and one for gradients, metrics and the loss."""
    import tensorflow as tf

    _, keras_steps = support
    model = keras_steps.model_of(_layers(kind), (16,), optimizer, metrics=["mae"])
    plan = keras_steps.plan_of(model, tf.TensorSpec([None, 16]), tf.TensorSpec([None, 2]))
    found = keras_steps.levels(plan)
    assert len(found) == 2 * norms + 1, found
    assert not plan.computed_whole


def _statistics(x, kept):
    import keras
    import tensorflow as tf

    mean, variance = tf.nn.moments(x, [0])
    masked = tf.where(kept, x, 0.0)
    count = tf.reduce_sum(tf.cast(kept, x.dtype), 0, keepdims=True)
    of_kept = tf.reduce_sum(masked, 0, keepdims=True) / count
    squares = tf.square(tf.where(kept, x - of_kept, 0.0))
    of_some, around = tf.nn.weighted_moments(x, [0], tf.cast(kept, x.dtype))
    return {
        "mean": mean,
        "variance": variance,
        "reduce_variance": tf.math.reduce_variance(x, 0),
        "reduce_std": tf.math.reduce_std(x, 0, keepdims=True),
        "keras variance": keras.ops.var(x, 0),
        "of all": tf.math.reduce_variance(x),
        "kept": tf.reduce_sum(squares, 0, keepdims=True) / count,
        "weighted mean": of_some,
        "weighted": around,
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_large_mean_costs_no_digits(support, dtype):
    """Mean and variance of rows on three ranks are those of two passes in float64, to float32's rounding."""
    import tensorflow as tf

    partition, keras_steps = support
    random = np.random.RandomState(0)
    x = (1000 + 0.1 * random.randn(ROWS, 3)).astype(dtype)
    kept = random.rand(ROWS, 3) < 0.7
    specs = [tf.TensorSpec([None, 3], dtype), tf.TensorSpec([None, 3], tf.bool)]
    ranks = partition.Ranks(3, lambda rank: tf.function(_statistics).get_concrete_function(*specs), [True, True])
    assert len(keras_steps.levels(ranks.plan)) == 1
    wanted = _statistics(tf.constant(x, tf.float64), tf.constant(kept))
    for got in ranks([tf.constant(x), tf.constant(kept)], SIZES):
        for name, value in zip(sorted(wanted), got, strict=True):
            np.testing.assert_allclose(value, wanted[name].numpy(), rtol=2e-6, err_msg=name)


def test_what_is_there_already_is_not_exchanged_before(support):
    """Squares about a variable are a plain sum over rows."""
    import tensorflow as tf

    partition, keras_steps = support
    center = tf.Variable(np.ones((1, 3), "float32"))
    step = tf.function(lambda x: tf.reduce_mean(tf.square(x - center), 0))
    traced = step.get_concrete_function(tf.TensorSpec([None, 3]))
    plan = partition.Ranks(2, lambda rank: traced, [True]).plan
    assert [tensor.dtype for tensor in plan.exchanges] == [tf.float32]


def _of_several(x, kept):
    """Sums over the rank's rows, of several levels, and a whole value, in one op."""
    import tensorflow as tf

    total, mean = tf.reduce_sum(x), tf.reduce_mean(x)
    around = tf.reduce_sum(tf.abs(x - mean))  # after the first exchange
    return tf.stack([total, around, tf.exp(mean)]), tf.add_n([total, around, tf.exp(mean)])


def test_sums_of_several_levels(support):
    """A sum that could wait for another one's exchange, and does not, is counted once."""
    import tensorflow as tf

    partition, _ = support
    x = np.random.RandomState(0).rand(ROWS, 3)
    specs = [tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None, 3], tf.bool)]
    ranks = partition.Ranks(3, lambda rank: tf.function(_of_several).get_concrete_function(*specs), [True, True])
    wanted = _of_several(tf.constant(x), None)
    for got in ranks([tf.constant(x), tf.constant(x > 0)], SIZES):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 0.5}])
def test_accumulated_gradients_travel_with_an_update(support, clip):
    """Between updates the loss and metrics alone are exchanged; with one, sums of what each rank has accumulated."""
    import keras
    import tensorflow as tf

    _, keras_steps = support
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3, **clip)
    model = keras_steps.model_of(_layers("dense")[:1], (16,), optimizer, metrics=["mae"])
    handles = [one.value.handle for one in optimizer._accumulated_gradients]
    plan = keras_steps.plan_of(model, tf.TensorSpec([None, 16]), tf.TensorSpec([None, 5]), sums=handles)
    assert all(tensor.shape.rank == 0 for tensor in plan.exchanges), list(plan.exchanges)
    branches = [node for node in plan.nodes if len(node.inside) == 2 and any(one.exchanges for one in node.inside)]
    (branch,) = branches
    shapes = [sorted(tensor.shape.as_list() for tensor in one.exchanges) for one in branch.inside]
    assert shapes == [[[5], [16, 5]], []]
