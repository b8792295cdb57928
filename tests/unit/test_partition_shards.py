"""Slots of optimizers in parts, on two ranks that are threads: beside whole ones, and beside one rank."""

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
@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam", "global norm", "accumulated", "ftrl"])
def test_large_tables(support, name, weights):
    """Rows are looked up and added to where they are, to the bit as in whole tables. No rank gathers one."""
    make = {**ELEMENTWISE, **OTHERS, "sgd": lambda: optimizers.SGD(0.1)}[name]
    result = support.compare(make, support.tables, weights=weights)
    assert result.in_parts == {"adagrad": 2, "sgd": 0, "accumulated": 6, "adam": 6}.get(name, 4) + 2 * weights, result
    assert result.bits == 0 and result.one < 1e-6, result
    assert not weights or result.largest < 1000, result


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


@pytest.mark.parametrize("size", [1, 63, 64, 100, 1000, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_spans(size, ranks):
    """Each element is one rank's; parts begin at multiples of the unit, and differ by one unit at most."""
    from matex_tf.patches.partition import shards

    spans = [shards.span(size, rank, ranks) for rank in range(ranks)]
    assert np.concatenate([np.arange(*span) for span in spans]).tolist() == list(range(size))
    assert all(low % shards.UNIT == 0 or low == size for low, _ in spans)
    assert np.ptp(shards.lengths(size, ranks)) <= shards.UNIT
