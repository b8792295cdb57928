"""Small helpers that scripts and tests import from `horovod.tensorflow.util` and `horovod.common.util`."""

from __future__ import annotations

import re
import warnings
from typing import Any

from matex_tf.features.horovod.names.core.basics import Average, Sum


def _executing_eagerly() -> bool:
    """Whether TensorFlow executes eagerly."""
    import tensorflow as tf

    return tf.executing_eagerly()


def gpu_available(ext_base_name: str = "", verbose: bool = False) -> bool:
    """False: tensors go through the memory of the host.

    Args:
        ext_base_name: taken and ignored; with Horovod the name of one of its libraries.
        verbose: taken and ignored; with Horovod whether to print what was looked for.
    """
    return False


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether it is a power of 2, which Adasum needs."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


num_rank_is_power_2 = check_num_rank_power_of_2


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The operation that `op`, or the older `average`, stands for.

    Raises:
        ValueError: both are given.
    """
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is None:
        return Average
    warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=3)
    return Average if average else Sum


def split_list(values: list[Any], count: int) -> list[list[Any]]:
    """The list `values` in `count` parts, as even as can be, the first ones longer."""
    each, more = divmod(len(values), count)
    return [values[i * each + min(i, more) : (i + 1) * each + min(i + 1, more)] for i in range(count)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether the version `ver`, such as "2.16.1", is `target` or later; three numbers of each count."""

    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]]

    return numbers(ver) >= numbers(target)
