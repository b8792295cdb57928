"""Random numbers of a partitioned step: a rank draws its rows alone, the bits that one rank has for them."""

import numpy as np
import pytest

BATCHES = (7, 2, 11)  # rows; of two, one rank has none
#: By name: the type of the op, a draw of a shape, and the dtypes that it is tried in.
KINDS = {
    "uniform": ("StatelessRandomUniformV2", ("float32", "float64", "float16")),
    "normal": ("StatelessRandomNormalV2", ("float32", "float64", "float16")),
    "truncated_normal": ("StatelessTruncatedNormalV2", ("float32", "float64", "float16")),
    "integers": ("StatelessRandomUniformIntV2", ("int32", "int64")),
    "all_integers": ("StatelessRandomUniformFullIntV2", ("int32", "uint64")),
}
SHAPES = {"rows of 3": (3,), "rows of 8": (8,), "rows": (), "two for each row": None}


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition, partition_keras

    return partition, partition_keras


def _stateless(kind, shape, dtype):
    import tensorflow as tf

    seed = [3, 5]
    if kind == "integers":
        return tf.random.stateless_uniform(shape, seed, 2, 1000, dtype)
    if kind == "all_integers":
        return tf.random.stateless_uniform(shape, seed, None, None, dtype)
    return getattr(tf.random, f"stateless_{kind}")(shape, seed, dtype=dtype)


def _shape_of(x, more):
    import tensorflow as tf

    rows = tf.shape(x)[0]
    return tf.stack([2 * rows, 3]) if more is None else tf.stack([rows, *more])


def _given(support, trace, specs, batches, stateless, wanted):
    """That each rank gives what one rank does for all batches, to the bit; the plan."""
    import tensorflow as tf

    partition, _ = support
    generator = np.random.RandomState(0)
    ranks = partition.Ranks(3, lambda rank: trace(), [True] * len(specs), own=not stateless)
    for batch in batches:
        bounds = (0, 1, 1, 2) if len(batch) == 2 else partition.cut(len(batch), 3, generator)
        given = tf.constant(batch)
        expected = [tensor.numpy() for tensor in tf.nest.flatten(wanted(given))]
        for got in ranks([given], bounds):
            for one, other in zip(got, expected, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)
    return ranks.plan


@pytest.mark.parametrize("more", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_seed_makes(support, kind, more):
    """Uniform, normal and truncated normal numbers and integers, of each dtype, are drawn by row."""
    import tensorflow as tf

    type_of, dtypes = KINDS[kind]

    def step(x):
        drawn = [_stateless(kind, _shape_of(x, SHAPES[more]), dtype) for dtype in dtypes]
        return [tf.identity(one) + tf.zeros([], one.dtype) for one in drawn]  # a draw that is given whole is made whole

    spec = tf.TensorSpec([None, 2])
    batches = [np.ones((rows, 2), "float32") for rows in BATCHES]
    trace = lambda: tf.function(step).get_concrete_function(spec)  # noqa: E731
    plan = _given(support, trace, [spec], batches, True, trace())
    labels = [node.ruling.gives[0] for node in plan.nodes if node.op.type == type_of]
    assert len(labels) == len(dtypes)
    assert all(label.kind == "S" for label in labels)


def test_gamma_by_row(support):
    """A parameter for each number."""
    import tensorflow as tf

    spec = tf.TensorSpec([None, 2])
    step = tf.function(lambda x: tf.random.stateless_gamma(tf.shape(x), [3, 5], alpha=x) * 2.0)
    batches = [np.random.RandomState(1).rand(rows, 2).astype("float32") + 0.5 for rows in BATCHES]
    trace = lambda: step.get_concrete_function(spec)  # noqa: E731
    plan = _given(support, trace, [spec], batches, True, trace())
    assert any(node.op.type == "StatelessRandomGammaV3" and node.ruling.gives[0].kind == "S" for node in plan.nodes)


def test_what_ops_keep(support):
    """Ops with a state of their own draw on from step to step, on ranks without rows too, by row or not; in loops."""
    import tensorflow as tf

    def step(x):
        shape = tf.shape(x)
        drawn = [
            tf.random.normal(shape, seed=1) * 2.0,
            tf.random.uniform(shape[:1], seed=2) + 1.0,
            tf.random.truncated_normal([4, 3], seed=3),
            tf.random.uniform([tf.shape(x)[0], 3], 0, 9, tf.int32, seed=4) + 1,
            tf.random.normal([3, tf.shape(x)[0]], seed=5) * 2.0,
        ]
        total = x
        for _ in tf.range(2):
            total += tf.random.normal(tf.shape(x), seed=6)
        return [*drawn, total]

    spec = tf.TensorSpec([None, 2])

    def trace():
        tf.random.set_seed(7)
        return tf.function(step).get_concrete_function(spec)

    batches = [np.ones((rows, 2), "float32") for rows in (*BATCHES, 7)]
    plan = _given(support, trace, [spec], batches, False, trace())
    found = {node.op.type: node.ruling.gives[0].kind for node in plan.nodes if "Random" in node.op.type}
    assert found["RandomUniformInt"] == "S"
    assert not plan.exchanges or all(tensor.op.type != "RandomStandardNormal" for tensor in plan.exchanges)


def test_a_draw_that_is_needed_whole_is_drawn_whole(support):
    """Not exchanged: every rank can draw all rows."""
    import tensorflow as tf

    spec = tf.TensorSpec([None, 2])

    def step(x):
        noise = tf.random.stateless_normal(tf.shape(x), [1, 2])
        return tf.reduce_sum(x * noise), tf.linalg.norm(noise), tf.sort(noise[:, 0])

    partition, _ = support
    plan = partition.Ranks(2, lambda rank: tf.function(step).get_concrete_function(spec), [True]).plan
    assert plan.exchanges
    assert all(tensor.op.type != "StatelessRandomNormalV2" for tensor in plan.exchanges)


def test_dropout_draws_its_rows(support):
    """Keras' Dropout, GaussianNoise and their kin draw nothing whole."""
    import tensorflow as tf
    from keras import layers

    _, keras_steps = support
    made = [
        layers.Reshape((4, 4, 1)), layers.GaussianNoise(0.1, seed=1), layers.SpatialDropout2D(0.2, seed=2),
        layers.Flatten(), layers.Dropout(0.3, seed=3), layers.AlphaDropout(0.1, seed=4),
        layers.GaussianDropout(0.1, seed=5), layers.Dense(2),
    ]  # fmt: skip
    model = keras_steps.model_of(made, (16,))
    plan = keras_steps.plan_of(model, tf.TensorSpec([None, 16]), tf.TensorSpec([None, 2]))
    draws = [node for node in plan.nodes if node.op.type.startswith("StatelessRandom") and "Key" not in node.op.type]
    assert len(draws) == 5
    assert all(node.ruling.gives[0].kind == "S" for node in draws), [(n.op.type, n.ruling.gives) for n in draws]
    assert not plan.computed_whole
