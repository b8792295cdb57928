"""Networks that change while they train: the same neurons at the same steps on any number of ranks."""

import pytest
from compare import same

from tests.features.dynamics.cases import dynamics

#: That without options is in `test_weights_differ_by_rounding_alone`.
FORMS = [
    {"apoptosis": False, "grow": True},
    {"apoptosis": False, "grow": True, "grow_depth": True, "model": "blocks"},
    {"model": "attention"},
    {"grow": True, "validation": False, "epochs": 6},
    {"model": "convolutions", "apoptosis_tolerance": 0.3, "epochs": 7},
    {"model": "recurrent", "apoptosis_tolerance": 0.3, "epochs": 4, "rate": 0.25},
    {"validation": False, "epochs": 6},
    {"rule": "average", "epochs": 7},
    {"rule": "accumulation"},
    {"rule": "scaled", "apoptosis_tolerance": 0.3},
    {"rule": "clipped"},
    {"jit": True},
    {"codec": "bf16", "bucket_mb": 1},
    {"batch": 23, "apoptosis_tolerance": 0.3},
]


@pytest.mark.variants(0)
@pytest.mark.parametrize("how", FORMS, ids=lambda how: " ".join(map(str, how.values())))
def test_same_neurons(ranks, how):
    """Shapes, weights, optimizer and `History`; with apoptosis the network has become smaller."""
    result = same(ranks(dynamics.changed, (1, 4), **how), rtol=1e-4, atol=1e-5)
    if how.get("apoptosis", True):
        assert result["after"] < 0.9 * result["before"]
    assert result["history"]["val_loss" if how.get("validation", True) else "loss"][-1] < 0.8


@pytest.mark.variants(1)
@pytest.mark.parametrize("how", [{}, {"grow": True, "epochs": 6}], ids=["apoptosis", "grow and apoptosis"])
def test_weights_differ_by_rounding_alone(ranks, how):
    """To 1e-5 of the largest weight, after a training in which neurons came and went."""
    result = same(ranks(dynamics.changed, (1, 4), **how), rtol=1e-5, atol=1e-7)
    assert result["after"] < 0.9 * result["before"]


@pytest.mark.variants(0)
@pytest.mark.parametrize("depth", [False, True], ids=["widths", "depth"])
def test_growth_goes_on_in_the_next_fit(ranks, depth):
    """It does not begin again; nor does a model begin small that has been trained before."""
    result = same(ranks(dynamics.several_fits, (1, 4), depth=depth), rtol=1e-4, atol=1e-5)
    whole, seen = result["whole"], [int(count) for counts in result["seen"] for count in counts]
    assert seen == sorted(seen) and seen[1] < seen[5] == seen[6] == whole
    assert result["losses"] == sorted(result["losses"], reverse=True)
    assert result["trained"] == whole
