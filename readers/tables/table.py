"""A table: rows in one file or several, of which any range can be read; and what all formats share.

What a format must say of itself stands in `format`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.core.mismatch import name_ranks
from matex_tf.core.world import World
from matex_tf.errors import DataError, MatexError, MissingPackage, listed
from matex_tf.readers.places import addresses

#: Inputs or labels: an array whose first axis runs over rows, or a tuple of such arrays (several inputs).
Arrays = Any
Names = Any


@dataclass(frozen=True)
class ReadOptions:
    """What a script asked for.

    Attributes:
        x: the inputs: a name or position (of a column, a dataset, a variable), or a sequence of them; None finds them.
        y: the labels, in the same way; None finds them, False means that there are none.
        dtype: of the inputs, a numpy dtype; None leaves it to the format.
        delimiter: what stands between two fields of a CSV file; None finds it.
        header: whether the first row of a CSV file has the names of its columns; None finds it.
        first: whether the first column of a CSV file has the labels where nothing says which has, and not the last.
    """

    x: Names = None
    y: Names = None
    dtype: np.dtype | None = None
    delimiter: str | None = None
    header: bool | None = None
    first: bool = False


class Table(ABC):
    """Rows that can be read by range, on any rank, without another's help.

    Attributes:
        paths: the files, in the order of their rows.
        rows: how many rows they have in all.
        names: what inputs and labels are made of, for messages: ("x", "y").
        labelled: whether there are labels.
        classes: what each class is called, where the file says so: label k is classes[k].
        notes: what should be known of the rows, such as some that were never written.
        format: the name of its format.
        said: inputs and labels in words, and why these.
        columns: the inputs: names of columns of a file of columns, or of arrays; positions where there are no names.
        words: whether the labels are words.
        gaps: rows that lack an input; None where that shows only when they are read.
    """

    paths: tuple[str, ...]
    rows: int
    names: tuple[str, ...] = ()
    labelled: bool = True
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    format: str = ""
    said: str = ""
    columns: tuple[str | int, ...] = ()
    words: bool = False
    gaps: int | None = None

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[Arrays, Arrays | None]:
        """Rows `start` to `stop` of the whole: inputs, and labels or None.

        Dtypes and the shapes of rows are the same for every range, an empty one included.

        Args:
            start, stop: rows, counted over all files: 0 <= start <= stop <= `rows`.

        Raises:
            DataError: the files cannot be read, have changed since they were opened, or hold something else.
        """


class ConcatTable(Table):
    """Tables of one file each, one after the other."""

    def __init__(self, tables: Sequence[Table]):
        """Raises: DataError: inputs or labels of the tables have other dtypes, shapes of rows or classes."""
        self.tables = list(tables)
        self.paths = tuple(path for table in tables for path in table.paths)
        self.rows = sum(table.rows for table in tables)
        first_one = tables[0]
        self.names, self.labelled, self.classes = first_one.names, first_one.labelled, first_one.classes
        self.said, self.columns, self.words = first_one.said, first_one.columns, first_one.words
        self.notes = tuple(note for table in tables for note in table.notes)
        self._ends = np.cumsum([table.rows for table in tables])
        first = _columns(tables[0].read(0, 0))
        for table in self.tables[1:]:
            other = _columns(table.read(0, 0))
            if other != first:
                raise DataError(
                    f"{self.paths[0]} has {first}, and {table.paths[0]} has {other}: files that are read as one table "
                    "must have the same columns."
                )
            if table.classes != self.classes:
                raise DataError(
                    f"{self.paths[0]} has the classes {listed(self.classes)}, and {table.paths[0]} has "
                    f"{listed(table.classes)}: files that are read as one table must have the same."
                )

    def read(self, start: int, stop: int) -> tuple[Arrays, Arrays | None]:
        pieces = []
        for table, end in zip(self.tables, self._ends, strict=True):
            begin = int(end) - table.rows
            low, high = max(start, begin), min(stop, int(end))
            if low < high:
                pieces.append(table.read(low - begin, high - begin))
        if not pieces:
            return self.tables[0].read(0, 0)
        if len(pieces) == 1:
            return pieces[0]
        return join([x for x, _ in pieces]), join([y for _, y in pieces])


def rows_with_gaps(arrays: Arrays) -> int:
    """How many rows of inputs have a NaN."""
    several: Sequence[np.ndarray] = arrays if isinstance(arrays, tuple) else (arrays,)
    floats = [array for array in several if array.dtype.kind in "fc" and array.size]
    if not floats:
        return 0
    step = max(1, (1 << 24) // max(1, sum(array[:1].size for array in floats)))
    count = 0
    for low in range(0, len(floats[0]), step):
        parts = [np.isnan(array[low : low + step]) for array in floats]
        count += int(np.any([part.reshape(len(part), -1).any(axis=1) for part in parts], axis=0).sum())
    return count


def take_rows(arrays: Arrays | None, rows: Any) -> Arrays | None:
    """Some rows of inputs or labels, by a slice or by numbers.

    Args:
        rows: a slice, or integers of shape (n,).
    """
    if isinstance(arrays, tuple):
        return tuple(array[rows] for array in arrays)
    return None if arrays is None else arrays[rows]


def join(parts: list[Any]) -> Any:
    """Inputs or labels, one after the other; None where there are none."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))
    return np.concatenate(parts)


