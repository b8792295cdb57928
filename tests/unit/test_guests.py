"""Ranks that have come to a running job are left behind where they differ, and those that began it go on."""

import pytest

from matex_tf.core.world import World
from matex_tf.errors import RankLost
from matex_tf.faults import transactions
from matex_tf.faults.transactions import TransactionGuard


def guard(first_ranks, killed, rank=0):
    """That of a rank, in a job that two ranks began."""
    world = World()
    world.rank, world.size, world.first_ranks, world.founders = rank, len(first_ranks), first_ranks, 2
    world.log = lambda line: killed.append(line)
    made = TransactionGuard.__new__(TransactionGuard)
    made._world, made._processes = world, list(first_ranks)
    return made


@pytest.mark.parametrize(
    "first_ranks, everyone, apart",
    [
        ([0, 1, 2], ["a", "a", "b"], [2]),
        ([0, 1, 2, 5], ["a", "a", "a", "b"], [5]),
        ([1, 2, 5], ["a", "b", "c"], [2, 5]),
        ([0, 1, 2], ["a", "a", "a"], []),
        ([0, 1, 2], ["a", "b", "b"], []),  # those that began the job differ: an error of the script
        ([0, 1], ["a", "b"], []),
        ([2, 5], ["a", "b"], []),  # nobody is left that began it
    ],
)
def test_who_must_leave(first_ranks, everyone, apart, monkeypatch):
    killed = []
    monkeypatch.setattr(transactions, "kill", killed.append)
    this = guard(first_ranks, killed)
    if not apart:
        this.leave_guests(everyone, "it has other rows")
        assert not killed
        return
    with pytest.raises(RankLost, match="it has other rows"):
        this.leave_guests(everyone, "it has other rows")
    assert killed[1:] == apart and "must leave: it has other rows" in killed[0]
