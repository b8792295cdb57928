"""Pipelines of ops that scripts use seldom: the same batches, bit for bit."""

import pytest
from compare import same

from tests.support.cases import unusual_pipelines


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "name",
    [
        "bucket_by_sequence_length",
        "converted",
        "window",
        "group_by_window",
        "scan",
        "rejection_resample",
        "sparse",
        "counter",
        "random",
        "take_while",
        "ignore_errors",
        "unique",
        "from_tensors",
        "copy_to_device",
        "assert_cardinality",
    ],
)
def test_batches(ranks, name):
    """Every step of two epochs has the rows that it has on one rank."""
    results = ranks(unusual_pipelines.walked, meets="merge metrics", name=name)
    assert len(results[1][0]) >= 6, len(results[1][0])
    same(results, rtol=0, atol=0)
