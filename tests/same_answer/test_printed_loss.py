"""Loops that print the loss of a step print that of the whole batch, on every rank."""

import pytest
from compare import same

from tests.support.cases import printed_loss


@pytest.mark.variants(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_guide(ranks, compiled):
    """The loop of Keras' guide, with batches that do not divide and ranks without rows."""
    same(ranks(printed_loss.guide, (1, 2, 3), compiled=compiled))


@pytest.mark.variants(3)
@pytest.mark.parametrize("how", ["ops", "numpy", "format", "print", "sum", "compare", "list", "convert", "metric"])
def test_read(ranks, how):
    """An eager loss, however a script reads it."""
    same(ranks(printed_loss.read, how=how))


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["parts", "early", "cast", "branch", "persistent", "nested"])
def test_made_of(ranks, form):
    """What a compiled step returns: the parts of its loss, and what it computes of the loss."""
    same(ranks(printed_loss.made_of, form=form))


def test_whole_epoch(ranks):
    """The last loss of a compiled loop."""
    same(ranks(printed_loss.whole_epoch, (1, 3)))


def test_tapes_are_undisturbed(ranks):
    """A persistent tape, and a second tape, go on with the values that they have recorded."""
    assert all(all(right) for right in ranks(printed_loss.asked_again, (3,))[3])


def test_no_message_of_its_own(ranks):
    """The loss travels along with the gradients: ranks meet once a step."""
    same(ranks(printed_loss.messages, (1, 3)))
    assert {outcome.calls["exchange gradients"] for outcome in ranks.last[3]} == {5}
    assert not any("loss" in what for outcome in ranks.last[3] for what in outcome.calls)


def test_vectors(ranks):
    """A target of several numbers stays as it is."""
    assert all(all(left) for left in ranks(printed_loss.vectors, (3,))[3])
