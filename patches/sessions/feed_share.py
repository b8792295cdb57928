"""Which part of a batch the run of a session works on: set before the run, read by an op of the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common import batch_share
from matex_tf.patches.common.row_slicing import RowRange

_now: RowRange | None = None


@contextlib.contextmanager
def use(share: RowRange | None) -> Iterator[None]:
    """Let runs inside this block work on these rows; None: on what every rank has, or on nothing that has rows."""
    global _now
    before, _now = _now, share
    try:
        yield
    finally:
        _now = before


def in_graph() -> batch_share.StepShare:
    """The part that the run of this graph works on; of what every rank has, each counts as one of `size` rows."""

    def read() -> np.ndarray:
        if _now is None:
            return np.array([1, world.current().size, 1], np.int32)
        return np.array([_now.rows, max(1, _now.total), _now.high - _now.low], np.int32)

    numbers = tf.numpy_function(read, [], tf.int32, stateful=True)
    numbers.set_shape([3])
    rows, total, taken = tf.unstack(numbers)
    return batch_share.StepShare(rows, total, taken)
