"""Slots of optimizers in parts, on two ranks that are threads: beside whole ones, and beside one rank."""

import functools
import types

import keras
import numpy as np
import pytest

optimizers = keras.optimizers
#: Those whose update is elementwise: the same bits as with whole slots.
ELEMENTWISE = {
    "adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.01, weight_decay=0.01),
    "averages": lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "accumulated": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "nadam": lambda: optimizers.Nadam(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lion": lambda: optimizers.Lion(0.01),
}
#: Those that look at all of a weight, or that scale by a norm: the answer of one rank.
OTHERS = {
    "global norm": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01, gradient_accumulation_steps=2, clipnorm=1.0)),
    "adafactor": lambda: optimizers.Adafactor(0.05),
    "lamb": lambda: optimizers.Lamb(0.01),
}
#: Those that change no more of a table than the rows that a batch names, or its slots alone.
PLAIN = {"sgd": lambda: optimizers.SGD(0.1), "plain rmsprop": lambda: optimizers.RMSprop(0.01)}
if hasattr(optimizers, "Muon"):
    OTHERS["muon"] = lambda: optimizers.Muon(0.05)


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition_shards

    return partition_shards


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_same_bits(support, name):
    """Weights and slots are to the bit those of ranks that hold whole slots."""
    result = support.compare(ELEMENTWISE[name])
    assert result.in_parts and result.bits == 0 and result.one < 1e-6, result
    weights = support.compare(ELEMENTWISE[name], weights=True)
    assert weights.in_parts > result.in_parts and weights.bits == 0 and weights.one < 1e-6, weights


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", OTHERS)
def test_the_answer_of_one_rank(support, name):
    """An update that is not elementwise is computed of whole values, or of sums over the parts."""
    result = support.compare(OTHERS[name])
    assert result.in_parts and result.one < 1e-6, result
    weights = support.compare(OTHERS[name], weights=True)
    assert weights.in_parts > result.in_parts and weights.one < 1e-6, weights


@pytest.mark.variants(1)
@pytest.mark.parametrize("layers", ["attention", "words"])
def test_weights_of_layers(support, layers):
    """However layers use their weights: each of them is whole for the op that reads it, and an exchange by itself."""
    result = support.compare(ELEMENTWISE["momentum"], getattr(support, layers), weights=True)
    assert result.in_parts and result.bits == 0 and result.one < 1e-5, result
    assert result.exchanges > result.before + 2, result


@pytest.mark.variants(1)
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam", "global norm", "accumulated", "ftrl", "plain rmsprop"])
def test_large_tables(support, name, weights):
    """Rows are looked up and added to where they are, to the bit as in whole tables. No rank gathers one."""
    make = {**ELEMENTWISE, **OTHERS, **PLAIN}[name]
    result = support.compare(make, support.tables, weights=weights)
    slots = {"adagrad": 2, "sgd": 0, "accumulated": 6, "adam": 6, "plain rmsprop": 2}.get(name, 4)
    assert result.in_parts == slots + 2 * weights, result
    assert result.bits == 0 and result.one < 1e-6, result
    assert not weights or result.largest < 1000, result


@pytest.mark.parametrize("weights", [True, False])
def test_a_table_that_is_divided_by_zero(support, weights):
    """Keras takes another branch, in which rows that no batch names become NaN: on every rank the same ones. It fails
    there if an index occurs twice."""
    make = functools.partial(optimizers.Adagrad, 0.1, initial_accumulator_value=0.0, epsilon=0.0)
    result = support.compare(make, functools.partial(_one_table, 1), weights=weights, sizes=(2,))
    assert result.in_parts and result.bits == 0 and result.one < 1e-6, result


@pytest.mark.parametrize("name, times", [("sgd", 1), ("adam", 2), ("adagrad", 2), ("plain rmsprop", 2)])
def test_what_travels_of_a_table(support, monkeypatch, name, times):
    """Each different index of a rank's rows, back the row that it names, and again an index with what is added."""
    import tensorflow as tf

    from tests.support import partition

    sent, send = [], partition.ThreadExchange.send

    def noted(self, tensors, counts, name):
        size = tf.numpy_function(lambda *every: _note(sent, every), tensors, tf.int64)
        with tf.control_dependencies([size]):
            return send(self, [tf.identity(one) for one in tensors], counts, name)

    monkeypatch.setattr(partition.ThreadExchange, "send", noted)
    made = {**ELEMENTWISE, **PLAIN}
    found = {}
    for repeats in (1, 6):
        support.compare(made[name], functools.partial(_one_table, repeats), weights=True, sizes=(23,))
        found[repeats] = sum(sent)
        sent.clear()
    each = 4 + 4 * 8 + 4 + 4 * 8 * times  # an index, the row; an index, its sums
    assert found[1] == found[6] and 0.9 < found[1] / each / 23 / support.FEATURES <= 1 and not found[1] % each, found


def _note(sent, arrays):
    sent.append(sum(array.nbytes for array in arrays))
    return np.int64(0)


def _one_table(repeats):
    """Each id so often."""
    ids = [keras.layers.Rescaling(30000.0), keras.layers.RepeatVector(repeats), keras.layers.Reshape((-1,))]
    return [*ids, keras.layers.Embedding(30001, 8), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(8)]


@pytest.mark.parametrize("weights", [True, False])
def test_rows_that_are_dropped(support, weights):
    """A sum of a script's own leaves rows with negative indices out, on ranks that have parts of it too."""
    result = support.compare(ELEMENTWISE["momentum"], kind=support.Dropping, weights=weights)
    assert result.in_parts and result.bits == 0 and result.one < 1e-6, result


@pytest.mark.parametrize("indices", [[3, 10], [-1]])
def test_an_index_that_no_row_has(indices):
    """An error, as on one rank; zeros would be wrong."""
    import tensorflow as tf

    from matex_tf.patches.partition.rules import tables

    builder = types.SimpleNamespace(exchange=types.SimpleNamespace(span=lambda size: (0, size)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"an index is not in \[0, 10\)"):
        tables._mine(builder, [10, 4], tf.constant(indices))


def test_who_gets_an_index():
    """The ranks that have elements of its row; all of them for an index that no row has."""
    from matex_tf.patches.partition import shards

    ends = [shards.span(5 * 48, rank, 3)[1] for rank in range(3)]
    assert ends == [64, 128, 240]
    places, counts = shards.to_owners(np.array([4, 1, -1, 0, 5]), [5, 48], ends)
    assert counts.numpy().tolist() == [4, 3, 3]
    assert places.numpy().tolist() == [1, 2, 3, 4, 1, 2, 4, 0, 2, 4]


@pytest.mark.parametrize("size", [1, 63, 64, 100, 1000, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_spans(size, ranks):
    """Each element is one rank's; parts begin at multiples of the unit, and differ by one unit at most."""
    from matex_tf.patches.partition import shards

    spans = [shards.span(size, rank, ranks) for rank in range(ranks)]
    assert np.concatenate([np.arange(*span) for span in spans]).tolist() == list(range(size))
    assert all(low % shards.UNIT == 0 or low == size for low, _ in spans)
    assert np.ptp(shards.lengths(size, ranks)) <= shards.UNIT
