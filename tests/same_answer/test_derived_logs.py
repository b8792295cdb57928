"""Results of metrics that a step computes with are those of one rank at that point of the step."""

import pytest
from compare import same

from tests.support.cases import derived_logs

FORMS = ["derived", "eager", "made late", "several steps", "weight", "compiled", "of its own", "metric of metrics"]


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", FORMS)
def test_derived(ranks, form):
    """Logs of batches and epochs, and weights where they follow from a result."""
    same(ranks(derived_logs.derived, (1, 3), form=form), rtol=5e-5)


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["derived", "eager", "weight"])
def test_reproducible(ranks, form):
    """With --reproducible the same bits on any number of ranks, and what one rank has without it."""
    found = ranks(derived_logs.reproducible, (1, 3), form=form, count=4, meets="")
    same(found, rtol=0, atol=0)
    plain = ranks(derived_logs.derived, (1,), form=form)[1]
    same({1: plain, 3: found[3]}, rtol=5e-5)
