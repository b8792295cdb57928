"""Data sets of Python: made in turn if a batch depends on its index alone, by every rank if not; the same rows."""

import pytest
from compare import same

from tests.support.cases import producers
from tests.support.cases.producers import PURE


def test_who_makes_batches(ranks, request):
    """What draws, counts or keeps anything is made by every rank, and ends as on one rank; what does not, in turn."""
    kinds = [] if request.config.getoption("--all") else ["rolling", "thread", "c", "lazy file", "plain"]
    results = ranks(producers.made, (1, 2, 3), meets="", kinds=kinds)
    for values in results.values():
        for value in values:
            for kind, one in value.items():
                lines = one.pop("said")
                in_turn = [line for line in lines if "made by one rank, in turn" in line]
                assert len(values) == 1 or (len(lines) == 1 and bool(in_turn) == (kind in PURE)), (kind, lines)
    same(results, rtol=0, atol=0)


def test_the_price(ranks):
    """A line says which part of an epoch goes into batches that every rank makes, and why; none does of the others."""
    for found in ranks(producers.priced, (2,), meets="")[2]:
        for kind in ("drawing", "drawing generator"):
            assert len(found[kind]) == 1, found
            assert "goes into making input that every rank makes" in found[kind][0]
            assert "making a batch draws random numbers" in found[kind][0]
        assert not any("every rank makes" in line for line in found["pure"]), found


def test_one_that_changes_later(ranks):
    """A second rank makes some of the batches too, and all make one when the call ends: the same error on all ranks."""
    results = ranks(producers.later, (1, 2, 3), meets="")
    assert not any(results[1][0].values())
    for size in (2, 3):
        found, *others = results[size]
        assert all(other == found for other in others), results[size]
        for name in ("epoch 3", "environment"):
            assert "Later: batch" in found[name] and "depends on more than its index" in found[name], found
        assert "draws random numbers" in found["last epoch"] and "--data whole" in found["last epoch"], found
        assert "draws random numbers" in found["generator"] and "--generators rank" in found["generator"], found


def test_lengths_that_change(ranks):
    """An epoch ends where it ends on one rank."""
    same(ranks(producers.shrinking, (1, 2, 3), meets=""), rtol=0, atol=0)


@pytest.mark.parametrize("drawing", [False, True])
def test_epochs_that_end_before_the_data(ranks, drawing):
    """What `on_epoch_end` changes is changed when one batch more than the epoch has is made, as on one rank.

    That one is the least that TensorFlow makes ahead there; how many it does depends on the time.
    """
    results = ranks(producers.hooks, (2, 3), meets="", drawing=drawing)
    reference = same({1: results[2][:1], **results}, rtol=0, atol=0)
    assert reference["seen"][:14] == [1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 4, 4]
