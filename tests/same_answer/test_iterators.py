"""Compiled steps that take their batches by themselves: N ranks as one, draws, metrics and losses included."""

import pytest
from compare import same

from tests.support.cases import iterators

FORMS = [
    "closure",
    "argument",
    "handed_on",
    "inner_function",
    "enumerated",
    "branches",
    "in_range",
    "optional",
    "inside",
    "loop",
    "compiled_inside_eager",
]


@pytest.mark.variants(5)
@pytest.mark.parametrize("name", FORMS)
def test_form(ranks, name):
    """Each rank trains on its rows of each batch that a compiled function takes."""
    same(ranks(iterators.form, name=name, meets="exchange gradients"), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("loop", "compiled_inside_eager")])
def test_divided(ranks, name):
    """The same where the ranks divide the work on the pipeline."""
    same(ranks(iterators.form, name=name, kind="map", meets="exchange gradients"), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ["closure", "argument", "inside"])
def test_own_rows(ranks, name):
    """The same where each rank's pipeline has rows of its own, which together are the batch."""
    same(ranks(iterators.form, name=name, kind="own", meets="exchange gradients"), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("how", ["compiled", "eager", "gradients"])
@pytest.mark.parametrize("kind", ["new", "legacy"])
def test_minimize_of_keras_2(ranks, kind, how):
    """`optimizer.minimize(loss, variables)` where the loss takes the batch; gradients that come from no tape."""
    same(ranks(iterators.minimized, kind=kind, how=how, meets="exchange gradients"), rtol=1e-4)


def test_signature(ranks):
    """What cannot be taken apart for an iterator of pieces is an error that says what to do."""
    for outcome in ranks.outcomes(iterators.signature, (2,))[2]:
        assert "leave out the input_signature" in outcome.error


def test_loop_that_is_collected(ranks):
    """A loop that was left in the middle may be collected on one rank while another loop is under way."""
    same(ranks(iterators.collected, (1, 3), meets="exchange gradients"), rtol=1e-5)


@pytest.mark.parametrize("enabled", [None, True])
def test_pipelines_are_not_tuned(ranks, enabled):
    """A pipeline is tuned if the script asks for that: letting go of it would take long."""
    values = ranks(iterators.tuned, (2,), apart="each walks over the same pipeline", enabled=enabled)[2]
    assert values == [bool(enabled)] * 2
