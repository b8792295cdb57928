"""What a callback sees of a batch is the whole batch's."""

import pytest
from compare import same

from tests.support.cases import batch_logs

WHAT = "add up the logs of a batch"


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["metrics", "not a sum", "eager", "several steps"])
def test_callback(ranks, form):
    """After every batch of `fit`, of its validation, and of `evaluate`; a batch with fewer rows than ranks too."""
    same(ranks(batch_logs.seen, form=form, meets=WHAT), rtol=3e-5)


def test_own_step(ranks):
    """Metrics and plain numbers of a `train_step` of the script's own."""
    same(ranks(batch_logs.of_an_own_step, meets=WHAT), rtol=3e-5)


def test_progress_bar(ranks):
    """It reads them."""
    same(ranks(batch_logs.bar))


def test_no_message_of_their_own(ranks):
    """In training they come along with the gradients; in a partitioned step metrics do too."""
    same(ranks(batch_logs.read), rtol=3e-5)
    several = [rank.calls for rank in ranks.last[max(ranks.last)]]
    assert not any(WHAT in call for calls in several for call in calls)
    assert not any("merge metrics" in call for calls in several for call in calls)


def test_unread(ranks):
    """Where nobody reads them the ranks send nothing for them."""
    same(ranks(batch_logs.unread))
    assert not any(WHAT in call for size in ranks.last.values() for rank in size for call in rank.calls)
