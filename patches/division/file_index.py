"""Where the pieces of files begin, lines or records, so that a rank reads those of its own rows and no others.

What stands in front of the reading hands on numbers in place of pieces, through `shuffle`, `repeat` and `batch`.

A file that has changed since is an error: its pieces may begin elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.errors import DataError
from matex_tf.patches.sources.pipeline_ownership import READS

#: On a dataset: why its elements are not pieces, in words; on a map: the same function of a vector of elements.
KEPT, OF_VECTORS = "_matex_kept", "_matex_of_vectors"
#: Pieces of which it is remembered where they begin, 8 bytes each.
MOST = 16 << 20


class Unfit(Exception):
    """A file is not made of such pieces; says why."""


class File(NamedTuple):
    """One that has been looked through.

    Attributes:
        path: its name.
        bounds: where each piece begins, and where the last one ends.
        stamp: bytes, and when it was last changed.
    """

    path: str
    bounds: np.ndarray
    stamp: tuple[int, int]


class FileIndex:
    """The pieces of some files, numbered through all of them.

    Attributes:
        firsts: for each file the number of its first piece, and behind them how many pieces there are.
    """

    #: What the pieces are called.
    pieces = ""

    def __init__(self, files: Sequence[File]):
        self._files = [*files]
        self.firsts = np.cumsum([0, *(len(file.bounds) - 1 for file in files)])

    def numbers(self, file: Any = None) -> Any:
        """A dataset of the numbers of the pieces of a file, by its name; of all of them without one.

        Nobody can say beforehand how many these are, as of pieces: Keras begins anew in another way where it knows.
        """
        if file is None:
            everything = tf.autograph.experimental.do_not_convert(lambda _: tf.data.Dataset.range(int(self.firsts[-1])))
            return tf.data.Dataset.from_tensors(0).flat_map(everything)
        names = tf.constant([one.path for one in self._files])
        place = tf.argmax(tf.cast(tf.equal(names, file), tf.int32))
        return tf.data.Dataset.range(tf.gather(self.firsts, place), tf.gather(self.firsts, place + 1))

    def of_numbers(self, numbers: Any) -> Any:
        """In a graph: the pieces with these numbers, a vector as they are."""
        found = tf.numpy_function(self.read, [numbers], tf.string, stateful=False, name=READS)
        return tf.ensure_shape(found, numbers.shape)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """What pieces hold.

        Args:
            numbers: of pieces, int64, a vector.

        Raises:
            DataError: a file has changed, or a piece is damaged.
        """
        found = np.empty(len(numbers), object)
        file_of = np.searchsorted(self.firsts, numbers, side="right") - 1
        for number in np.unique(file_of):
            file, places = self._files[number], np.flatnonzero(file_of == number)
            handle = os.open(file.path, os.O_RDONLY)
            try:
                if stamp(handle) != file.stamp:
                    raise DataError(
                        f"{file.path} has changed since it was looked through for its {self.pieces}: make the data set "
                        "again after a file has been written, or take --data whole (docs/data.md)."
                    )
                lows = numbers[places] - self.firsts[number]
                for place, low, high in zip(places, file.bounds[lows], file.bounds[lows + 1], strict=True):
                    found[place] = self._held(os.pread(handle, int(high - low), int(low)), file.path, int(low))
            finally:
                os.close(handle)
        return found

    def _held(self, piece: bytes, path: str, low: int) -> bytes:
        """What a piece holds that begins at this byte of a file."""
        raise NotImplementedError


def stamp(handle: int) -> tuple[int, int]:
    """Of an open file: bytes, and when it was last changed."""
    found = os.fstat(handle)
    return found.st_size, found.st_mtime_ns


def look_through(path: str, find: Callable[[int, int], np.ndarray]) -> File:
    """A file with the bounds of its pieces.

    Args:
        find: gives them, from an open file and its size in bytes.

    Raises:
        Unfit: it cannot be read, or `find` says so.
    """
    if not os.path.isfile(path):
        raise Unfit(f"{path} is no file of a file system that is mounted here")
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            size, changed = stamp(handle)
            return File(path, find(handle, size), (size, changed))
        finally:
            os.close(handle)
    except OSError as error:
        raise Unfit(f"{path} cannot be read ({error.strerror})") from error


def mapped(numbers: Any, one: Callable[[Any], Any], many: Callable[[Any], Any]) -> Any:
    """A map that can be done with many elements at once.

    Args:
        numbers: a dataset of scalars.
        one: what is done with one of them.
        many: the same with a vector of them.
    """
    result = numbers.map(tf.autograph.experimental.do_not_convert(one))
    spec = tf.TensorSpec([None], numbers.element_spec.dtype)
    setattr(result, OF_VECTORS, tf.function(many, autograph=False).get_concrete_function(spec))
    return result
