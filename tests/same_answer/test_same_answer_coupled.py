"""Losses and metrics that look across the rows of a batch: the values and the gradients of one rank."""

import pytest
from compare import same

from tests.support.cases import coupled
from tests.support.installed import KERAS

LOSSES = {
    "dice, masked": {"masked": True},
    "circle, weighted": {"weighted": True},
    "cosine_over_rows": {},
    "squared_hinge": {},
    "own_contrastive": {},
    "own_class": {},
    "dice": {},
    "dice_sum": {},
    "tversky": {},
    "circle": {},
    "own_sum": {},
    "dice, eager": {"eager": True},
    "dice_by_class": {},
    "dice_by_row": {},
    "dice_by_name": {},
    "dice_function": {},
    "tversky_by_name": {},
    "hinge": {},
    "own_mean": {},
    "own_rows": {},
    "own_contrastive, weighted": {"weighted": True},
    "own_contrastive, eager": {"eager": True},
    "dice, weighted": {"weighted": True},
    "circle, eager": {"eager": True},
}


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", LOSSES)
def test_loss(ranks, name):
    """Losses of Keras in `fit` and `evaluate`: weights, optimizer, history."""
    kind = name.partition(",")[0]
    if kind == "circle" and KERAS < (3, 6):
        pytest.skip("this Keras does not have it")
    if kind == "dice_by_class" and KERAS < (3, 8):
        pytest.skip("Dice has no axis in this Keras")
    same(ranks(coupled.loss, kind=kind, **LOSSES[name]), rtol=1e-4)
    if kind in ("own_mean", "own_rows"):  # nothing is gathered for these
        assert not [what for what in ranks.last[max(ranks.last)][0].calls if what.startswith("gather the rows")]


def test_ghosts(ranks):
    """More ranks than the last batch has rows."""
    same(ranks(coupled.loss, (1, 4), kind="dice"), rtol=1e-4)


def test_several_outputs(ranks):
    """Each output has a loss across rows."""
    same(ranks(coupled.several_outputs), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_loop(ranks, compiled):
    """The same in a loop of the script's own."""
    same(ranks(coupled.loop, compiled=compiled), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("eager", [False, True])
def test_metrics(ranks, eager):
    """Functions and classes that a script has written, whether they add up over rows or not; one is never reset."""
    same(ranks(coupled.metrics, eager=eager), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("eager", [False, True])
def test_own_step(ranks, eager):
    """Logs of a custom `train_step`, in its order; metrics that are fed means over the batch."""
    same(ranks(coupled.own_step, eager=eager), rtol=1e-4)


def test_averaged(ranks):
    """Ragged rows are not gathered: a metric of them that does not add up is averaged, with a warning."""
    for value in ranks(coupled.ragged, (3,), meets="average a metric")[3]:
        assert len(value["warned"]) == 1 and "averaged" in value["warned"][0]
        assert 4 < value["value"] <= 12


@pytest.mark.variants(2)
@pytest.mark.parametrize("kind", ["tensordot", "functional", "random", "rows", "layers"])
def test_own_model(ranks, kind):
    """A model that looks across rows is named; one that does not, or that draws random numbers, is not."""
    for told in ranks(coupled.own_model, (2,), kind=kind)[2]:
        assert len(told["told"]) == (kind in ("tensordot", "functional")), told
