"""Where the lines of CSV files begin, so that a rank reads the lines of its own rows and no others.

The files are looked through once, as bytes: a record has to be a line. What stands in front of the parsing then hands
on numbers in place of lines, through `shuffle`, `repeat` and `batch`.

A file that has changed since is an error: its lines may begin elsewhere.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.errors import DataError

_BLOCK_BYTES = 8 << 20
_LF, _QUOTE = b'\n"'
#: Lines of which it is remembered where they begin, 8 bytes each; where there are more, every rank reads all lines.
_MOST_LINES = 16 << 20


class NotLines(Exception):
    """The records of a file are not just its lines; says why."""


class _File(NamedTuple):
    path: str
    bounds: np.ndarray  # where each line begins, and where the last one ends
    stamp: tuple[int, int]  # bytes, and when it was last changed


class LineIndex:
    """The lines of some files, numbered through all of them, without their first lines where those are headers.

    Attributes:
        firsts: for each file the number of its first line, and behind them how many lines there are.
        is_kept: whether it is remembered where lines begin; not where there are very many.
    """

    def __init__(self, files: Sequence[Any], quoted: bool, header: bool):
        """Look through the files.

        Args:
            files: names of them.
            quoted: whether fields may be in quotes.
            header: whether they begin with names.

        Raises:
            NotLines: see there.
        """
        self._files = [_look_through(os.fsdecode(file), quoted, header) for file in files]
        self.firsts = np.cumsum([0, *(len(file.bounds) - 1 for file in self._files)])
        self.is_kept = int(self.firsts[-1]) <= _MOST_LINES
        if not self.is_kept:
            self._files = []

    def numbers(self, file: Any = None) -> Any:
        """A dataset of the numbers of the lines of a file, by its name; of all of them without one.

        Nobody can say beforehand how many these are, as of lines: Keras begins anew in another way where it knows.
        """
        if file is None:
            everything = tf.autograph.experimental.do_not_convert(lambda _: tf.data.Dataset.range(int(self.firsts[-1])))
            return tf.data.Dataset.from_tensors(0).flat_map(everything)
        names = tf.constant([one.path for one in self._files])
        place = tf.argmax(tf.cast(tf.equal(names, file), tf.int32))
        return tf.data.Dataset.range(tf.gather(self.firsts, place), tf.gather(self.firsts, place + 1))

    def lines(self, numbers: Any) -> Any:
        """In a graph: the lines with these numbers, a vector as they are."""
        return tf.ensure_shape(tf.numpy_function(self.read, [numbers], tf.string, stateful=False), numbers.shape)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Lines, without what ends them.

        Args:
            numbers: of lines, int64, a vector.

        Raises:
            DataError: a file has changed.
        """
        lines = np.empty(len(numbers), object)
        file_of = np.searchsorted(self.firsts, numbers, side="right") - 1
        for number in np.unique(file_of):
            file, places = self._files[number], np.flatnonzero(file_of == number)
            handle = os.open(file.path, os.O_RDONLY)
            try:
                if _stamp(handle) != file.stamp:
                    raise DataError(
                        f"{file.path} has changed since it was looked through for its lines: make the data set again "
                        "after a file has been written, or take --data whole (docs/data.md)."
                    )
                lows = numbers[places] - self.firsts[number]
                for place, low, high in zip(places, file.bounds[lows], file.bounds[lows + 1], strict=True):
                    lines[place] = os.pread(handle, int(high - low), int(low)).rstrip(b"\r\n")
            finally:
                os.close(handle)
        return lines


def _stamp(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_size, found.st_mtime_ns


def _look_through(path: str, quoted: bool, header: bool) -> _File:
    if not os.path.isfile(path):
        raise NotLines(f"{path} is no file of a file system that is mounted here")
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            size, changed = _stamp(handle)
            bounds = np.zeros(1, np.int64)
            if size:
                with mmap.mmap(handle, size, access=mmap.ACCESS_READ) as text:
                    bounds = _bounds(path, text, size, quoted)
            elif header:
                raise NotLines(f"{path} is empty")
            return _File(path, bounds[int(header) :], (size, changed))
        finally:
            os.close(handle)
    except OSError as error:
        raise NotLines(f"{path} cannot be read ({error.strerror})") from error


def _bounds(path: str, text: mmap.mmap, size: int, quoted: bool) -> np.ndarray:
    ends, quotes, low, before = [np.zeros(1, np.int64)], 0, 0, b"\n"
    while low < size:
        high = min(low + _BLOCK_BYTES, size)
        while high < size and text[high - 1 : high] in (b"\r", b"\n"):
            high += 1
        block = text[low:high]
        begin = before + block[:2]
        if b"\n\n" in block or b"\n\r\n" in block or begin.startswith((b"\n\n", b"\n\r\n")):
            raise NotLines(f"{path} has blank lines")
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            raise NotLines(f"{path} has lines that end with CR alone")
        data = np.frombuffer(block, np.uint8)
        here = np.flatnonzero(data == _LF)
        if quoted and (quotes or b'"' in block):
            places = np.flatnonzero(data == _QUOTE)
            if ((np.searchsorted(places, here) + quotes) % 2).any():
                raise NotLines(f"{path} has line ends inside of quotes")
            quotes = (quotes + len(places)) % 2
        ends.append(here + (low + 1))
        before, low = block[-1:], high
    if before != b"\n":
        ends.append(np.array([size]))
    return np.concatenate(ends)
