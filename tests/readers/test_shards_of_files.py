"""What a rank holds of a table, in which order the ranks use it, and training on it."""

import pytest
from compare import same

from tests.support.cases import shards

SIZES = (1, 2, 3, 4)


def all_true(results):
    assert all(value is True for values in results.values() for value in values), results


@pytest.mark.parametrize("count", [101, 100, 3])
@pytest.mark.parametrize("window", [(0, None, 1), (10, 90, 1), (1, None, 3)])
def test_places(bare_ranks, count, window):
    """Contiguous parts that differ by one row at most, and that together are the rows."""
    if not range(count)[slice(*window)]:
        window = (0, 2, 1)
    all_true(bare_ranks(shards.places, SIZES, meets="join", count=count, window=window))


@pytest.mark.parametrize(("count", "batch"), [(101, 25), (100, 10), (101, 2), (3, 50)])
def test_turns(bare_ranks, count, batch):
    """The batches that ranks make together are those of `order`, epoch after epoch."""
    all_true(bare_ranks(shards.turns, SIZES, meets="join", count=count, batch=batch))


def test_divisor_and_classes(bare_ranks):
    """`normalize=True` and `one_hot=True` look at the rows of all ranks."""
    all_true(bare_ranks(shards.prepared, SIZES, meets="find the "))


def test_a_label_that_is_no_class(bare_ranks):
    """It is named."""
    for message in bare_ranks.refused(shards.odd_label, (1, 3), error="DataError")[3]:
        assert "one_hot" in message and "-1" in message


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "options", [{}, {"block": 4}, {"block": 4, "shuffle": True}, {"shuffle": True}, {"batch": 2, "block": 7}]
)
def test_streams(ranks, options):
    """A pipeline yields the rows of each batch that are the rank's, and reads no more at a time than a block."""
    all_true(ranks(shards.streamed, (1, 3, 4), meets="count the rows of a batch", **options))


@pytest.mark.parametrize("source", ["arrays", "stream", "mapped"])
def test_training(ranks, source):
    """Three ranks train on shards as one rank does on the rows in `order`."""
    same(ranks(shards.trained, (1, 3), source=source))
    assert not [one.output for outcomes in ranks.last.values() for one in outcomes if "AutoGraph" in one.output]


@pytest.mark.parametrize("kind", ["filtered", "one rank"])
def test_pipelines_of_other_lengths(ranks, kind):
    """A rank whose rows have ended goes on as a ghost; with a rate of zero the loss is that over all rows."""
    same(ranks(shards.uneven, (1, 3), kind=kind))
