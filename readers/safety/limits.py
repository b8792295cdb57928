"""How much memory and disk a file may ask for."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.errors import DataError

#: What a packed file may become in any case: so much fits into every machine that trains.
ALWAYS_BYTES = 1 << 28


#: The most that deflate can shrink anything.
_MOST_SHRUNK = 1032


def most_claimed(length: int) -> int:
    """Bytes that arrays in files of `length` bytes can have, however well they are packed. More is damage."""
    return max(ALWAYS_BYTES, length * _MOST_SHRUNK)


def most_unpacked(length: int) -> int:
    """Bytes that a packed file of `length` bytes may unpack to."""
    return max(ALWAYS_BYTES, length * settings.current().unpack_ratio)


def unpacks_to_too_much(what: str, length: int) -> DataError:
    """The error for one that unpacks to more. Args: what: which file, or what in it; length: its bytes, packed."""
    ratio = settings.current().unpack_ratio
    return DataError(
        f"{what} has {length} bytes and unpacks to more than {most_unpacked(length)}, {ratio} times as many: if that "
        "is meant, say --unpack-ratio (or MATEX_UNPACK_RATIO)."
    )


def room(path: str, rows: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array for rows of a file, of shape (rows, *shape), not filled.

    Args:
        path: of the file, for messages.
        shape: of a row.

    Raises:
        DataError: the machine has less memory than it would take.
    """
    dtype = np.dtype(dtype)
    needed = dtype.itemsize * int(np.prod((rows, *shape), dtype=object))
    try:
        if needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise MemoryError
        return np.empty((rows, *shape), dtype)
    except (MemoryError, ValueError):
        raise DataError(
            f"{path}: {rows} rows of it would take {needed >> 20} MB of memory, which this machine does not have: the "
            "file is damaged, or too large for so few ranks (see to_tf_data, which reads batch by batch)."
        ) from None
