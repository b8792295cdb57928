"""The plain exchange: arrays of one dtype travel as one flat buffer through MPI_Allreduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matex_tf.errors import MatexError
from matex_tf.world import World

#: What a dtype is summed as: short floats in float32, the rest as itself.
SUMMED_AS = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
    "int64": "int64",
}


def check_dtypes(dtypes: Sequence[str], labels: Sequence[str]) -> None:
    """Raise MatexError, naming the tensor, for a dtype that ranks cannot add up."""
    for dtype, label in zip(dtypes, labels, strict=True):
        if dtype not in SUMMED_AS:
            raise MatexError(
                f"{label} is {dtype}, which cannot be summed over ranks; it can be {', '.join(sorted(SUMMED_AS))}."
            )


def sum_arrays(world: World, arrays: Sequence[np.ndarray], what: str, labels: Sequence[str]) -> list[np.ndarray]:
    """Sum each array over all ranks.

    Args:
        world: the ranks that take part; each must call this with arrays of the same shapes and dtypes.
        arrays: any shapes, dtypes of `SUMMED_AS`.
        what: the purpose, see `World.meet`.
        labels: a description of each array; ranks whose labels differ get RanksDisagree.

    Returns:
        The sums, in the dtypes of `arrays`; the same bits on every rank.
    """
    world.meet(what, labels)
    sums: list[np.ndarray | None] = [None] * len(arrays)
    wires = [SUMMED_AS[array.dtype.name] for array in arrays]
    for wire in dict.fromkeys(wires):
        members = [position for position, name in enumerate(wires) if name == wire]
        flat = np.concatenate([arrays[position].reshape(-1).astype(wire, copy=False) for position in members])
        world.sum_in_place(flat)
        start = 0
        for position in members:
            array = arrays[position]
            part = flat[start : start + array.size].reshape(array.shape)
            sums[position] = part.astype(array.dtype, copy=False)
            start += array.size
    return sums  # type: ignore[return-value]
