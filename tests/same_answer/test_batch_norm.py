"""BatchNormalization over the rows of the whole batch, and over a rank's own."""

import numpy as np
import pytest
from compare import alike, same

from tests.support.cases import batch_norms

FORMS = [
    *("images", "masked", "renorm", "mixed precision"),
    *("dense", "masked, synchronized", "each time step", "frozen", "float64", "eager", "several steps"),
]
_DIGITS = {"mixed precision": 1e-2, "images": 2e-4}


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", FORMS)
def test_over_the_batch(ranks, form):
    """Losses, weights, and the moving statistics after every step, as on one rank; a batch of one row included."""
    same(ranks(batch_norms.fitted, form=form), rtol=_DIGITS.get(form, 3e-5), atol=_DIGITS.get(form, 1e-5))


@pytest.mark.variants(0)
def test_gradients_accumulate(ranks):
    """Over three steps."""
    same(ranks(batch_norms.accumulated), rtol=3e-5)


def test_train_on_batch(ranks):
    """What comes of single steps."""
    same(ranks(batch_norms.on_batches), rtol=3e-5)


@pytest.mark.variants(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_own_loop(ranks, compiled):
    """Eagerly, and in a `tf.function`."""
    same(ranks(batch_norms.in_a_loop, compiled_step=compiled), rtol=3e-5)


@pytest.mark.variants(0)
def test_gradient_of_a_gradient(ranks):
    """A penalty on gradients differentiates the layer twice."""
    same(ranks(batch_norms.penalized, (1, 2, 3)), rtol=1e-4)


@pytest.mark.smoke
def test_over_the_rank(ranks):
    """`--batch-norm rank`: each rank normalizes by its own rows; statistics are alike after every epoch."""
    results = ranks(batch_norms.fitted, (1, 3), form="dense", batch_norm="rank")
    final = {size: [values["weights"] for values in every] for size, every in results.items()}
    alike(final)
    assert not np.allclose(results[3][0]["statistics"][0][0], results[3][1]["statistics"][0][0], rtol=1e-3)
    for values in results.values():
        losses = values[0]["history"]["loss"]
        assert losses[-1] < losses[0]
