"""CIFAR-10 and CIFAR-100 as their authors publish them for Python: pickles of rows of 3072 bytes."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted
from matex_tf.readers.safety import read_watch, safe_pickle
from matex_tf.readers.safety.limits import room
from matex_tf.readers.tables.arrays import data_errors, open_each
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import Arrays, FileStamp, ReadOptions, Table
from matex_tf.readers.tables.values import put

_LABELS = ("labels", "fine_labels", "coarse_labels")

#: Of each part, by the number of classes: the directory that the archive makes, the archive, and the files.
_FILES = {
    (10, "train"): [f"data_batch_{number}" for number in range(1, 6)],
    (10, "test"): ["test_batch"],
    (100, "train"): ["train"],
    (100, "test"): ["test"],
}
_ARCHIVES = {
    10: ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    100: ("cifar-100-python", "cifar-100-python.tar.gz"),
}


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> Table:
    """Open files of CIFAR as one table: uint8 of shape (rows, 32, 32, 3), labels int64. Every rank calls it.

    `wanted.y` chooses between "fine_labels", which is what None means, and "coarse_labels" of CIFAR-100. A pickle can
    only be read as a whole, so that every rank reads each file (of 10,000 rows, or 50,000) that has rows of its part.

    Raises:
        DataError: on every rank: a file cannot be read, or is none of CIFAR's.
    """
    latest: list[tuple[str, Arrays, Any]] = []
    return open_each(paths, wanted, ranks, "open files of CIFAR", lambda path, one: CifarTable(path, one, latest))


def guess_can_open(path: str, head: bytes) -> bool:
    """Whether it is a pickle of protocol 2 to 5; nothing else that is read here is one."""
    return head.startswith(b"\x80") and head[1:2] in b"\x02\x03\x04\x05"


FORMAT = Format("cifar", guess_can_open, open, ("cifar10", "cifar100"))


def find(directory: str, part: str, classes: int = 10) -> list[str]:
    """The files of CIFAR in a directory, or in the one that the archive makes in it.

    Args:
        directory: where the archive was unpacked.
        part: "train" or "test".
        classes: 10 or 100.

    Raises:
        DataError: they are not there; the names that were looked for are listed. Nothing is ever downloaded.
    """
    if (classes, part) not in _FILES:
        raise DataError(
            f"CIFAR has 10 or 100 classes and the parts train and test: there is no {quoted(part)} of {classes}."
        )
    inner, archive = _ARCHIVES[classes]
    names = _FILES[classes, part]
    for place in (directory, os.path.join(directory, inner)):
        found = [os.path.join(place, name) for name in names]
        if all(map(os.path.isfile, found)):
            return found
    packed = os.path.join(directory, archive)
    hint = f"Unpack {packed} there" if os.path.isfile(packed) else f"Nothing is downloaded: unpack {archive} there"
    raise DataError(f"{directory} and {inner} in it do not have {', '.join(names)}. {hint}.")


class CifarTable(Table):
    """The rows of one file."""

    def __init__(self, path: str, wanted: ReadOptions, latest: list[Any]):
        """Args: latest: what was read last, shared by the tables of several files: ranges are read in their order."""
        self.path, self.paths, self._wanted, self._latest = path, (path,), wanted, latest
        if wanted.x is not None:
            raise DataError(f"{path} is of CIFAR, whose inputs have no name: x={quoted(wanted.x)} is not in it.")
        self._watched = FileStamp(path)
        self.labelled = wanted.y is not False
        self.names = ("data", "labels") if self.labelled else ("data",)
        self.columns = ("data",)
        labels = wanted.y or "labels (of CIFAR-100 the fine ones)"
        self.said = f"input data (32 x 32 x 3 a row, uint8), {labels if self.labelled else 'no labels (y=False)'}"
        self.rows = len(self._load()[0])
        if self.rows == 0:
            raise DataError(f"{path} has no rows.")

    def read(self, start: int, stop: int) -> tuple[Arrays, Arrays | None]:
        if not 0 <= start <= stop <= self.rows:
            raise DataError(f"{self.path} has {self.rows} rows: there are no rows {start} to {stop}.")
        images, labels = self._load()
        rows = images[start:stop].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        inputs = room(self.path, stop - start, rows.shape[1:], self._wanted.dtype or rows.dtype)
        put(inputs, rows, self.path, start)
        return inputs, labels[start:stop].copy() if self.labelled else None

    def _load(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows of the file."""
        self._watched.check()
        if not (self._latest and self._latest[0] == self.path):
            with data_errors(self.path, "read", [self._watched]), builtins.open(self.path, "rb") as file:
                raw = file.read()
            self._watched.check()
            try:
                with read_watch.watched(self.path, "unpickled"):
                    loaded = self._take(safe_pickle.load(raw))
            except DataError as error:
                raise DataError(f"{self.path} is not a file of CIFAR: {error}.") from None
            self._latest[:] = [self.path, *loaded]
        return self._latest[1], self._latest[2]

    def _take(self, content: dict[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
        content = {key.decode("utf-8", "replace") if isinstance(key, bytes) else key: v for key, v in content.items()}
        images = content.get("data")
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2:
            raise DataError("it has no array of bytes called data")
        if images.shape[1] != 3072:
            raise DataError(f"its rows have {images.shape[1]} bytes, and images of 32 x 32 x 3 have 3072")
        if not self.labelled:
            return images, np.zeros(len(images), np.int64)
        there = [name for name in _LABELS if name in content]
        name = self._wanted.y if self._wanted.y is not None else (there or ["labels"])[0]
        if name not in there:
            raise DataError(f"it has no {quoted(name)}; it has {', '.join(there) or 'no labels'}")
        values = content[name]
        if isinstance(values, np.ndarray):
            values = values.tolist()
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise DataError(f"its {name} are not a list of whole numbers")
        if len(values) != len(images):
            raise DataError(f"it has {len(images)} images and {len(values)} labels")
        if any(not 0 <= value < 100 for value in values):
            raise DataError(f"its {name} go from {min(values)} to {max(values)}, and there are 100 classes at most")
        return images, np.array(values, np.int64)
