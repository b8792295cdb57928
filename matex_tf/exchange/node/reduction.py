"""Adding up the parts of several ranks, in the order of ranks: the same bits, whoever does it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

#: Bytes of a block: that of the sum and one of each part in turn fit a core's own cache.
BLOCK = 1 << 17

#: What a dtype is summed as: short floats in float32, the rest as itself.
SUMMED_AS = {
    "float16": "float32",
    "bfloat16": "float32",
    **{name: name for name in ("float32", "float64", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
}


@functools.cache  # a dtype takes longer to say its name than a small sum takes
def wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which numbers of `dtype` are added."""
    return np.dtype(SUMMED_AS[dtype.name])


def add_up(parts: Sequence[np.ndarray], total: np.ndarray) -> None:
    """Write the sum of all parts into `total`.

    Args:
        parts: flat, of one dtype and the size of `total`; at least one.
        total: flat, of that dtype, or of the dtype in which it is summed (`wide`); may be the first part.
    """
    with np.errstate(all="ignore"):  # an infinite gradient is the optimizer's business
        if wide(parts[0].dtype) != parts[0].dtype:
            _add_short(parts, total)
        elif len(parts) == 1:
            if total is not parts[0]:
                np.copyto(total, parts[0])
        elif len(parts) == 2 or total.nbytes <= BLOCK:
            _add(parts, total)
        else:
            step = BLOCK // total.itemsize
            for start in range(0, total.size, step):
                here = slice(start, start + step)
                _add([part[here] for part in parts], total[here])


def _add(parts: Sequence[np.ndarray], total: np.ndarray) -> None:
    np.add(parts[0], parts[1], out=total)
    for part in parts[2:]:
        np.add(total, part, out=total)


def _add_short(parts: Sequence[np.ndarray], total: np.ndarray) -> None:
    step = BLOCK // 4
    sums = np.empty(min(step, total.size), np.float32)
    part_sums = np.empty_like(sums)
    for start in range(0, total.size, step):
        here = slice(start, start + step)
        block = total[here]
        block_sum, widened = sums[: block.size], part_sums[: block.size]
        np.copyto(block_sum, parts[0][here])
        for part in parts[1:]:
            np.copyto(widened, part[here])
            np.add(block_sum, widened, out=block_sum)
        np.copyto(block, block_sum, casting="unsafe")
