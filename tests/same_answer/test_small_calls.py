"""Calls on a few rows, which each rank computes whole: the answer of one rank, and ranks that do not meet."""

import pytest
from compare import alike, same

from tests.support.cases import small_calls


def test_a_loop_of_small_calls(ranks):
    """Predictions, and metrics of every kind, are those of one rank; most calls meet nobody."""
    same(ranks(small_calls.loop, (1, 2)))
    for outcome in ranks.last[2]:
        # Predictions are gathered in the first, second, fourth and eighth call of each kind, of which there are three.
        gathered = [count for what, count in outcome.calls.items() if what.startswith("gather predictions")]
        assert sum(gathered) == 4 * 2 + 4 * 3, outcome.calls
        assert outcome.calls["agree whether each rank computes small calls whole"] == 4 * 4, outcome.calls


@pytest.mark.variants(1)
@pytest.mark.parametrize("after", [0, 2])
def test_rows_of_a_ranks_own(ranks, after):
    """A rank that gives other rows gets the predictions for these, and rows that differ are shared out no longer."""
    assert ranks(small_calls.of_own_rows, (3,), meets="", after=after)[3] == [0] * 3


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["random", "eager"])
def test_what_would_differ_between_ranks(ranks, kind):
    """Graphs that draw random numbers, and steps without a graph, are shared out: every rank has the same."""
    alike(ranks(small_calls.apart, (3,), kind=kind))


def test_between_the_batches_of_an_epoch(ranks):
    """Moving statistics are a rank's own there."""
    alike(ranks(small_calls.in_callbacks, (3,)))
