"""Compiled steps of a script's own loops, with `--partitioner on`: what they give and leave is that of one rank."""

import numpy as np
import pytest
from compare import same

from tests.support.cases import compiled_steps

FORMS = [
    *("gan", "Returned", "LazyVariables", "Nested", "Accumulating", "Sam", "Maml", "Summed", "Scaled", "Beside"),
    *("Lengths", "Sliced", "Closure", "Ragged", "Words", "Stateful", "Converted"),
]


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_of_one_rank(ranks, form):
    """Weights, losses, values by row, metrics and what the script's Python sees; a last batch of three rows."""
    results = ranks(compiled_steps.trained, (1, 2, 3), form=form, meets="exchange gradients and sums")
    same(results, rtol=1e-3 if form == "Scaled" else 1e-4, atol=1e-5)
    if form == "Sliced":
        assert all(said.calls["compare what step gets"] == 10 for size in (2, 3) for said in ranks.last[size])
    if form == "Closure":
        assert all("gets is split among" in ranks.last[size][0].output for size in (2, 3))
    if form in ("Lengths", "Closure", "Words"):
        assert not [said for said in ranks.last[3] if "computed whole" in said.output]


def test_ranks_may_get_rows_of_their_own(ranks):
    """Their gradients are averaged then; where all get the same, each computes its rows."""
    for said in ranks(compiled_steps.unlike_arguments, (3,), meets="compare what step gets")[3]:
        np.testing.assert_allclose(said, [0.75, 0.3, 0.2], 1e-6)  # means of 2.5, 4.5 and 1


def test_a_tape_that_is_used_once(ranks):
    """What TensorFlow compiles to use it is traced once."""
    same(ranks(compiled_steps.jacobian, apart="nothing is trained"))


def test_ranks_that_wait_for_input_divide_it(ranks):
    """The loop has whole batches, each rank makes a part of their rows, and the answer stays."""
    results = ranks(compiled_steps.slow_input, (1, 3), meets="agree whether input takes long")
    same({size: [value[:2] for value in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)
    assert results[1][0][2] == 3 * 67
    assert all(calls < 2 * 67 for *_, calls in results[3]), [calls for *_, calls in results[3]]
