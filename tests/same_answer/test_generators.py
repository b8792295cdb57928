"""Python generators: the same batches on every rank, whoever runs the script's code."""

import numpy as np
import pytest
from compare import same

from tests.support.cases import generated

#: Batches of an epoch of the case `batches`, and those of them that are trained on.
EPOCH, TRAINED = 7, 4


@pytest.mark.parametrize("run_by", ["rank", "node"])
def test_batches(ranks, run_by):
    """Ranks read ahead by as many batches, so that a validation which goes on has the same ones on every rank."""
    results = ranks(generated.batches, (1, 2, 4), meets="", run_by=run_by)
    made = {size: [value.pop("made") for value in values] for size, values in results.items()}
    if run_by == "rank":
        assert len({*made[2], *made[4]}) == 1, made
    else:  # of five calls and a validation each rank makes two batches of each, from which Keras learns their shapes
        assert all(max(of[1:]) == 2 * 5 < of[0] for of in (made[2], made[4])), made
    for values in (*results[2], *results[4]):
        assert values["threads"] == 0
    same({1: results[2][:1], 2: results[2], 4: results[4]}, rtol=0, atol=0)
    # Where the first validation of one rank has left off nobody knows: tf.data has read ahead of it.
    one, several = results[1][0]["batches"], results[4][0]["batches"]
    known = [number for number in range(len(one)) if number < EPOCH or number >= 3 * EPOCH or number % EPOCH < TRAINED]
    assert len(one) == len(several) == 3 * EPOCH + 6 + 3
    for number in known:
        for plain, shared in zip(one[number], several[number], strict=True):
            np.testing.assert_array_equal(shared, plain, str(number))
    np.testing.assert_array_equal(results[4][0]["predicted"], results[1][0]["predicted"])


def test_two_nodes(ranks):
    """A rank of each node runs the generator, and the batches are the same."""
    one_node = ranks(generated.batches, (4,), meets="", run_by="node")[4]
    two = ranks(generated.batches, (4,), meets="", run_by="node", hosts="abab")[4]
    made = [value.pop("made") for value in two]
    assert made[0] == made[1] == one_node[0].pop("made") and made[2] == made[3] == 10, made
    same({1: one_node[:1], 4: two}, rtol=0, atol=0)


@pytest.mark.parametrize("run_by", ["rank", "node"])
def test_batch_that_cannot_be_made(ranks, run_by):
    """Its error reaches every rank, at the step where it reaches one; nothing is left of the walk that it ended."""
    reference = same(ranks(generated.torn, (1, 2, 4), meets="", run_by=run_by), rtol=0, atol=0)
    assert reference["said"] and reference["threads"] == 0 and len(reference["batches"]) == 3 + 3, reference


@pytest.mark.parametrize("run_by", ["rank", "node"])
def test_generator_that_waits(ranks, run_by):
    """A generator that waits for what never comes does not keep a training that is over."""
    assert same(ranks(generated.waits, (1, 2, 4), meets="", run_by=run_by), rtol=0, atol=0)["ended"]


@pytest.mark.parametrize("kind", [pytest.param("own", marks=pytest.mark.smoke), "all", "model"])
def test_who_runs_it(ranks, kind):
    """One rank of a node where the generator leaves nothing behind, also if it asks a model; else every rank."""
    results = ranks(generated.seen, (1, 2, 4), meets="", kind=kind)
    for size in (2, 4):
        said = {line for value in results[size] for line in value.pop("said")}
        first, *others = [value.pop("at") for value in results[size]]
        if kind != "all":
            assert first == 5 and set(others) == {1}, (first, others, said)  # the first two are made by all
            assert len(said) == 1 and said.pop().startswith("the first rank of each node runs the generator"), said
        else:
            assert len({first, *others}) == 1 and len(said) == 1 and "draws random numbers" in said.pop(), said
    same({1: results[2][:1], 2: results[2], 4: results[4]}, rtol=0, atol=0)
    one, several = results[1][0], results[4][0]
    assert several["empty"] == one["empty"] and several["threads"] == 0
    assert bool(one["empty"]) == (kind == "own")
    for plain, shared in zip(one["batches"][:4], several["batches"][:4], strict=True):
        np.testing.assert_allclose(shared[0], plain[0], rtol=1e-6, atol=1e-6)  # of a prediction in parts
        np.testing.assert_array_equal(shared[1], plain[1])


def test_dataset_that_asks_a_model(ranks):
    """A rank that makes a batch with what `predict` gives asks for all of it: the others are elsewhere."""
    results = ranks(generated.asked, (1, 2, 4), meets="")
    same(results, rtol=1e-6, atol=1e-6)
