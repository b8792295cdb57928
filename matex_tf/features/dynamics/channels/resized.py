"""A variable of Keras gets another shape, and stays the same object.

Relies on (Keras 3.3 to 3.15, private): `Variable._shape` and `_initialize(value)` on TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def put(variable: Any, value: np.ndarray) -> None:
    """Give a Keras variable a value of another shape.

    What was compiled before holds the old value, and has to be compiled anew.

    Args:
        variable: of Keras 3 on TensorFlow.
        value: with as many axes; it is cast to the variable's dtype.

    Raises:
        ValueError: another number of axes.
    """
    value = np.asarray(value)
    if value.ndim != len(variable.shape):
        raise ValueError(f"{variable.path} has {len(variable.shape)} axes, and its new value has {value.ndim}")
    if tuple(variable.shape) == value.shape:
        variable.assign(value)
        return
    old = np.asarray(variable.value).dtype
    variable._shape = tuple(int(size) for size in value.shape)  # first: from Keras 3.16 on values must have it
    variable._initialize(value.astype(old))
