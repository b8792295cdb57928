"""`--partitioner on`: what is traced has the answer of one rank, whatever it does with the rows of a batch."""

import numpy as np
import pytest
from compare import same

from tests.support.cases import partitioned

FORMS = [
    *("state", "batch norm", "triplets", "penalty", "accumulated"),
    *("centralized", "images", "recurrent", "contrast"),
]


@pytest.mark.variants(3)
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_of_one_rank(ranks, form):
    """Layers that keep state, optimizers of one's own, losses over all rows; a last batch of fewer rows than ranks."""
    results = ranks(partitioned.fitted, (1, 3), form=form)
    assert all(whole for _, whole in results[3]), "the steps were not partitioned"
    same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["number", "stateful"])
def test_batches_of_a_fixed_number_of_rows(ranks, kind):
    """Layers that keep a state for each row, and steps that compute with the number of rows that one rank sees."""
    same(ranks(partitioned.numbered, (1, 3), kind=kind), rtol=1e-4, atol=1e-5)


def test_draws_for_a_fixed_number_of_rows(ranks):
    """A step that draws as many rows as each batch has, by their number, is traced for that: it can be split then."""
    results = ranks(partitioned.drawn, (1, 3))
    assert [rows for _, rows in results[3]] == [16] * 3, results[3]
    same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [32, 1], ids=["rebuilt", "one whole"])
def test_a_second_tensor_with_rows_of_its_own(ranks, most):
    """How many it has may change from batch to batch while the rows of the batch stay; draws go on."""
    same(ranks(partitioned.two_sizes, (1, 3), most=most, meets=""), rtol=1e-4, atol=1e-5)


def test_steps_are_traced_once(ranks):
    """Where Keras' code alone makes variables, they are made before; TensorFlow traces a step twice otherwise."""
    results = ranks(partitioned.built_before_it_is_traced, (1, 3))
    assert [count for _, count in results[3]] == [1] * 3 and results[1][0][1] == 2, results
    same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)


@pytest.mark.variants(2)
@pytest.mark.parametrize("shards", [False, True], ids=["shared", "shards"])
@pytest.mark.parametrize("kind", ["cannot", "fails"])
def test_what_cannot_be_rebuilt_is_computed_whole(ranks, kind, shards):
    """Every rank computes the whole batch then, also if each has rows of its own; a line says why."""
    results = ranks(partitioned.computed_whole, (1, 3) if not shards else (2, 3), kind=kind, shards=shards, meets="")
    why = {"cannot": "a test says so", "fails": "IndexError: list index out of range"}[kind]
    assert all(any(why in line for line in lines) for _, lines in results[3]), results[3][0][1]
    if not shards:  # each number of ranks has shards of its own
        same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)
        return
    expected = ranks(partitioned.computed_whole, (2, 3), kind="", shards=True)
    for size, values in results.items():
        assert not expected[size][0][1]
        same({1: [expected[size][0][0]], size: [value for value, _ in values]}, rtol=1e-4, atol=1e-5)


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["ragged", "lengths"])
def test_batches_of_many_shapes(ranks, kind):
    """Ragged batches are computed whole; for each length of sequences a step is rebuilt."""
    results = ranks(partitioned.computed_whole, (1, 3), kind=kind, meets="")
    assert all(any("ragged" in line for line in lines) == (kind == "ragged") for _, lines in results[3])
    same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)


def test_ranks_that_rebuild_differently_say_so(ranks):
    """One rank alone cannot rebuild a step: every rank says what differs, and none waits."""
    said = ranks(partitioned.rebuilt_by_some, (3,), meets="")[3]
    assert all("computed whole by every rank" in text and "split by rows" in text for text in said), said


@pytest.mark.variants(1)
@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_codecs_are_for_gradients(ranks, codec):
    """Gradients are encoded between hosts; logs are exact."""
    exact = ranks(partitioned.coded, (3,), codec="none")[3][0][0]
    for found, whole in ranks(partitioned.coded, (3,), codec=codec)[3]:
        assert whole
        off = [np.abs(a - b).max() for a, b in zip(found["weights"], exact["weights"], strict=True)]
        assert 0 < max(off) < 0.05, off
        same({1: [exact["logs"]], 3: [found["logs"]]})


def test_predictions_that_compare_rows(ranks):
    """A `predict` that looks at all rows of a batch, keeps state and draws gives what one rank gives."""
    same(ranks(partitioned.predicted, (1, 3), meets="gather predictions"))


def test_a_model_that_is_compiled_anew(ranks):
    """What it was compiled as before does not count."""
    results = ranks(partitioned.compiled_anew, (1, 3), meets="")
    assert all(eagerly for values in results.values() for _, eagerly in values)
    same(results)
