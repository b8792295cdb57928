"""Where the arrays of a step lie: on a mesh of devices, of which each rank has at least one.

Relies on (JAX 0.10), public: `jax.sharding`, `jax.make_array_from_single_device_arrays`,
`jax.make_array_from_callback`.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Place:
    """A mesh, one axis of which divides the rows of batches.

    Args:
        mesh: of JAX.
        axis: its name; None: the first.

    Attributes:
        rows: how an array lies whose rows are divided.
        whole: how one lies that each device has whole.
        parts: among how many the rows are divided.
    """

    def __init__(self, mesh: Any, axis: str | None = None):
        import jax

        axis = axis or mesh.axis_names[0]
        self.rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))
        self.whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self.parts = mesh.shape[axis]

    def of_all(self, own: Any, layout: Any = None) -> Any:
        """An array that is the same on every rank, as one array of all ranks; nothing is sent.

        Args:
            own: the rank's.
            layout: how the array of all ranks is to lie; None for whole.
        """
        import jax

        layout = layout or self.whole
        if is_of_all(own) and own.sharding.is_equivalent_to(layout, own.ndim):
            return own
        if layout.is_fully_replicated and len(layout.addressable_devices) == 1:
            own = jax.device_put(own, *layout.addressable_devices)  # shared, and not copied, if it lies there
            return jax.make_array_from_single_device_arrays(own.shape, layout, [own])
        return jax.make_array_from_callback(own.shape, layout, np.asarray(own).__getitem__)

    def my_rows(self, array: Any) -> Any:
        """A batch that every rank has, as an array whose rows are divided; it ends with rows of zeros where their
        number does not divide evenly."""
        import jax

        total = -(-array.shape[0] // self.parts) * self.parts

        def part(index: tuple[slice, ...]) -> np.ndarray:
            begin, end, _ = index[0].indices(total)
            mine = np.asarray(array[begin:end])
            missing = end - begin - len(mine)
            return np.concatenate([mine, np.zeros((missing, *mine.shape[1:]), mine.dtype)]) if missing else mine

        return jax.make_array_from_callback((total, *array.shape[1:]), self.rows, part)


def is_of_all(array: Any) -> bool:
    """Whether something is an array that lies on devices of other ranks too."""
    import jax

    return isinstance(array, jax.Array) and not array.is_fully_addressable


def is_divided(array: Any) -> bool:
    """Whether it lies there in parts."""
    return is_of_all(array) and not array.is_fully_replicated
