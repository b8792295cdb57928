"""Gradients of all ranks beside those of one: what is rounding."""

import numpy as np
import pytest

from matex_tf.patches.checking import one_rank


@pytest.mark.parametrize(
    "tolerance, of_first, of_second, differ",
    [
        (one_rank.TOLERANCE, 0.009, 0.009, False),
        (one_rank.TOLERANCE, 0.02, 0.0, True),
        (one_rank.OF_16_BITS, 0.09, 0.09, False),
        (one_rank.OF_16_BITS, 0.2, 0.2, True),
        (one_rank.OF_16_BITS, 0.4, 0.0, False),  # one small gradient of a deep network
        (one_rank.OF_16_BITS, 0.6, 0.0, True),  # a part of the loss that is a sum, which one layer sees
    ],
)
def test_which_gradients_differ(monkeypatch, tolerance, of_first, of_second, differ):
    """The first gradient is a tenth of the second one."""
    monkeypatch.setattr(one_rank, "_tolerance", lambda: tolerance)
    random = np.random.default_rng(0)
    first, second = (size * random.choice([-1.0, 1.0], 100).astype(np.float32) for size in (0.1, 1.0))
    one = [("first", first), ("second", second)]
    other = [("first", first * (1 + of_first)), ("second", second * (1 - of_second))]
    assert one_rank._differ(one, other) == differ
