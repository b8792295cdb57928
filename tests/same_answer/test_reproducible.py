"""`--reproducible`: the same bits on any number of ranks."""

import numpy as np
import pytest
from compare import same

from matex_tf.exchange.ordered_sum import branches
from tests.support.cases import reproducible

#: Trainings of other tests, with their arguments.
OTHERS = {
    "models.gan": {},
    "batch_norms.accumulated": {},
    "batch_norms.fitted": {"form": "eager"},
    "all_rows.in_a_step": {"loss": "clip"},
    "optimizers.overflow": {},
    "models.own_metric": {},
    "draws.fit": {},
    "data.sparse": {},
    "data.dataset_unknown": {},
    "options.train_on_batches": {},
}


def bits(results):
    """Every rank of every size has the same bits."""
    return same(results, rtol=0, atol=0)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("model", "optimizer"), [("convnet", "sgd"), ("lstm", "adam"), ("convnet", "adam"), ("lstm", "sgd")]
)
def test_bits(ranks, model, optimizer):
    """Weights, optimizer slots, states of generators, `History`, and what `evaluate` and `predict` give."""
    sizes = (1, 2, 4) if model == "convnet" else (1, 3)  # steps of an LSTM are long
    found = bits(ranks(reproducible.fitted, sizes, model=model, optimizer=optimizer))
    plain = ranks(reproducible.fitted, (1,), model=model, optimizer=optimizer, virtual=0)
    same({1: plain[1], 4: [found]}, rtol=2e-4, atol=2e-5)


@pytest.mark.variants(0)
@pytest.mark.parametrize("name", OTHERS)
def test_others(ranks, name):
    """Two optimizers in a step, accumulation, eager steps, losses and metrics over all rows, scaled losses, tf.data."""
    bits(ranks(reproducible.of_case, (1, 3), name=name, meets="", **OTHERS[name]))


@pytest.mark.variants(0)
def test_batch_norm_over_the_parts(ranks):
    """With `--batch-norm rank` each part is normalized by itself; moving statistics are the parts' mean."""
    how = {"form": "dense", "options": {"batch_norm": "rank"}}
    bits(ranks(reproducible.of_case, (1, 3), name="batch_norms.fitted", batch_norm="rank", **how))


@pytest.mark.parametrize("virtual", [1, 4, 5, 6, 8, 13])
def test_branches(virtual):
    """The branches of the ranks are those of one tree, whoever has which leaves; a sum of two is taken once."""
    for size in range(1, virtual + 1):
        ends = [rank * virtual // size for rank in range(size + 1)]
        every = [one for rank in range(size) for one in branches(ends[rank], ends[rank + 1], virtual)]
        assert [first for first, _ in every] == [0, *(last for _, last in every[:-1])] and every[-1][1] == virtual
        for first, last in every:
            assert first % (1 << (last - first - 1).bit_length()) == 0  # aligned


def test_sums(ranks):
    """Sums of numbers of all sizes, and of zeros with a sign, are the same bits on 1, 2, 3 and 4 ranks."""
    found = ranks(reproducible.ordered_sums, (1, 2, 3, 4), meets="")
    whole = {size: [[one.tobytes() for one in sums] for sums in values] for size, values in found.items()}
    assert len({tuple(sums) for values in whole.values() for sums in values}) == 1
    assert not np.signbit(found[4][0][1]).any()
