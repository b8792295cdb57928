"""Adding up the parts of several ranks, in the order of ranks: the same bits, whoever does it.

Arrays that count in part are `Weighted`: what copies or adds them multiplies them. So nothing else passes over them.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence

import numpy as np

#: Bytes of a block: that of the sum and one of each part in turn fit a core's own cache.
BLOCK = 1 << 17

#: From so many parts on, many are added in one call; of fewer, each pair by itself is quicker.
_MANY = 9

#: Whether what numpy does about overflows belongs to a context, or else to a thread.
_IN_CONTEXT = np.lib.NumpyVersion(np.__version__) >= "2.0.0"

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


def add_up_weighted(parts: Sequence[np.ndarray], place: int, factor: np.generic, total: np.ndarray) -> None:
    """`add_up` of parts of which one counts times a factor.

    Args:
        parts, total: see `add_up`; of a dtype that is summed as itself.
        place: of that part.
        factor: of that dtype.
    """
    step = BLOCK // total.itemsize
    product = np.empty(min(step, total.size), total.dtype)
    with np.errstate(all="ignore"):
        for start in range(0, total.size, step):
            here = slice(start, start + step)
            given = [part[here] for part in parts]
            block = product[: given[place].size]
            put(given[place], factor, block)
            given[place] = block
            _add(given, total[here])


def small_sum(parts: np.ndarray) -> Callable[[np.ndarray], object]:
    """`add_up` of parts that lie in the same places each time; for one thread at a time.

    Args:
        parts: see `add_up`; the rows of an array.

    Returns:
        A function that writes their sum into an array of their dtype.
    """
    each = list(parts)
    if len(each) == 1 or wide(parts.dtype) != parts.dtype or each[0].nbytes > BLOCK or not _IN_CONTEXT:
        return functools.partial(add_up, each)
    quiet = contextvars.copy_context()
    quiet.run(np.seterr, all="ignore")  # once: `errstate` takes three times as long as adding
    adds: Callable[..., object] = np.add if len(each) == 2 else _add if len(each) < _MANY else _add_levels
    given = each if len(each) == 2 else [each if len(each) < _MANY else parts]
    return functools.partial(quiet.run, adds, *given)


def _add(parts: Sequence[np.ndarray], total: np.ndarray) -> None:
    """As a binary tree whose left half is the largest power of two: ((0 + 1) + (2 + 3)) + 4."""
    if len(parts) == 1:
        np.copyto(total, parts[0])
        return
    if len(parts) == 2:
        np.add(parts[0], parts[1], total)
        return
    left = 1 << (len(parts) - 1).bit_length() - 1
    _add(parts[:left], total)
    if len(parts) == left + 1:
        np.add(total, parts[left], out=total)
        return
    right = np.empty_like(total)
    _add(parts[left:], right)
    np.add(total, right, out=total)


def _add_levels(parts: np.ndarray, total: np.ndarray) -> None:
    """Add the tree of `_add` level by level, all pairs of neighbors in one call. So the calls are log2 of the parts."""
    while len(parts) > 2:
        pairs = len(parts) // 2
        sums = np.empty((len(parts) - pairs, parts.shape[1]), parts.dtype)
        np.add(parts[: 2 * pairs : 2], parts[1 : 2 * pairs : 2], out=sums[:pairs])
        if len(parts) % 2:
            sums[pairs] = parts[-1]
        parts = sums
    np.add(parts[0], parts[1], out=total)


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


class Weighted(list[np.ndarray]):
    """Arrays, and what each is multiplied by.

    Attributes:
        factors: scalars of the arrays' dtypes; None for an array that counts as it is.
    """

    def __init__(self, arrays: Sequence[np.ndarray], factors: Sequence[np.generic | None]):
        super().__init__(arrays)
        self.factors = factors

    def some(self, places: Sequence[int]) -> Weighted:
        """The arrays at these places."""
        return Weighted([self[place] for place in places], [self.factors[place] for place in places])

    def multiplied(self) -> list[np.ndarray]:
        """The products, in memory of their own."""
        products: list[np.ndarray] = []
        for array, factor in zip(self, self.factors, strict=True):
            products.append(array if factor is None else np.empty_like(array))
            if factor is not None:
                put(array, factor, products[-1])
        return products


def put(array: np.ndarray, factor: np.generic | None, place: np.ndarray) -> None:
    """Write an array times its factor; as in `tf.math.multiply_no_nan`, what counts nothing is 0, whatever it is.

    Args:
        factor: a scalar of the dtype of `array`; None: 1.
        place: of the shape of `array`; overwritten.
    """
    if factor is None:
        place[...] = array
    elif factor:
        np.multiply(array, factor, out=place)
    else:
        place[...] = 0


def some(arrays: Sequence[np.ndarray], places: Sequence[int]) -> Sequence[np.ndarray]:
    """The arrays at these places, with their factors where they have some.

    Args:
        arrays: a sequence, or a `Weighted`, of which the result is one as well.
        places: positions in it, from 0.
    """
    return arrays.some(places) if isinstance(arrays, Weighted) else [arrays[place] for place in places]
