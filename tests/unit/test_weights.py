"""The weights of a model on all ranks: what ranks hold of them between steps."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from matex_tf.core import world
from matex_tf.patches.keras import weights


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_what_is_accumulated_keeps_its_digits(monkeypatch, dtype):
    """Ranks add up gradients that have been accumulated in float64, whatever their dtype."""
    accumulator = keras.Variable(np.full((2, 3), 1 / 3), dtype=dtype)
    before = keras.ops.convert_to_numpy(accumulator)

    def double(total):
        total *= 2

    ranks = SimpleNamespace(barrier=lambda what, labels: None, allreduce_in_place=double)
    monkeypatch.setattr(world, "current", lambda: ranks)
    monkeypatch.setattr(weights, "own_accumulators", lambda model: [accumulator])
    weights.join_accumulators(keras.Sequential())
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(accumulator), before * 2)
