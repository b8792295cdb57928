"""Gradients of all ranks beside those of one: what is rounding."""

import numpy as np
import pytest

from matex_tf.patches.checking import one_rank
from matex_tf.patches.checking import precision as precisions

FIRST, SECOND = (size * np.random.default_rng(0).choice([-1.0, 1.0], 100).astype(np.float32) for size in (0.1, 1.0))


def update(of_first, of_second):
    """An update of two gradients, the first a tenth of the second, which differ by these parts."""
    return [("first", FIRST * np.float32(1 + of_first)), ("second", SECOND * np.float32(1 - of_second))]


def check(*nudged):
    """A check of an update that other last digits change by as much as these are."""
    made = one_rank.Check("a model", 0.5)
    made._alone, made._again = [update(0, 0)], lambda: [[update(*parts)] for parts in nudged]
    return made


@pytest.mark.parametrize(
    "precision, of_first, of_second, differ",
    [
        (precisions.OF_32_BITS, 0.009, 0.009, False),
        (precisions.OF_32_BITS, 0.02, 0.0, True),
        (precisions.OF_16_BITS["float16"], 0.09, 0.09, False),
        (precisions.OF_16_BITS["bfloat16"], 0.2, 0.0, True),
    ],
)
def test_which_gradients_differ(monkeypatch, precision, of_first, of_second, differ):
    """The first gradient is a tenth of the second one."""
    monkeypatch.setattr(precisions, "current", lambda: precision)
    of_one = check()
    assert of_one._first_apart([update(of_first, of_second)], of_one._least()) == (0 if differ else -1)


def test_what_rounding_may_change(monkeypatch):
    """Twice what other last digits change, of each gradient by itself; at least the tolerance."""
    monkeypatch.setattr(precisions, "current", lambda: precisions.OF_32_BITS)
    (most,) = check((0.0, 0.001), (0.04, 0.002))._rounding()
    assert most == pytest.approx([0.08, precisions.OF_32_BITS.tolerance], rel=1e-3)
    (most,) = check()._rounding()
    assert most == pytest.approx([precisions.OF_32_BITS.tolerance] * 2)
