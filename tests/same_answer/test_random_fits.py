"""Random training jobs in float64 through `fit`. `scripts/fuzz_fit --programs 200 --seed 1000` tries more."""

import pytest
from compare import same

from tests.support.cases import random_fits

SEEDS = (0, 1, 2, 3)


@pytest.mark.variants(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_job(ranks, seed):
    """History, weights, slots of optimizers, and what comes after."""
    results = ranks(random_fits.fitted, (1, 3), seed=seed, meets="exchange gradients and sums")
    same({size: [value for value, *_ in values] for size, values in results.items()}, rtol=1e-6, atol=1e-9)
