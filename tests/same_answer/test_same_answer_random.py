"""Random draws belong to rows: a row gets on N ranks the numbers that it gets on one."""

import pytest
from compare import same

from tests.support.cases import draws


@pytest.mark.smoke
def test_layers_with_noise(ranks):
    """Dropout and noise in `fit`, batches ragged, a rank without a row in the last one."""
    same(ranks(draws.fit, (1, 2, 3, 4)))


@pytest.mark.variants(0)
def test_ops(ranks):
    """Every op of TensorFlow and every function of Keras that draws, the same bits for each row."""
    same(ranks(draws.drawn_by_ops, (1, 3, 4), meets="gather predictions"), rtol=0, atol=0)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "options",
    [{"how": "train_on_batch"}, {"steps_per_execution": 2}, {"accumulate": 3}, {"run_eagerly": True}],
    ids=["train_on_batch", "steps_per_execution", "accumulation", "eagerly"],
)
def test_ways_to_train(ranks, options):
    """The same by other ways."""
    same(ranks(draws.fit, **options))


@pytest.mark.variants(0)
def test_recurrent(ranks):
    """Dropout after a recurrent layer, whose rows TensorFlow has carried through a loop with the steps first."""
    same(ranks(draws.recurrent, (1, 3)))


@pytest.mark.variants(0)
def test_own_steps(ranks):
    """A `train_step` with noise of its own: a GAN that joins real and made-up rows, a VAE, stochastic depth."""
    same(ranks(draws.own_steps, (1, 3)))


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["compiled", "eager", "dataset", "any number of rows"])
def test_loops(ranks, form):
    """Loops of the script's own, with a tape."""
    same(ranks(draws.loop, form=form))


def test_monte_carlo(ranks):
    """A model that drops out in `predict` and `evaluate` too."""
    same(ranks(draws.monte_carlo, (1, 3), meets="gather predictions"))


PARTS = 8


@pytest.mark.variants(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_layers(ranks, part):
    """Every layer of Keras that draws gives a row what it gives it on one rank, batches ragged, a rank without rows."""
    known = same(ranks(draws.drawn_by_layers, part=part, parts=PARTS, meets="gather predictions"), rtol=1e-5, atol=1e-4)
    assert known["unknown"] == []
