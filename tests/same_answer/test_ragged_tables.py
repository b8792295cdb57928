"""Tables in parts (`--shard weights`) that are looked up by ragged and sparse ids."""

import pytest
from compare import same

from tests.support.cases import ragged_tables

WAYS = (
    "layer ragged", "safe mean sparse", "layer sparse", "lookup mean ragged", "gather sum ragged", "flat sum ragged",
    "safe sum sparse", "safe sqrtn sparse", "variable mean sparse", "safe mean ragged", "weighted mean sparse",
    "weighted sum ragged",
)  # fmt: skip


def _hold(ranks, sizes, **kwargs):
    results = ranks(ragged_tables.trained, (1, *sizes), **kwargs)
    same({size: [value for value, *_ in values] for size, values in results.items()}, rtol=1e-9, atol=1e-9)
    for size in sizes:
        for _, (mine, whole), lines in results[size]:
            assert mine < 1.1 * whole / size, "a table is whole"
            assert not [line for line in lines if "--shard" in line], lines


@pytest.mark.variants(2)
@pytest.mark.parametrize("how", WAYS)
def test_the_answer_of_one_rank(ranks, how):
    """However ids come and rows are pooled; tables and slots stay in parts."""
    _hold(ranks, (2, 3), how=how)


@pytest.mark.variants(0)
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
@pytest.mark.parametrize("how", ["layer ragged", "safe mean sparse"])
def test_optimizers(ranks, how, optimizer):
    """Rows that a batch names several times."""
    _hold(ranks, (3,), how=how, optimizer=optimizer)


@pytest.mark.variants(0)
def test_batches_that_a_pipeline_makes_ragged(ranks):
    """`ragged_batch`."""
    _hold(ranks, (3,), how="flat mean ragged", form="ragged_batch")
