"""Compiled steps of a script's own loops, with `--partitioner on`: what they give and leave is that of one rank."""

import pytest
from compare import same

from tests.support.cases import compiled_steps

FORMS = [
    *("gan", "LazyVariables", "Nested", "Accumulating", "Sam", "Maml", "Summed", "Scaled", "Beside", "Ragged", "Words"),
    "Stateful",
]


@pytest.mark.variants(4)
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_of_one_rank(ranks, form):
    """Weights, losses, values by row, metrics and what the script's Python sees; a last batch of three rows."""
    results = ranks(compiled_steps.trained, (1, 2, 3), form=form, meets="exchange gradients and sums")
    same(results, rtol=1e-3 if form == "Scaled" else 1e-4, atol=1e-5)
