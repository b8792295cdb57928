"""Counters at the end of data of unknown length: those of one rank, where Keras begins one more step."""

import pytest
from compare import same

from tests.support.cases import end_of_data

ACCUMULATING = ("accumulating", "accumulating plainly", "accumulating adam")
FORMS = ("schedule", "adam", *ACCUMULATING, "scaled", "eager", "jit", "several", "short", "steps", "two", "generator")


@pytest.mark.variants(4)
@pytest.mark.parametrize("form", FORMS)
def test_counters(ranks, form):
    """`optimizer.iterations`, the states of random generators, and the weights that depend on them."""
    amplified = form not in ("schedule", "accumulating", "accumulating plainly", "scaled")  # rounding, by Adam
    same(ranks(end_of_data.counted, form=form), rtol=1e-3 if amplified else 1e-4)


@pytest.mark.variants(4)
@pytest.mark.parametrize("promised", [False, True, "rows"])
@pytest.mark.parametrize("own", [False, True])
def test_logs(ranks, own, promised):
    """What metrics divide by, where a step without a batch adds to it."""
    same(ranks(end_of_data.logs, own=own, promised=promised))
