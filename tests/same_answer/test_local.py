"""Local SGD with an outer step: what each rank holds after each step is what numpy makes of the paper's formulas."""

import numpy as np
import pytest
from compare import alike, same

from matex_tf.errors import SettingError
from matex_tf.settings import Settings
from tests.support.cases import local

OUTER = "take an outer step"


def simulate(size, every, rate, momentum, rows=56, batch=8, epochs=2):
    """The weights of each rank after each step, and of all at the end."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 1))
    anchor, kept = np.full((3, 1), 0.5), np.zeros((3, 1))
    weights, seen, steps = [anchor.copy() for _ in range(size)], [[] for _ in range(size)], 0
    for _ in range(epochs):
        for low in range(0, rows, batch):
            for rank, held in enumerate(weights):
                own = slice(low + rank * batch // size, low + (rank + 1) * batch // size)
                error = x[own] @ held - y[own]
                held -= 0.05 * 2 * x[own].T @ error / len(error)
            steps += 1
            full, last = steps == every, low + batch == rows
            alone = [held[:, 0].copy() for held in weights]
            if full or last:
                moved, steps = sum(anchor - held for held in weights) / size, 0
                kept = momentum * kept + moved
                anchor = anchor - rate * (moved + momentum * kept)
                for held in weights:
                    held[:] = anchor
            for rank, held in enumerate(weights):  # a round that ends early does so at the end of the epoch
                seen[rank].append(held[:, 0].copy() if full else alone[rank])
    return np.array(seen), anchor[:, 0]


@pytest.mark.variants(2)
@pytest.mark.parametrize(("every", "rate", "momentum"), [(3, 0.7, 0.9), (2, 1.0, 0.0), (1, 0.7, 0.9), (100, 1.0, 0.5)])
def test_equals_numpy(ranks, every, rate, momentum):
    """Seven steps an epoch, of which the last ones are a shorter round."""
    given = {"local_every": every, "outer_learning_rate": rate, "outer_momentum": momentum}
    for size, values in ranks(local.linear, (2, 3), meets=OUTER, **given).items():
        seen, end = simulate(size, every, rate, momentum)
        for value, steps in zip(values, seen, strict=True):
            np.testing.assert_allclose(value["end"], end, rtol=2e-4, atol=1e-6)
            np.testing.assert_allclose(value["batches"], steps, rtol=2e-4, atol=1e-6)
        rounds = 2 * -(-7 // every)
        for outcome in ranks.last[size]:  # once more where ranks compare for the first time what they are about to do
            assert outcome.calls[OUTER] in (rounds, rounds + 1), outcome.calls
            assert not any("gradients" in what for what in outcome.calls), (size, outcome.output)


def test_plain_is_sync(ranks):
    """A meeting in each step without an outer rate and momentum gives the answer of one rank."""
    same(ranks(local.plain))


@pytest.mark.variants(0)
def test_goes_on(ranks):
    """Fits, weights that are set, single batches: ranks end alike, to the bit, and learn."""
    found = ranks(local.goes_on, (3,), meets=OUTER)
    alike(found, rtol=0, atol=0)
    for losses in (found[3][0]["losses"], found[3][0]["again"]):
        assert losses[-1] < 0.8 * losses[0], losses


def test_refused():
    """Settings that mean nothing."""
    for given, word in (
        ({"outer_momentum": "1"}, "below 1"),
        ({"outer_learning_rate": "0"}, "above 0"),
        ({"faults": "restart"}, "--faults shrink"),
    ):
        with pytest.raises(SettingError, match=word):
            Settings.read({"strategy": "local", **given}, {})
