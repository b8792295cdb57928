"""Where the lines of CSV files begin. The files are looked through once, as bytes: a record has to be a line."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.patches.division import file_index
from matex_tf.patches.division.file_index import Unfit

_BLOCK_BYTES = 8 << 20
_LF, _QUOTE = b'\n"'


class LineIndex(file_index.FileIndex):
    """The lines of some files, numbered through all of them, without their first lines where those are headers.

    Attributes:
        is_kept: whether it is remembered where lines begin; not where there are very many.
    """

    pieces = "lines"

    def __init__(self, files: Sequence[Any], quoted: bool, header: bool):
        """Look through the files.

        Args:
            files: names of them.
            quoted: whether fields may be in quotes.
            header: whether they begin with names.

        Raises:
            Unfit: records are not just lines.
        """
        super().__init__([_look_through(os.fsdecode(file), quoted, header) for file in files])
        self.is_kept = int(self.firsts[-1]) <= file_index.MOST
        if not self.is_kept:
            self._files = []

    def _held(self, piece: bytes, path: str, low: int) -> bytes:
        return piece.rstrip(b"\r\n")


def _look_through(path: str, quoted: bool, header: bool) -> file_index.File:
    return file_index.look_through(path, functools.partial(_bounds, path, quoted, header))


def _bounds(path: str, quoted: bool, header: bool, handle: int, size: int) -> np.ndarray:
    bounds = np.zeros(1, np.int64)
    if size:
        with mmap.mmap(handle, size, access=mmap.ACCESS_READ) as text:
            bounds = _ends(path, text, size, quoted)
    elif header:
        raise Unfit(f"{path} is empty")
    return bounds[int(header) :]


def _ends(path: str, text: mmap.mmap, size: int, quoted: bool) -> np.ndarray:
    ends, quotes, low, before = [np.zeros(1, np.int64)], 0, 0, b"\n"
    while low < size:
        high = min(low + _BLOCK_BYTES, size)
        while high < size and text[high - 1 : high] in (b"\r", b"\n"):
            high += 1
        block = text[low:high]
        begin = before + block[:2]
        if b"\n\n" in block or b"\n\r\n" in block or begin.startswith((b"\n\n", b"\n\r\n")):
            raise Unfit(f"{path} has blank lines")
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            raise Unfit(f"{path} has lines that end with CR alone")
        data = np.frombuffer(block, np.uint8)
        here = np.flatnonzero(data == _LF)
        if quoted and (quotes or b'"' in block):
            places = np.flatnonzero(data == _QUOTE)
            if ((np.searchsorted(places, here) + quotes) % 2).any():
                raise Unfit(f"{path} has line ends inside of quotes")
            quotes = (quotes + len(places)) % 2
        ends.append(here + (low + 1))
        before, low = block[-1:], high
    if before != b"\n":
        ends.append(np.array([size]))
    return np.concatenate(ends)
