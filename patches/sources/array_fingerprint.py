"""What ranks tell one another of an array, to find out whether they hold the same: a checksum over a part of it.

The same computation on two kinds of machines may round in another way. So sums of floating-point values go along, by
which arrays that differ by rounding are still found to be the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.core import mismatch

_ROWS = 64
_ROUNDING = 1e-5


class Print(NamedTuple):
    """What is compared of one array. Two with the same checksum are equal: ranks with other numbers of threads, as one
    that has come has, round sums of the same values in another way.

    Attributes:
        columns: dtype and shape.
        checksum: over its content.
        sums: of floating-point values, mostly of up to 64 rows: the sum of their sizes, and sums of the values with
            other weights; else empty.
    """

    columns: str
    checksum: int
    sums: tuple[float, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Print) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])

    def __repr__(self) -> str:
        return f"{self.columns} {self.checksum}"


def rows(leaf: Any) -> np.ndarray:
    """Up to 64 rows, spread evenly, of an array, a tensor or a table."""
    if len(leaf.shape) == 0:
        return np.asarray(leaf)
    count = int(leaf.shape[0])
    chosen = np.unique(np.linspace(0, count - 1, num=min(count, _ROWS)).astype(int)) if count else np.array([], int)
    if hasattr(leaf, "iloc"):
        return np.asarray(leaf.iloc[chosen].to_numpy())
    return tf.gather(leaf, chosen).numpy() if isinstance(leaf, tf.Tensor) else np.asarray(leaf[chosen])


def of(array: np.ndarray, shape: Sequence[int] | None = None, sampled: bool = True) -> Print:
    """What to tell of an array.

    Args:
        array: of any dtype. Of strings that are paths the last parts count: directories may be a rank's own.
        shape: that of the whole, where `array` is a sample.
        sampled: whether sums are those of up to 64 rows, and not of all.
    """
    columns = f"{array.dtype} {tuple(array.shape if shape is None else shape)}"
    if array.dtype.hasobject:
        words = [os.path.basename(word) if isinstance(word, bytes) else word for word in array.reshape(-1).tolist()]
        return Print(columns, mismatch.checksum(repr(words)))
    checksum = mismatch.checksum(array)
    if array.dtype.kind != "f" or not array.size:
        return Print(columns, checksum)
    flat = (rows(array) if sampled else array).reshape(-1).astype(np.float64)
    places = np.arange(flat.size)
    with np.errstate(all="ignore"):
        sums = np.abs(flat).sum(), flat.sum(), flat @ np.cos(places), flat @ np.sin(places * 1.7)
    return Print(columns, checksum, tuple(map(float, sums)))


def checksum(arrays: Iterable[Any], total: int = 0) -> int:
    """A checksum over arrays with their dtypes and shapes, after what comes before them. Args: total: of that."""
    for array in map(np.asarray, arrays):
        total = mismatch.checksum(array, mismatch.checksum(f"{array.dtype} {array.shape}", total))
    return total


def alike(one: Print, other: Print) -> bool:
    """Whether two arrays, of which `one` and `other` tell, are the same, or differ by rounding alone."""
    if one.columns != other.columns:
        return False
    if one.checksum == other.checksum:
        return True
    if not one.sums or not np.isfinite([*one.sums, *other.sums]).all():
        return False
    apart = np.abs(np.subtract(one.sums, other.sums)).max()
    return bool(apart <= _ROUNDING * max(one.sums[0], other.sums[0]))
