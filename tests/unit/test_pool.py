"""The pool of ranks itself: what a case returns, and what becomes of one that raises, hangs or dies."""

import time

import pytest
from pool import plan

from tests.support.cases import pool_itself


def test_a_case_that_is_not_there():
    """The driver, which has not imported the module, refuses its name at once."""
    assert repr(pool_itself.identify) == "pool_itself:identify"
    with pytest.raises(AttributeError, match="no case identity in .*pool_itself.py"):
        pool_itself.identity  # noqa: B018


def test_rounds_use_the_ranks_well():
    """Sizes 1 and 3 share a round; no round has more than four bare_ranks."""
    assert plan([1, 3]) == [[[0, 1, 2], [3]]]
    assert [[len(group) for group in groups] for groups in plan([1, 2, 3, 4])] == [[4], [3, 1], [2]]
    assert [[len(group) for group in groups] for groups in plan([1, 2])] == [[2, 1]]


def test_every_size_is_that_size(bare_ranks):
    """A world of n has n different processes, which can talk to one another."""
    result = bare_ranks(pool_itself.identify, (1, 2, 3, 4), meets="identify")
    for size, values in result.items():
        assert [(rank, of) for rank, of, _ in values] == [(rank, size) for rank in range(size)]
        assert all(everyone == values[0][2] for _, _, everyone in values)
        assert len({pid for _, pid in values[0][2]}) == size


def test_each_group_has_its_directory(bare_ranks):
    """The ranks of a group share an empty directory, and are in it."""
    result = bare_ranks(pool_itself.directory, (1, 3), meets="all files written")
    assert result == {1: [(True, ["0.txt"])], 3: [(True, ["0.txt", "1.txt", "2.txt"])] * 3}


def test_one_raises_while_others_wait(bare_ranks):
    """The others are stopped within seconds, and their stacks are shown."""
    begin = time.monotonic()
    bare_ranks(pool_itself.identify, (3,), meets="identify")
    begin = time.monotonic()
    outcomes = bare_ranks.outcomes(pool_itself.one_raises, (3,))[3]
    assert time.monotonic() - begin < 20
    assert "ValueError: only here" in outcomes[1].error
    assert "a word before the end" in outcomes[1].output
    for rank in (0, 2):
        assert outcomes[rank].kinds == ("Stuck",)
        assert "one_raises" in outcomes[rank].traceback


def test_after_errors_the_next_case_runs(bare_ranks):
    """An error on all ranks costs no restart."""
    bare_ranks(pool_itself.identify, (4,), meets="identify")
    starts = bare_ranks._pool.starts
    bare_ranks.refused(pool_itself.all_raise, (2, 3), error="RanksDisagree")
    outcomes = bare_ranks.outcomes(pool_itself.unpicklable, (1,))[1]
    assert "pickle" in outcomes[0].error
    bare_ranks(pool_itself.identify, (1, 2, 3, 4), meets="identify")
    assert bare_ranks._pool.starts == starts


def test_a_rank_that_dies_is_named(bare_ranks):
    """The process that died is told from those that waited for it."""
    outcomes = bare_ranks.outcomes(pool_itself.one_dies, (3,))[3]
    assert "died" in outcomes[1].error
    assert all(outcomes[rank].error for rank in range(3))


def test_a_case_that_hangs_is_stopped(bare_ranks):
    """At the limit the stack of the rank that hangs is shown; the rank that had ended is fine."""
    outcomes = bare_ranks.outcomes(pool_itself.one_hangs, (2,), seconds=3)[2]
    assert outcomes[0].kinds == ("Stuck",)
    assert "one_hangs" in outcomes[0].traceback
    assert outcomes[1].error is None
