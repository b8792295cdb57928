"""Optimizers: the averaged gradient goes through each as it would on one rank."""

import pytest
from compare import same

from tests.support.cases import optimizers

SGD = {"name": "SGD", "learning_rate": 0.1, "momentum": 0.9}
EXACT = {
    "plain": {"name": "SGD", "learning_rate": 0.3, "lazily": True},
    "accumulation, clipping and ema": {
        **SGD,
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 0.1,
        "use_ema": True,
        "ema_overwrite_frequency": 2,
        "lazily": True,
    },
    "clipnorm": {**SGD, "clipnorm": 0.05},
    "nesterov": {**SGD, "nesterov": True},
    "global_clipnorm": {**SGD, "global_clipnorm": 0.05},
    "clipvalue": {**SGD, "clipvalue": 0.01},
    "weight_decay": {**SGD, "weight_decay": 0.05},
    "ema": {**SGD, "use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    "ema at the end": {**SGD, "use_ema": True, "ema_momentum": 0.9},
    "accumulation": {**SGD, "gradient_accumulation_steps": 3},
    "schedule": {**SGD, "schedule": True},
    "loss_scale_factor": {**SGD, "loss_scale_factor": 8.0},
}
ADAPTIVE = {
    "Adam": {"name": "Adam", "learning_rate": 0.01, "lazily": True},
    "AdamW": {"name": "AdamW", "learning_rate": 0.01, "weight_decay": 0.1},
    "AMSGrad": {"name": "Adam", "learning_rate": 0.01, "amsgrad": True, "clipnorm": 0.05},
    "RMSprop": {"name": "RMSprop", "learning_rate": 0.01, "momentum": 0.5, "centered": True},
    "Adagrad": {"name": "Adagrad", "learning_rate": 0.1},
    "Lion": {"name": "Lion", "learning_rate": 0.003},
    "Adam accumulating": {"name": "Adam", "learning_rate": 0.01, "gradient_accumulation_steps": 3},
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", EXACT)
def test_sgd(ranks, name):
    """Clipping, decay, averages, accumulation and schedules on top of SGD, to 1e-5."""
    same(ranks(optimizers.fit, **EXACT[name]))


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive(ranks, name):
    """Optimizers that divide by what gradients were, to 1e-3."""
    same(ranks(optimizers.fit, **ADAPTIVE[name]), rtol=1e-3)


def test_accumulation_across_fits(ranks):
    """What is accumulated when a `fit` ends between two updates is not lost in the next one."""
    same(ranks(optimizers.broken_accumulation))


def test_each_option_matters(ranks):
    """The options of the cases above change the answer at all, so that ignoring one would be seen."""
    answers = {}
    for name in ("clipnorm", "global_clipnorm", "clipvalue", "weight_decay", "ema", "accumulation", "schedule"):
        answers[name] = ranks(optimizers.fit, (1,), **EXACT[name])[1][0]["history"]["loss"][-1]
    assert len({round(loss, 4) for loss in answers.values()}) == len(answers), answers


@pytest.mark.smoke
def test_overflow_on_one_rank(ranks):
    """A step whose gradient overflows on one rank alone is skipped by all, and all scale alike after it."""
    results = ranks(optimizers.overflow)
    reference = results[1][0]
    scales = reference["scales"]
    assert any(after[0] < before[0] for before, after in zip(scales, scales[1:], strict=False)), scales
    for values in results.values():
        for value in values:
            assert value["scales"] == scales
    same(results, rtol=1e-2, atol=1e-3)


@pytest.mark.variants(1)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(ranks, policy):
    """A training in half precision is that of one rank to the digits that half precision has."""
    reference = same(ranks(optimizers.half, policy=policy), rtol=3e-2, atol=3e-3)
    assert reference["wrapped"] == ("LossScaleOptimizer" if policy == "mixed_float16" else "SGD")


def test_apply_gradients_with_none(ranks):
    """A `train_step` that calls `apply_gradients`, where one variable has no gradient."""
    same(ranks(optimizers.several_updates), rtol=1e-3)


@pytest.mark.smoke
def test_rows_by_hand(ranks):
    """A sparse gradient whose rows are given as a tuple."""
    assert same(ranks(optimizers.rows_by_hand))[:, 0].tolist() == [0.5, 1, 1, 0.5, 1]
