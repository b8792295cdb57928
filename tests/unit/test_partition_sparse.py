"""The gradient of an embedding: values and indices of the batch travel, and not a table."""

import numpy as np
import pytest

CODES, WIDTH, LENGTH = 3000, 4, 5
OPTIMIZERS = {
    "SGD": {}, "Adam": {}, "Adagrad": {}, "RMSprop": {}, "AdamW": {}, "Nadam": {}, "Lion": {}, "Ftrl": {},
    "Adamax": {}, "Adadelta": {}, "SGD momentum": {"momentum": 0.9}, "Adam clipnorm": {"clipnorm": 0.1},
    "SGD clipnorm": {"clipnorm": 0.1}, "SGD global_clipnorm": {"global_clipnorm": 0.1},
    "Adam gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
}  # fmt: skip
#: Those that add up the gradient by index, and its squares too.
SQUARES = (
    "Adam", "AdamW", "Nadam", "Ftrl", "Adamax", "Adam clipnorm", "SGD global_clipnorm", "Adagrad", "RMSprop",
)  # fmt: skip


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition, partition_keras

    return partition, partition_keras


def _model(name, codes=CODES):
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(codes, WIDTH), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *layers])
    model.compile(getattr(keras.optimizers, name.split()[0])(0.1, **OPTIMIZERS[name]), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def _exchanged(plan):
    yield from plan.exchanges
    for node in plan.nodes:
        for inside in node.inside:
            yield from _exchanged(inside)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_table_travels(support, name):
    """With each optimizer: values, or sums of them, and indices once, in the round of the gradients."""
    import tensorflow as tf

    _, keras_steps = support
    specs = [tf.TensorSpec([None, LENGTH], tf.int32), tf.TensorSpec([None, 2])]
    plan = keras_steps.plan_of(_model(name), *specs)
    found = list(_exchanged(plan))
    rows = plan.shaped.prime * LENGTH
    assert not [tensor for tensor in found if CODES in tensor.shape], found
    of_rows = sorted(tuple(tensor.shape) for tensor in found if rows in tensor.shape)
    branches = 2 if "accumulation" in name else 1  # each of which has its own
    assert of_rows == [(rows,)] * branches + [(rows, WIDTH)] * branches * (1 + (name in SQUARES)), found
    assert not plan.computed_whole


def test_a_small_table_is_a_part(support):
    """It takes fewer bytes than the values of a batch."""
    import tensorflow as tf

    _, keras_steps = support
    specs = [tf.TensorSpec([None, LENGTH], tf.int32), tf.TensorSpec([None, 2])]
    plan = keras_steps.plan_of(_model("Adam", 20), *specs)
    assert [tensor.shape for tensor in plan.exchanges if 20 in tensor.shape]
    assert not [tensor.shape for tensor in plan.exchanges if plan.shaped.prime * LENGTH in tensor.shape]


@pytest.mark.parametrize("name, times", [("SGD", 1), ("SGD clipnorm", 1), ("Adam", 2), ("Adagrad", 2), ("RMSprop", 2)])
def test_equal_indices_travel_once(support, monkeypatch, name, times):
    """What a rank sends of a batch: an index and a sum for each index that its rows name."""
    import tensorflow as tf

    partition, _ = support
    sent, gather = [], partition.ThreadExchange.gather

    def noted(self, tensors, names):
        counting = [tf.numpy_function(lambda *all_: _note(sent, all_), tensors, tf.int64)]
        with tf.control_dependencies(counting):
            return gather(self, [tf.identity(one) for one in tensors], names)

    monkeypatch.setattr(partition.ThreadExchange, "gather", noted)
    specs = [tf.TensorSpec([None, LENGTH], tf.int32), tf.TensorSpec([None, 2])]
    model = _model(name)
    random = np.random.RandomState(0)
    x, y = np.minimum(random.zipf(1.3, (40, LENGTH)), CODES - 1).astype("int32"), random.rand(40, 2).astype("f4")
    single = tf.function(lambda *batch: model.train_step(batch)).get_concrete_function(*specs)
    several = partition.Ranks(2, lambda rank: single, [True, True])
    several([tf.constant(x), tf.constant(y)], (0, 22, 40))
    different = [len(np.unique(x[:22])), len(np.unique(x[22:]))]
    assert max(different) < 0.6 * 22 * LENGTH
    assert sorted(sent) == sorted(4 * (1 + times * WIDTH) * one for one in different)


def _note(sent, arrays):
    sent.append(sum(array.nbytes for array in arrays))
    return np.int64(0)


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "Adagrad", "RMSprop", "Ftrl", "Lion", "Adam gradient_accumulation_steps"]
)
def test_the_answer_of_one_rank(support, name):
    """Three ranks, one of which has no rows in the last batch."""
    import tensorflow as tf

    partition, _ = support
    specs = [tf.TensorSpec([None, LENGTH], tf.int32), tf.TensorSpec([None, 2])]
    model = _model(name)
    random = np.random.RandomState(0)
    batches = [
        (random.randint(0, 9, (rows, LENGTH)).astype("int32"), random.rand(rows, 2).astype("f4")) for rows in (9, 5, 2)
    ]
    model.compute_loss(*batches[0], model(batches[0][0]))
    for metric in model.metrics:
        metric.reset_state()
    single = tf.function(lambda *batch: model.train_step(batch)).get_concrete_function(*specs)
    several = partition.Ranks(3, lambda rank: single, [True, True])
    for batch in batches:
        given = [tf.constant(one) for one in batch]
        wanted = [tensor.numpy() for tensor in tf.nest.flatten(single(*given))]
        for got in several(given, (0, 1, 1, 2) if len(batch[0]) == 2 else (0, 2, 4, len(batch[0]))):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for rank in range(3):
        for weight in model.weights:
            np.testing.assert_allclose(several.numpy(weight, rank), weight.numpy(), atol=1e-5)
