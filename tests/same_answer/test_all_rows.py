"""`matex_tf.all_rows`: losses of a script's own that compare the rows of a batch."""

import pytest
from compare import same

from tests.support.cases import all_rows


@pytest.mark.variants(1)
@pytest.mark.parametrize("loss", ("simclr", "clip", "triplet"))
def test_in_a_train_step(ranks, loss):
    """The weights of one rank, with a ragged last batch of fewer rows than ranks."""
    same(ranks(all_rows.in_a_step, loss=loss), rtol=1e-4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("loss", ("simclr", "clip", "triplet"))
def test_in_a_loop(ranks, loss, compiled):
    """The weights of one rank, and the loss of the whole batch on every rank."""
    same(ranks(all_rows.in_a_loop, loss=loss, compiled=compiled), rtol=1e-4)


def test_outside(ranks):
    """It gives back what it gets."""
    same(ranks(all_rows.outside, (1, 2), apart="there is no batch"))
