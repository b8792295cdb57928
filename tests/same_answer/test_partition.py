"""`--partitioner on`: what is traced has the answer of one rank, whatever it does with the rows of a batch."""

import pytest
from compare import same

from tests.support.cases import partitioned

FORMS = [
    *("state", "centralized", "batch norm", "images", "recurrent", "accumulated"),
    *("triplets", "contrast", "penalty"),
]


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_of_one_rank(ranks, form):
    """Layers that keep state, optimizers of one's own, losses over all rows; a last batch of fewer rows than ranks."""
    results = ranks(partitioned.fitted, (1, 3), form=form)
    assert all(whole for _, whole in results[3]), "the steps were not partitioned"
    same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)
