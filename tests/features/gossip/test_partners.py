"""Who gossips with whom: property tests, without MPI."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.features.gossip.topology import KINDS, Partners
from matex_tf.settings import options

SMALL = [*range(1, 41), 64, 97, 100, 127, 128]
LARGE = [255, 256, 257, 1000, 1021, 1024, 4096]
SIZES = st.integers(1, 4096)
ANY = st.one_of(
    st.tuples(SIZES, st.just("dissemination")),
    st.tuples(st.integers(0, 12).map(lambda power: 1 << power), st.just("hypercube")),
)


def kinds(size):
    """The kinds that this many ranks can have."""
    return [kind for kind in KINDS if kind == "dissemination" or size & (size - 1) == 0]


CASES = [(size, kind) for size in SMALL + LARGE for kind in kinds(size)]


@settings(deadline=None)
@given(ranks=ANY, seed=st.integers(0, 2**31 - 1), step=st.integers(0, 10**9), data=st.data())
def test_each_sends_one_and_receives_one(ranks, seed, step, data):
    """In any step, also far on; never to itself; and those who send agree with those who receive."""
    size, kind = ranks
    partners = Partners(size, seed, kind)
    targets = partners.targets(step)
    np.testing.assert_array_equal(np.sort(targets), np.arange(size))
    assert size == 1 or (targets != np.arange(size)).all()
    rank = data.draw(st.integers(0, size - 1))
    to, source = partners.of(step, rank)
    assert to == targets[rank] and targets[source] == rank
    assert kind == "dissemination" or to == source
    assert Partners(size, seed, kind).of(step, rank) == (to, source), "it depends on what was asked before"


@settings(deadline=None, max_examples=40)
@given(ranks=ANY, seed=st.integers(0, 99), turn=st.integers(0, 10**6))
def test_a_round_reaches_everyone(ranks, seed, turn):
    """After ceil(log2 p) steps from the start of any round every rank's update has reached every other."""
    size, kind = ranks
    partners = Partners(size, seed, kind)
    assert partners.round_steps == int(np.ceil(np.log2(size)))
    followed = np.random.default_rng(seed).permutation(size)[:600]  # of many ranks some, so that the table is small
    reached = followed[:, None] == np.arange(size)  # whose update, and where it has come to
    for step in range(turn * partners.round_steps, (turn + 1) * partners.round_steps):
        there = reached.copy()
        there[:, partners.targets(step)] |= reached
        reached = there
    assert reached.all()


def met_after(partners, limit):
    """Steps until every pair has met, and how many of the first p/2 steps' meetings were new."""
    size = partners.size
    met = np.zeros((size, size), bool)
    pairs, wanted, ranks = 0, size * (size - 1) // 2, np.arange(size)
    new_early = 0
    for step in range(limit):
        targets = partners.targets(step)
        low, high = np.minimum(ranks, targets), np.maximum(ranks, targets)
        before = pairs
        new = ~met[low, high] & ((ranks < targets) | (targets[targets] != ranks))  # a pair that swaps is one
        met[low, high] = True
        pairs += np.count_nonzero(new)
        if step < size // 4:
            new_early += pairs - before
        if pairs == wanted:
            return step + 1, new_early
    return None, new_early


@functools.cache
def measured(size, kind):
    partners = Partners(size, 7, kind)
    return partners, *met_after(partners, partners.bound)


@pytest.mark.parametrize(("size", "kind"), [case for case in CASES if 2 <= case[0] <= 257])
def test_every_pair_meets(size, kind):
    """Within the bound, which is below p ceil(log2 p)."""
    partners, steps, _ = measured(size, kind)
    assert partners.bound <= size * partners.round_steps
    assert steps is not None and steps <= partners.bound


@pytest.mark.parametrize(("size", "kind"), [case for case in CASES if case[0] in (1000, 1021, 1024, 4096)])
def test_every_pair_meets_of_many(size, kind):
    """The same; 4,096 ranks have 8 million pairs."""
    partners, steps, _ = measured(size, kind)
    assert steps is not None and steps <= partners.bound < size * partners.round_steps


@pytest.mark.parametrize("size", [4, 8, 64, 256, 1024, 4096])
def test_hypercube_meets_each_once(size):
    """Each of the first p - 1 steps is of pairs that have not met."""
    assert measured(size, "hypercube")[1] == size - 1


@pytest.mark.parametrize("size", [31, 97, 127, 257, 1021])
def test_partners_stay_new(size):
    """Where p is a prime all pairs have met in little more than the least number of steps, (p - 1)/2."""
    partners, steps, _ = measured(size, "dissemination")
    assert steps <= 1.25 * (size - 1) / 2 + partners.round_steps


@pytest.mark.parametrize("size", [24, 64, 100, 128, 256, 1000, 4096])
def test_partners_stay_new_of_any_size(size):
    """Of the first p/4 steps' meetings most are new; a fixed order would have ceil(log2 p) partners for ever."""
    new = measured(size, "dissemination")[2]
    assert new >= 0.75 * size * (size // 4)


def test_few_ranks():
    """One has nobody; two swap; three go round."""
    one = Partners(1)
    assert (one.round_steps, one.bound, one.of(5, 0)) == (0, 0, (0, 0))
    for kind in KINDS:
        assert [Partners(2, 1, kind).of(step, 0) for step in range(3)] == [(1, 1)] * 3
    for step in range(4):
        to, source = Partners(3, 1).of(step, 0)
        assert {to, source} == {1, 2}


def test_seed():
    """It decides, and the order changes from round to round."""
    assert (Partners(64, 1).targets(0) != Partners(64, 2).targets(0)).any()
    same = Partners(64, 1)
    assert (same.targets(0) != same.targets(same.round_steps)).any()


@pytest.mark.parametrize(("size", "kind"), [(6, "hypercube"), (4, "star")])
def test_refused(size, kind):
    """What a user chooses is one of the kinds, and is refused before, see `Gossip.check`."""
    with pytest.raises(ValueError, match=kind):
        Partners(size, 0, kind)
    topology = {one.name: one.choices for one in options()}["gossip_topology"]
    assert topology == KINDS