def _columns(read: tuple[Arrays, Arrays | None]) -> str:
    """What a table's rows look like, in words."""

    def one(arrays: Arrays) -> str:
        if arrays is None:
            return "none"
        if isinstance(arrays, tuple):
            return " and ".join(map(one, arrays))
        return f"{arrays.dtype.name} of shape {arrays.shape[1:]}"

    return f"inputs {one(read[0])}, labels {one(read[1])}"


class FileStamp:
    """A file as it was when it was opened: tells whether it has changed since."""

    def __init__(self, path: str):
        """Raises: DataError: the file is missing, is no file, is empty, or may not be read."""
        self.path = path
        try:
            if addresses.is_address(path):
                self._seen = addresses.look(path)
            elif stat.S_ISFIFO(os.stat(path).st_mode):  # to open it would wait for somebody who writes to it
                raise DataError(f"{path} is a pipe, and files are read more than once: write it to a file.")
            else:
                with open(path, "rb") as file:
                    self._seen = self._look(file.fileno())
        except OSError as error:
            raise unreadable(path, error) from None
        self.bytes = self._seen[0]
        if self.bytes == 0:
            raise DataError(f"{path} is empty.")

    @staticmethod
    def _look(file: Any) -> tuple[int, Any]:
        if isinstance(file, str) and addresses.is_address(file):
            return addresses.look(file)
        status = os.stat(file)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raises: DataError: the file has another size or time than when it was opened."""
        try:
            now = self._look(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if now != self._seen:
            raise DataError(f"{self.path} changed while it was read ({self._seen[0]} bytes before, {now[0]} now).")


def unreadable(path: str, error: OSError) -> DataError:
    """The system's refusal to open or read a file, as a DataError.

    Args:
        path: of the file.
        error: its type, or its `strerror`, gives the reason.
    """
    reasons = {
        FileNotFoundError: "there is no such file",
        PermissionError: "this user may not read it",
        IsADirectoryError: "it is a directory",
    }
    reason = reasons.get(type(error)) or error.strerror or str(error)
    return DataError(f"{path} cannot be read: {reason}.")


@contextlib.contextmanager
def all_or_none(ranks: World, what: str) -> Iterator[None]:
    """A block in which each rank works alone, and at whose end all know whether all succeeded.

    Args:
        ranks: who takes part; every one of them must come here.
        what: the purpose, see `World.barrier`.

    Raises:
        DataError: on every rank, the one that the lowest rank raised in the block, with its rank and host where the
            others had none.
        MissingPackage: in the same way.
    """
    failure: tuple[type[MatexError], str] | None = None
    try:
        yield
    except (DataError, MissingPackage) as error:
        failure = type(error), str(error)
    failures = ranks.allgather(failure, what)
    failed = [rank for rank, one in enumerate(failures) if one is not None]
    if not failed:
        return
    kind, text = failures[failed[0]]
    if len(failed) < ranks.size:
        text += f" (on {name_ranks(failed)}, host {', '.join(sorted({ranks.hosts[rank] for rank in failed}))})"
    raise kind(text)


def library(name: str, path: str) -> Any:
    """Import the library that a format is read with.

    Args:
        name: the module to import.
        path: of the file that needs it, for messages.

    Raises:
        MissingPackage: it is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage(
            f"{path} is read with {name}, which cannot be imported ({error}): pip install 'matex_tf[data]', or {name} "
            "alone."
        ) from None
