"""How far a network of `matex-tf label` is to be trusted when it says that it is sure."""

import math

import numpy as np
import pytest

from matex_tf.label.network import calibration


def answers(count, too_sure, seed=0):
    """Probabilities whose logits are so many times too large, and labels that are drawn from the right ones."""
    chance = np.random.default_rng(seed)
    logits = chance.normal(size=(count, 4)) * 2
    right = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (right.cumsum(axis=1) > chance.random((count, 1))).argmax(axis=1)
    said = np.exp(too_sure * logits)
    return (said / said.sum(axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("too_sure", [1, 2, 5])
def test_temperature(too_sure):
    """What makes a network that is too sure right as often as it says."""
    said, labels = answers(5000, too_sure)
    assert calibration.temperature(said, labels) == pytest.approx(too_sure, rel=0.1)


def test_never_surer_than_it_says():
    """A network that is more often right than it says is taken at its word; certainty itself is no error."""
    said, labels = answers(500, 0.3)
    assert calibration.temperature(said, labels) == 1
    assert calibration.temperature(np.eye(4, dtype=np.float32), np.arange(4)) == 1
    assert calibration.temperature(np.eye(4, dtype=np.float32), np.arange(4)[::-1]) == pytest.approx(20)


def test_few_labels():
    """Nothing is sure before there are 20; earlier ones help out until there are 50, and then no longer."""
    one = calibration.Calibration()
    wrong, labels = answers(19, 5)
    one.judge(wrong, labels)
    assert one.temperature == math.inf
    one.judge(wrong[:1], labels[:1])
    assert 2 < one.temperature < 20
    for seed in range(1, 6):
        one.judge(*answers(10, 1, seed))
    recent = [answers(10, 1, seed) for seed in range(5, 0, -1)]
    said, labels = (np.concatenate(parts) for parts in zip(*recent, strict=True))
    assert one.temperature == calibration.temperature(said, labels)
    said, labels = answers(300, 3, 9)
    one.judge(said, labels)
    assert one.temperature == calibration.temperature(said, labels)
