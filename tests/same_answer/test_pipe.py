"""Pipe-SGD: gradients that come K - 1 steps late, and nothing else is other than on one rank."""

from collections import deque

import numpy as np
import pytest
from compare import alike, same

from matex_tf.errors import SettingError
from matex_tf.settings import Settings
from tests.support.cases import pipe

RULES = ["momentum", "clipped", "schedule", "average", "accumulation", "scaled"]


def simulated(x, y, width, warmup, ranks=1, rows=8, rate=0.125):
    """Delayed gradient descent in NumPy: the weights after each of two epochs, at the end of which all is applied.

    Args: ranks: with more than one each predicts the weights, by the gradients of its rows that have not been applied.
    """
    weights, under_way, steps, found = np.zeros((3, 1)), deque(), 0, []
    part = rows // ranks
    for _ in range(2):
        for low in range(0, len(x), rows):
            own = []
            for rank in range(ranks):
                here = slice(low + rank * part, low + (rank + 1) * part)
                there = weights - rate * sum(past[rank] for past in under_way) if ranks > 1 else weights
                own.append(2 * x[here].T @ (x[here] @ there - y[here]) / part)
            under_way.append(own)
            steps += 1
            if len(under_way) >= (width if steps > warmup else 1):
                weights = weights - rate * sum(under_way.popleft()) / ranks
        while under_way:
            weights = weights - rate * sum(under_way.popleft()) / ranks
        found.append(weights)
    return found


@pytest.mark.parametrize(
    ("width", "warmup", "predict"), [(1, 0, True), (2, 0, False), (2, 0, True), (3, 0, True), (2, 3, True)]
)
def test_equals_numpy(ranks, width, warmup, predict):
    """To the last bit, on numbers that are never rounded."""
    results = ranks(pipe.exact, (2,), width=width, warmup=warmup, predict=predict)[2]
    for x, y, found in results:
        assert found[0].dtype == np.float64
        of = 2 if predict else 1
        np.testing.assert_array_equal(found, simulated(x, y, width, warmup, of))
        assert not np.array_equal(found[1], simulated(x, y, width + 1, warmup, of)[1])
        assert width == 1 or not np.array_equal(found[1], simulated(x, y, width, warmup, 3 - of)[1])


@pytest.mark.variants(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("predict", [True, False])
def test_optimizers(ranks, rule, predict):
    """Clipping, schedules, averages of weights, accumulation and loss scaling: those of the gradients that came."""
    results = ranks(pipe.delayed, (1, 3), rule=rule, predict=predict, ranks=3)
    same(results, rtol=1e-4, atol=1e-5)
    alike(results)


@pytest.mark.variants(1)
@pytest.mark.parametrize("predict", [True, False])
@pytest.mark.parametrize(
    "how", [{"width": 4}, {"warmup": 3}, {"sparse": True}, {"eager": True}], ids=lambda how: next(iter(how))
)
def test_trainings(ranks, how, predict):
    """Other widths; a warm-up; embeddings; without a graph."""
    results = ranks(pipe.delayed, (1, 3), predict=predict, ranks=3, **how)
    same(results, rtol=1e-4, atol=1e-5)
    alike(results)


def test_step_that_fails(ranks):
    """The weights that were predicted for it are taken back, and what is under way is applied."""
    for (expected, steps), (found, made) in ranks(pipe.failed, (2,))[2]:
        assert steps == made == 4
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.variants(0)
def test_width_one_is_sync(ranks):
    """To the last bit, and so is a warm-up that does not end."""
    for answers in ranks(pipe.width_one, (3,))[3]:
        alike({3: answers})


def test_settled_where_weights_are_looked_at(ranks):
    """Two updates are under way after a step; none in validation, `evaluate`, a saved file, and behind `fit`."""
    results = ranks(pipe.settled, (3,))
    alike(results)
    found = results[3][0][0]
    assert [found[f"batch {batch}"] for batch in range(10)] == [0, 0, 1, 2, 4, 4, 5, 6, 7, 9]
    assert (found["evaluate"], found["save"], found["fit"], found["train_on_batch"]) == (4, 9, 10, 11)
    assert found["validation"] == [10]


@pytest.fixture(scope="module")
def uncoded(any_ranks):
    """A training with enough weights for a codec, without one; it is that of one rank."""
    results = any_ranks(pipe.delayed, (1, 3), units=3000)
    same(results, rtol=1e-4, atol=1e-5)
    return results[3][0]


@pytest.mark.variants(0)
@pytest.mark.parametrize("codec", ["bf16", "int8"])
@pytest.mark.parametrize("feedback", [False, True])
def test_with_codecs(ranks, uncoded, codec, feedback):
    """Between hosts gradients are rounded, the same on every rank, and little is lost by it."""
    coded = ranks(pipe.delayed, (3,), units=3000, hosts="abc", codec=codec, error_feedback=feedback)
    alike(coded)
    off = [np.abs(a - b).max() for a, b in zip(coded[3][0]["weights"], uncoded["weights"], strict=True)]
    assert 0 < max(off) < 0.05, off


def test_rank_that_leaves(ranks):
    """Every rank is told, none waits for ever."""
    for message in ranks.refused(pipe.leaves, (3,), error="RanksDisagree")[3]:
        assert "different ways" in message and "rank 1" in message, message


def test_own_loop(ranks):
    """It trains as with sync, and a line says so."""
    same(ranks(pipe.own_loop, (1, 3)))
    assert ["works in fit" in outcome.output for outcome in ranks.last[3]] == [True, False, False]


def test_not_with_shrink():
    """Steps that have begun cannot be taken back."""
    with pytest.raises(SettingError, match="--faults shrink"):
        Settings.read({"strategy": "pipe", "faults": "shrink"}, {})
