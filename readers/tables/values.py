"""Bytes of a file as values, and values in arrays of another dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.errors import DataError, quoted


def native(dtype: np.dtype) -> np.dtype:
    """A dtype as rows are handed out in: the machine's byte order, text for bytes, float64 for longer floats."""
    if dtype.kind == "S":
        return np.dtype(f"U{max(1, dtype.itemsize)}")
    if dtype.kind == "f" and dtype.itemsize > 8:
        return np.dtype(np.float64)
    return dtype.newbyteorder("=")


def decode(array: np.ndarray, what: str) -> np.ndarray:
    """Bytes to text, by UTF-8.

    Args:
        array: of dtype "S", of any shape.
        what: names the array in messages.

    Raises:
        DataError: they are no UTF-8.
    """
    try:
        return np.char.decode(array, "utf-8").astype(native(array.dtype))
    except UnicodeDecodeError as error:
        raise DataError(f"{what} holds text that is not UTF-8 ({quoted(error.object)}).") from None


def read_exactly(file: Any, place: int, count: int) -> np.ndarray:
    """Bytes of an open file, uint8 of shape (count,).

    Args:
        file: opened for reading bytes, with `seek` and `readinto`.
        place: of the first byte in the file.

    Raises:
        DataError: the file ends before.
    """
    got = np.empty(count, np.uint8)
    view, done = got.data, 0
    file.seek(place)
    while done < count:
        more = file.readinto(view[done:])
        if not more:
            raise DataError(f"{file.name} is not whole: it ends at byte {place + done}, where {place + count} was due.")
        done += more
    return got


def put(room: np.ndarray, rows: np.ndarray, what: str, first: int) -> None:
    """Put rows into an array of another dtype; floats that are too large become infinite.

    Args:
        what, first: names of what they are rows, and the first one's number, for a message.

    Raises:
        DataError: the array is of integers, and a row has what none of them is.
    """
    if room.dtype.kind in "iu" and rows.dtype.kind in "iuf" and rows.size and not np.can_cast(rows.dtype, room.dtype):
        limits = np.iinfo(room.dtype)
        fits = (rows >= limits.min) & (rows <= limits.max) if rows.dtype.kind in "iu" else _fits(rows, room.dtype)
        if not fits.all():
            at = np.argwhere(~fits)[0]
            raise DataError(
                f"{what}: row {first + int(at[0])} has the value {rows[tuple(at)]}, which is no {room.dtype} (rows are "
                "counted from 0)."
            )
    with np.errstate(invalid="ignore", over="ignore"):
        room[...] = rows


def _fits(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Where floats are numbers within the range of integers; both its ends, one past the last, are floats."""
    bits = 8 * dtype.itemsize - (dtype.kind == "i")
    low = -(2.0**bits) if dtype.kind == "i" else 0.0
    wide = rows.astype(np.float64)
    fits: np.ndarray = (np.trunc(wide) >= low) & (np.trunc(wide) < 2.0**bits)
    return fits
