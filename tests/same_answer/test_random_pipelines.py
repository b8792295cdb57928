"""Pipelines that are put together at random have the batches of one rank, bit for bit."""

import pytest
from compare import same

from tests.support.cases import random_pipelines


@pytest.mark.variants(1)
@pytest.mark.parametrize("first", range(0, 200, 5))
def test_batches(ranks, first):
    """Of ten pipelines, whatever stands in front of `batch` and behind it."""
    results = ranks(random_pipelines.walked, (1, 2, 3), meets="merge metrics", seeds=range(first, first + 5))
    for name, reference in results[1][0].items():
        for size, values in results.items():
            for value in values:
                same({1: [reference], size: [value[name]]}, rtol=0, atol=0)
