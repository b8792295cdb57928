"""Packed files: gzip is unpacked here, and others are known so that an error can name them."""

from __future__ import annotations

import gzip
import zlib

from matex_tf.errors import DataError
from matex_tf.readers.places import addresses

GZIP = b"\x1f\x8b"
HEAD_BYTES = 4096

#: What packs files, by their first bytes, and is not unpacked here.
_PACKERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf": "7-Zip"}


def head(path: str) -> bytes:
    """The first `HEAD_BYTES` bytes of a file, and of what is in it if it is packed by gzip.

    Raises:
        DataError: it starts as gzip, and cannot be unpacked.
    """
    with addresses.open(path) as file:
        found = file.read(HEAD_BYTES)
    if not found.startswith(GZIP):
        return found
    try:
        with addresses.open(path, buffered=True) as file, gzip.open(file, "rb") as unpacked:
            return unpacked.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not whole: it starts as gzip, and cannot be unpacked ({error}).") from None


def advice(head: bytes) -> str:
    """What to do with a file that must be unpacked first; "" if it is not packed."""
    for start, packer in _PACKERS.items():
        if head.startswith(start):
            return f"is packed by {packer}, and only gzip is unpacked here: unpack it first"
    if head[257:262] == b"ustar":
        return "is a tar archive: unpack it, and name the files that were in it"
    return ""
