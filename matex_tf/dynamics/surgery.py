"""Neurons are taken out of a Keras model, and put into it, while it trains.

A neuron is a channel of whatever layer: a unit, a filter, a head, a column of an embedding. Its variables stay the same
objects, with another shape: layers, optimizers, callbacks and the script may go on holding them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from matex_tf.dynamics.channels import resized


def reshape_variables(values: Mapping[Any, np.ndarray]) -> None:
    """Give variables of Keras values of other shapes, as the same objects.

    Args:
        values: by variable; dtypes as the variable's.

    Raises:
        ValueError: a value of another number of axes.
    """
    for variable, value in values.items():
        resized.put(variable, value)
