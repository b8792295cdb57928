"""What the ranks' parts of a batch have in common: columns of a length that is only known when the batch is.

A pipeline of which each rank makes its rows (`patches.division`) gives parts as long as their own rows need. One rank
has a batch whose rows are all of one shape: padded to the longest of them, or refused where they differ. So before a
step the ranks compare the shapes of their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world


class BatchShapes:
    """The shapes of the parts of a batch, as far as a pipeline leaves them open.

    Args:
        compared: places, among the tensors of a batch, of those that must have rows of one shape on all ranks.
        padded: of those that are padded to the longest row, by place: the values that they are padded with.
    """

    def __init__(self, compared: Sequence[int], padded: dict[int, Any]):
        self._compared, self._padded = tuple(compared), padded

    def common(self, data: Any) -> Any:
        """This rank's rows in the shape that they have in the whole batch. All ranks come here.

        Raises:
            RanksDisagree: rows that are not padded have other shapes on other ranks.
        """
        leaves, ranks = tf.nest.flatten(data), world.current()
        if self._compared:
            shapes = [f"array {place}: rows of shape {tuple(leaves[place].shape[1:])}" for place in self._compared]
            ranks.barrier("batch rows of one shape", shapes)
        if not self._padded:
            return data
        mine = [leaves[place].shape.as_list() for place in self._padded]
        everyone = ranks.allgather(mine, "pad to the longest row of a batch")
        for number, (place, value) in enumerate(self._padded.items()):
            most = np.max([shapes[number][1:] for shapes in everyone], axis=0, initial=0)
            more = [0, *(most - mine[number][1:])]
            if any(more):
                leaves[place] = tf.pad(leaves[place], [(0, int(rows)) for rows in more], constant_values=value)
        return tf.nest.pack_sequence_as(data, leaves)
