"""Large variables of which each rank makes its part alone."""

import pytest
from compare import same

from tests.support.cases import pending


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "how", ["", "saved", "read", "assigned", "called", "predicted", "one reads", "optimizer", "by hand"]
)
def test_the_answer_of_one_rank(ranks, tmp_path, how):
    """Whatever the script does before; nothing is whole that it did not read."""
    results = ranks(pending.trained, (1, 3), how=how, directory=str(tmp_path))
    same({size: [value for value, *_ in values] for size, values in results.items()}, rtol=1e-5, atol=1e-6)
    wanted = {"": 1, "optimizer": 3, "predicted": 0}
    for rank, (_, waiting, split, made) in enumerate(results[3]):
        others = how == "one reads" and rank > 0 or how == "saved" and rank > 0
        assert len(waiting) == (1 if others else wanted.get(how, 0)) and split == [True] * 3, (waiting, split)
        assert how or not made, made
    assert not any(waiting for _, waiting, *_ in results[1])


@pytest.mark.variants(0)
@pytest.mark.parametrize("optimizer, shard", [("SGD", "weights"), ("Adagrad", "weights"), ("Adam", "gradients")])
def test_optimizers(ranks, optimizer, shard):
    """Slots that begin with another number than 0; slots alone."""
    results = ranks(pending.trained, (1, 2), optimizer=optimizer, shard=shard)
    same({size: [value for value, *_ in values] for size, values in results.items()}, rtol=1e-5, atol=1e-6)
