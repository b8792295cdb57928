"""What a missing input (NaN) becomes: a number, or the mean or median of its column over the rows of all ranks.

The mean is that of the exact sum, rounded once. So it has the same bits on any number of ranks, however the rows are
cut. It is taken block by block; a median needs all values of the inputs at once.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted
from matex_tf.readers import of_all_ranks
from matex_tf.readers.tables.table import Arrays

Missing = float | str | None

#: Bits of each half of a number's digits, and how many rows are added up at a time: sums are whole numbers in float64.
_HALF, _ROWS = 27, 1 << 20


def check(missing: Any) -> Missing:
    """What `missing=` was given.

    Raises:
        DataError: it is none of what it can be.
    """
    known = missing is None or (isinstance(missing, str) and missing in ("mean", "median"))
    number = isinstance(missing, numbers.Real) and not isinstance(missing, bool) and math.isfinite(missing)
    if not known and not number:
        raise DataError(f'missing={quoted(missing)}: give "mean", "median", a number, or None to leave NaN.')
    return float(missing) if number else missing


def in_words(missing: Missing) -> str:
    """What a missing input becomes, for a line."""
    if missing is None:
        return "NaN"
    return f"becomes the {missing} of its column" if isinstance(missing, str) else f"becomes {missing:g}"


def values(missing: Missing, blocks: Iterable[Arrays], ranks: World, path: str) -> list[Any]:
    """What a missing value becomes, for each input: None where none can be missing. Every rank must come here.

    Args:
        missing: as `check` gives it.
        blocks: this rank's inputs, some rows at a time; at least one block, which may have no rows.
        path: of the first file, for errors.

    Raises:
        DataError: a column has no value at all, or a median would need too much memory.
    """
    columns: list[Any] = []
    for block in blocks:
        several = block if isinstance(block, tuple) else (block,)
        if not columns:
            kind = _Values if missing == "median" else _Sums
            columns = [kind(one.shape[1:]) if one.dtype.kind == "f" else None for one in several]
        if isinstance(missing, float):
            return [None if one is None else missing for one in columns]
        for column, one in zip(columns, several, strict=True):
            if column is not None:
                column.add(one.reshape(len(one), math.prod(one.shape[1:])))
    found = [None if one is None else one.of_all(ranks, path) for one in columns]
    for one in found:
        if one is not None and len(empty := np.flatnonzero(np.isnan(one))):
            raise DataError(
                f"{path}: column {empty[0]} of the inputs has no value in any row, and so no {missing}: leave it out "
                "with x=, or give missing= a number."
            )
    return found


class _Values:
    """All values of an input, for medians."""

    def __init__(self, shape: tuple[int, ...]):
        self._shape, self._parts = shape, [np.zeros((0, math.prod(shape)), np.float32)]

    def add(self, rows: np.ndarray) -> None:
        """Some rows."""
        self._parts.append(rows)

    def of_all(self, ranks: World, path: str) -> np.ndarray:
        """The medians, over all ranks' rows."""
        mine = np.concatenate(self._parts, dtype=np.result_type(*self._parts[-1:]))
        if sum(ranks.allgather(mine.nbytes, "find the medians")) > of_all_ranks.MOST_BYTES:
            raise DataError(
                f"{path}: a median needs the rows of all ranks at once, and these are more than "
                f'{of_all_ranks.MOST_BYTES >> 20} MB: take missing="mean" or a number.'
            )
        rows = of_all_ranks.whole(mine, "find the medians").astype(np.float64)
        known = (column[np.isfinite(column)] for column in rows.T)
        return np.array([np.median(one) if len(one) else np.nan for one in known]).reshape(self._shape)


class _Sums:
    """The exact sum of each column of an input: whole numbers by power of 2."""

    def __init__(self, shape: tuple[int, ...]):
        self._shape, self._counts = shape, np.zeros(math.prod(shape), np.int64)
        self._sums: Counter[tuple[int, int]] = Counter()  # by column and power of 2

    def add(self, rows: np.ndarray) -> None:
        """Some rows."""
        for low in range(0, len(rows), _ROWS):
            self._add(rows[low : low + _ROWS].astype(np.float64))

    def _add(self, rows: np.ndarray) -> None:
        known = np.isfinite(rows)
        self._counts += known.sum(axis=0)
        columns = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)[known]
        fractions, exponents = np.frexp(rows[known])
        if not len(exponents):
            return
        lowest = int(exponents.min())
        span = int(exponents.max()) - lowest + 1
        places = columns * span + (exponents - lowest)
        scaled = np.ldexp(fractions, _HALF)
        high = np.trunc(scaled)
        low = np.ldexp(scaled - high, _HALF)  # 53 bits in all: nothing is left over
        size = rows.shape[1] * span
        highs, lows = (np.bincount(places, weights=half, minlength=size) for half in (high, low))
        for place in np.flatnonzero((highs != 0) | (lows != 0)).tolist():
            key = place // span, place % span + lowest - 2 * _HALF
            self._sums[key] += (int(highs[place]) << _HALF) + int(lows[place])

    def of_all(self, ranks: World, path: str) -> np.ndarray:
        """The means, over all ranks' rows."""
        everyone = ranks.allgather((self._counts, self._sums), "find the means")
        totals = [Fraction(0)] * len(self._counts)
        for _, sums in everyone:
            for (column, exponent), digits in sums.items():
                totals[column] += digits * Fraction(2) ** exponent
        counts = sum(counts for counts, _ in everyone).tolist()
        means = [float(total / count) if count else np.nan for total, count in zip(totals, counts, strict=True)]
        return np.array(means).reshape(self._shape)


def filled(array: np.ndarray, value: Any) -> np.ndarray:
    """An array without NaN. Args: value: of each column, or of all; None leaves it."""
    if value is None or not np.isnan(array).any():
        return array
    return np.where(np.isnan(array), np.asarray(value, array.dtype), array)
