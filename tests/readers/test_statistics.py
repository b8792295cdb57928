"""Statistics of a `DataSet`: those of the whole file on every rank, or an error."""

import pytest
from compare import same

from matex_tf.errors import DataError
from matex_tf.readers import missing_values
from tests.support.cases import statistics


def test_of_all_rows(bare_ranks):
    """Mean, extremes, percentiles, … of rows of the ranks' own, with the bits of one rank."""
    results = bare_ranks(statistics.statistics, (1, 2, 3), meets="compute np.nanmean")
    assert all(value is True for values in results.values() for value in values)


@pytest.mark.parametrize("missing", ["mean", "median", 2.5])
@pytest.mark.parametrize(("dtype", "block"), [("float32", 0), ("float64", 7)])
def test_missing_values(bare_ranks, missing, dtype, block):
    """They become what is asked for, of the rows of all ranks, with the same bits on any number of them."""
    results = bare_ranks(statistics.filled, (1, 2, 3), meets="", missing=missing, dtype=dtype, block=block)
    assert len({tuple(value) for values in results.values() for value in values}) == 1


@pytest.mark.parametrize("missing", ["mean", "median"])
def test_a_column_without_values(bare_ranks, missing):
    """There is no mean of nothing: an error on every rank."""
    for message in bare_ranks.refused(statistics.filled_without_values, (3,), error="DataError", missing=missing)[3]:
        assert f"column 2 of the inputs has no value in any row, and so no {missing}" in message


@pytest.mark.parametrize("missing", ["most", True, float("nan"), [1.0]])
def test_what_missing_can_be(missing):
    """In words."""
    with pytest.raises(DataError, match='give "mean", "median", a number, or None'):
        missing_values.check(missing)


def test_of_large_data(bare_ranks):
    """Moments and extremes need no rank to hold all rows; a median does, and is refused."""
    for messages in bare_ranks.refused(statistics.of_large, (3,), error="DataError").values():
        assert all("np.median" in message and "more than" in message for message in messages)


@pytest.mark.parametrize(
    "what",
    [
        *("sum", "add.reduce", "bincount", "count_nonzero", "unique"),
        *("argmax", "argsort", "sort", "cumsum", "histogram"),
    ],
)
def test_refused(bare_ranks, what):
    """What grows with the rows, or names places of rows, is an error that says what to do."""
    for message in bare_ranks.refused(statistics.refused, (3,), error="DataError", what=what)[3]:
        assert f"np.{what}" in message and "shard.whole" in message


def test_in_a_thread(bare_ranks):
    """Ranks meet in the main thread alone: an error, and no hang."""
    for message in bare_ranks.refused(statistics.in_a_thread, (3,), error="DataError")[3]:
        assert "main thread" in message


@pytest.mark.variants(6)
@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        ("Normalization", "data"),
        ("Normalization", "batches"),
        ("Discretization", "data"),
        ("StringLookup", "list"),
        ("TextVectorization", "plain"),
        ("Normalization", "stream"),
        ("Normalization", "plain"),
        ("Normalization", "tensor"),
        ("Normalization", "elements"),
        ("StringLookup", "plain"),
        ("StringLookup", "batches"),
        ("StringLookup", "elements"),
        ("TextVectorization", "batches"),
    ],
)
def test_adapt(ranks, layer, kind):
    """A layer learns from the rows of all ranks."""
    same(ranks(statistics.adapted, (1, 3), meets="", layer=layer, kind=kind))


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("state", "scale/mean"),
        ("weights", "head/bias"),
        ("a layer's arguments", "scale/input_mean"),
        ("a generator", "scale/mean"),
        ("class_weight", "class_weight"),
    ],
)
def test_other_values_on_other_ranks(ranks, what, named):
    """What differs when `fit` begins is an error that names it."""
    for message in ranks.refused(statistics.other_values, (3,), error="RanksDisagree", what=what)[3]:
        assert named in message, message
