"""What rounding does to gradients, by the numbers that layers compute with."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Precision(NamedTuple):
    """Of the numbers that layers compute with: what rounding does to gradients.

    Attributes:
        tolerance: a relative difference that sums in another order may make.
        small: gradients below this part of the largest one are compared as if they were that large.
        nudge: a part of a weight, some units in the last place of what layers compute with.
    """

    tolerance: float
    small: float
    nudge: float


OF_32_BITS = Precision(1e-2, 1e-3, 1e-6)
OF_16_BITS = {"float16": Precision(1e-1, 3e-2, 2e-3), "bfloat16": Precision(1e-1, 1e-1, 1.6e-2)}


def current() -> Precision:
    """That of what layers compute with."""
    for name in {"keras", "tf_keras"}.intersection(sys.modules):
        of_keras = sys.modules[name].mixed_precision
        policy = of_keras.global_policy() if hasattr(of_keras, "global_policy") else of_keras.dtype_policy()
        if policy.compute_dtype in OF_16_BITS:
            return OF_16_BITS[policy.compute_dtype]
    return OF_32_BITS
