"""Steps that were traced for a fixed number of rows, as a tf.function is: rebuilt for ranks that are threads."""

import pytest

#: 12 is the number of features of these steps, 4 that of classes: there sizes are mistaken for rows.
ROWS = (23, 12, 4)
#: Names of steps that do not go with so many rows, or that are rebuilt for no fixed number.
NOT = {"nnclr": (23,), "turning": ROWS}


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition_cases, partition_steps

    return partition_cases, partition_steps


@pytest.mark.variants(1)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("part", range(4))
def test_step(support, rows, part):
    """Logs and variables are those of one rank, also where another size is that of the batch."""
    cases, steps = support
    names = [name for name in list(steps.STEPS)[part::4] if rows not in NOT.get(name, ())]
    far = {}
    for name in names:
        result = cases.compare(steps.STEPS[name], sizes=(rows, rows), fixed=rows)
        far[name] = max(result.logs, result.variables, result.apart)
    assert all(value < (1e-6 if name in steps.IN_32_BITS else 1e-9) for name, value in far.items()), far


def test_rows_are_found(support):
    """What is computed of the rows of a batch is shared out, as it is for any number of rows."""
    cases, steps = support
    for name in ("dynamic_scale", "centralized", "vicreg", "wgan_gp", "dice"):
        assert not cases.compare(steps.STEPS[name], sizes=(23,), fixed=23).whole, name


@pytest.mark.parametrize("rows", [5, 6])
def test_few_rows_of_sequences(rows):
    """Reshapes of a dense layer over sequences: 50 and 60 count rows, as 5 and 6 do, and 6 inputs do not. And a shape
    that is asked for."""
    import tensorflow as tf

    from matex_tf.patches.partition import whole_part
    from matex_tf.patches.partition.ranks import Ranks
    from matex_tf.patches.partition.step import Partitioned

    weights = tf.Variable(tf.ones([6, 3]))

    @tf.function
    def step(x):
        x = tf.raw_ops.EnsureShape(input=x, shape=[rows, 10, 6])  # tf.ensure_shape leaves it out if it is known
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(tf.tensordot(x, weights, [[2], [0]])))
        return tape.gradient(loss, weights)

    traced = step.get_concrete_function(tf.TensorSpec([rows, 10, 6]))
    made = Partitioned(traced, [True], Ranks(), [tf.TensorShape([None, 10, 6])], fixed=rows)
    assert not whole_part.of(made.plan).ops


def test_as_many_rows_as_axes():
    """The gradient of a pad cuts as many numbers out of the padding as an image has axes: 4, as many as rows."""
    import tensorflow as tf

    from matex_tf.patches.partition import whole_part
    from matex_tf.patches.partition.ranks import Ranks
    from matex_tf.patches.partition.step import Partitioned

    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(tf.pad(x * weights, [[0, 0], [1, 1], [1, 1], [0, 0]])))
        return tape.gradient(loss, weights)

    traced = step.get_concrete_function(tf.TensorSpec([4, 5, 5, 3]))
    made = Partitioned(traced, [True], Ranks(), [tf.TensorShape([None, 5, 5, 3])], fixed=4)
    assert not whole_part.of(made.plan).ops
