"""The rows of a batch as what looks at a model takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.row_partition import span
from matex_tf.features.dynamics.measure import Rows
from matex_tf.patches.common import row_slicing
from matex_tf.patches.common.row_slicing import RowRange

_WATCHED = 4096  # rows of validation data
_AT_ONCE = 1024


def of(data: Any, share: RowRange) -> tuple[Rows, int]:
    """This rank's rows of a batch, and how many the whole batch has.

    Args:
        data: the batch as this rank has it: x, y and weights, nested as Keras has them.
        share: which of its rows are this rank's.
    """
    mine = row_slicing.take(data, row_slicing.sliceable(data), share.low, share.high)
    x, y, sample_weight = _parts(mine)
    return Rows(x, y, sample_weight, share.rows, share.first, share.total), share.total


def watched(validation: Any) -> list[Rows]:
    """This rank's rows of validation data, at most so many of all ranks; none where they are no arrays.

    Args:
        validation: what the script has given to `fit`.
    """
    import tensorflow as tf

    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
        return []
    leaves = [leaf for leaf in tf.nest.flatten(tuple(validation)) if leaf is not None]
    if not leaves or not all(isinstance(leaf, (np.ndarray, tf.Tensor)) and len(leaf.shape) for leaf in leaves):
        return []
    ranks, rows = world.current(), int(leaves[0].shape[0])
    if any(int(leaf.shape[0]) != rows for leaf in leaves) or not rows:
        return []
    chosen = np.linspace(0, rows - 1, min(rows, _WATCHED)).astype(int)
    if not ranks.holds_shard:  # every rank has all of them
        chosen = chosen[slice(*span(len(chosen), ranks.rank, ranks.size))]
    result = []
    for first in range(0, len(chosen), _AT_ONCE):
        some = chosen[first : first + _AT_ONCE]
        x, y, sample_weight = _parts(tf.nest.map_structure(lambda leaf: _take(leaf, some), tuple(validation)))  # noqa: B023
        result.append(Rows(x, y, sample_weight, len(some)))
    return result


def _take(leaf: Any, places: np.ndarray) -> Any:
    import tensorflow as tf

    return None if leaf is None else tf.convert_to_tensor(np.asarray(leaf)[places])


def _parts(data: Any) -> tuple[Any, Any, Any]:
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
    return x, y, sample_weight
