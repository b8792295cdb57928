"""What is known of a tensor in a model: which of its entries belong to which channel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """A tensor between two layers.

    Attributes:
        shape: its shape, with the batch; None for sizes that are not known.
        axis: along which its channels lie, counted from the batch.
        channels: (shape[axis],) int64, the channel of each place along that axis; None where nothing is known of it.
    """

    shape: Shape
    axis: int
    channels: np.ndarray | None = None

    @classmethod
    def unknown(cls, shape: Sequence[int | None]) -> Flow:
        """A tensor of which nothing is known."""
        return cls(tuple(shape), len(shape) - 1)

    @property
    def last(self) -> np.ndarray | None:
        """The channels, where they lie along the last axis."""
        return self.channels if self.axis == len(self.shape) - 1 else None

    def shaped(self, shape: Sequence[int | None]) -> Flow:
        """The channels along the last axis of another shape, if they have lain along the last axis of this."""
        return Flow(tuple(shape), len(shape) - 1, self.channels)


def reshaped(flow: Flow, shape: Sequence[int | None]) -> Flow | None:
    """A tensor that is read in another shape, row by row.

    Args:
        flow: the tensor; its channels are known.
        shape: the other shape, with the batch; None for sizes that are not known.

    Returns:
        None where its channels do not lie along one axis of the result, or sizes are not known.
    """
    assert flow.channels is not None
    shape, before = tuple(shape), flow.shape
    if flow.last is not None and shape[-1] == before[-1]:
        return flow.shaped(shape)
    known = [size for size in (*before[1:], *shape[1:]) if size is None]
    if known or math.prod(before[1:]) != math.prod(shape[1:]):  # type: ignore[arg-type]
        return None
    axis = flow.axis - 1
    along = flow.channels.reshape([-1 if place == axis else 1 for place in range(len(before) - 1)])
    grid = np.broadcast_to(along, before[1:]).reshape(shape[1:])  # type: ignore[arg-type]
    return _along_one_axis(grid, shape)


def _along_one_axis(grid: np.ndarray, shape: Shape) -> Flow | None:
    """The channels of each entry of a tensor, as a flow; None where they differ along several axes."""
    varying = []
    for axis in range(grid.ndim):
        first = grid.take([0], axis)
        if (grid == first).all():
            grid = first
        else:
            varying.append(axis)
    if len(varying) > 1:
        return None
    axis = varying[0] if varying else grid.ndim - 1
    channels = np.broadcast_to(grid.reshape(-1), (shape[axis + 1],)).copy()  # type: ignore[arg-type]
    return Flow(shape, axis + 1, channels)
