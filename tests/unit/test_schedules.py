"""Every way to schedule exchanges gives the same answer, and none can deadlock."""

import pytest
from compare import same

from tests.support.cases import models, schedules

SCHEDULES = ["chained", "funneled", "concurrent"]


@pytest.mark.variants(1)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("hosts", ["", "aabb"], ids=["one host", "2 + 2"])
def test_any_order(bare_ranks, threads, hosts):
    """Ranks that post in orders of their own, 500 times: each sum is right, and nobody waits for ever."""
    steps = 100 if hosts else 500
    result = bare_ranks(schedules.any_order, (4,), meets="exchange", threads=threads, hosts=hosts, steps=steps)
    assert result == {4: [0] * 4}


@pytest.mark.parametrize("how", SCHEDULES[1:])
def test_ranks_that_differ(bare_ranks, how):
    """They find out before anything is added, and can go on."""
    for said in bare_ranks(schedules.differ_apart, (3,), meets="exchange", how=how)[3]:
        assert said[0] is True and said[2] is True
        assert "rank 1: other" in said[1] and "ranks 0, 2: b" in said[1]


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("case", "how"),
    [(models.own_train_step, "chained"), (models.own_train_step, "concurrent"), (models.gan, "funneled")],
)
def test_same_answer(ranks, case, how):
    """Models whose gradients travel in many buckets, and in two exchanges a step."""
    results = ranks(schedules.same, inner=case, how=how)
    assert all(buckets > 1 for _, buckets in results[max(results)])
    same({size: [answer for answer, _ in values] for size, values in results.items()})


@pytest.mark.parametrize("how", SCHEDULES)
def test_gradients_that_are_kept(ranks, how):
    """A tensor that a script keeps, or that a variable takes over, is not overwritten by later exchanges."""
    for value in ranks(schedules.kept_gradients, (3,), how=how)[3]:
        assert value == (True, True, 3 * 3 + 1)


@pytest.mark.parametrize("how", SCHEDULES)
def test_sums_during_backward(ranks, how):
    """What the last layers' gradients come to is there before the first layers' are made."""
    assert ranks(schedules.overlapping, (3,), how=how)[3] == [0, 0, 0]


@pytest.mark.parametrize("how", SCHEDULES)
@pytest.mark.parametrize("sizes", [(5, 3, 7, 2), (70_000, 200_000, 300_000, 9)], ids=["small", "large"])
def test_products_are_made_by_the_exchange(ranks, how, sizes):
    """Gradients times the weight of a rank's rows: the same bits as where the graph multiplies, and no pass over memory
    for it. A rank without rows has NaN in a gradient."""
    for bits, finite, computed in ranks(
        schedules.weighted_products, (3,), how=how, elements=sizes, weights=[0.3, 0.0, 0.7]
    )[3]:
        assert bits and finite and computed == 1
