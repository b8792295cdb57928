"""Files that hold named arrays (HDF5, NetCDF, NumPy, idx): what their readers share.

A format gives an `ArrayFile`: the columns of one file, and a way to read a range of rows of some of them. From there
on all formats are alike: which columns are inputs and labels, rows that must match, dtypes, what an error says.

A file is opened anew for every read and closed at its end. An open HDF5 or NetCDF handle does not survive a fork
(the workers of a PyDataset), must not be used by two threads at once (the NetCDF library), and hides that the
file was replaced; to open one takes a millisecond, and a read is best a few megabytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, MatexError, listed, shortened
from matex_tf.readers.safety import read_watch
from matex_tf.readers.safety.hdf5_storage import Storage
from matex_tf.readers.safety.limits import most_claimed, room
from matex_tf.readers.tables import input_label_names
from matex_tf.readers.tables.table import Arrays, ConcatTable, FileStamp, ReadOptions, Table, all_or_none
from matex_tf.readers.tables.values import put

#: What is read at a time, where what was read is converted or copied into place.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Column:
    """An array in a file, its first axis over rows.

    Attributes:
        name: with "/" between groups.
        rows: its length.
        shape: of one row.
        dtype: that its rows are read in, in the machine's byte order; text is "U" of some length, or object (of str).
        step: rows that are stored together (chunked); reads that end on a multiple of it unpack nothing twice.
        refused: why it can be neither inputs nor labels; empty where it can.
        auxiliary: whether it is only taken when it is named (a coordinate).
    """

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype
    step: int = 1
    refused: str = ""
    auxiliary: bool = False

    @property
    def row_bytes(self) -> int:
        """Of a row in memory, at least one."""
        return max(1, self.dtype.itemsize * int(np.prod(self.shape, dtype=object)))

    def as_label(self) -> Column:
        """The column as labels are read."""
        return self

    def as_input(self, wanted: np.dtype) -> Column:
        """The column as inputs of a dtype are read that somebody asks for."""
        return self

    def but(self, **changes: Any) -> Column:
        """A copy of the column, with other attributes."""
        return dataclasses.replace(self, **changes)


class ArrayFile(ABC):
    """One file of named arrays.

    Attributes:
        path: where it is.
        kind: what the format calls an array.
        watched: the file, or the files, as they were when they were opened.
        sources: other files that have rows of it, in the same way.
        columns: by name.
        notes: what should be known of it.
        unpacked: bytes that its columns are known to make, where files have fewer.
        only: the names of inputs and labels where the format knows them, so that nothing is searched.
    """

    path: str
    kind: str = "array"
    columns: dict[str, Column]
    only: tuple[str, str | None] | None = None

    def __init__(self, watched: Sequence[FileStamp]):
        self.watched = tuple(watched)
        self.unpacked = 0
        self.sources: tuple[FileStamp, ...] = ()
        self.notes: tuple[str, ...] = ()

    @property
    def everything(self) -> tuple[FileStamp, ...]:
        """All files that have rows of it."""
        return self.watched + self.sources

    def check(self, names: Sequence[str]) -> None:  # noqa: B027
        """See that the rows of some columns are all there, which are then read.

        Raises:
            DataError: they are not: a library would make them up.
        """

    def take_note(self, name: str, storage: Storage) -> None:
        """Take what is known of where a column is stored.

        Args:
            name: of the column.
            storage: of which the note becomes one of the table, and the files are watched.

        Raises:
            DataError: its rows are not all there.
        """
        if storage.fault:
            raise DataError(f"{self.path}: {self.kind} {shortened(name)} {storage.fault}.")
        known = {file.path for file in self.everything}
        self.sources += tuple(FileStamp(path) for path in sorted(storage.files - known))
        if storage.note:
            self.notes += (f"{self.kind} {shortened(name)}: {storage.note}",)

    @abstractmethod
    def fill(self, columns: Sequence[Column], out: Sequence[np.ndarray], start: int, stop: int) -> None:
        """Read rows `start` to `stop` of some columns into arrays of `stop - start` rows, casting to their dtypes.

        May raise anything: what it raises becomes a DataError.

        Args:
            out: one array for each column, of shape (stop - start, *column.shape).
            start, stop: rows of this file.
        """


def pieces(column: Column, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges of bounded size that make up a range of rows, ending where chunks end.

    Args:
        column: whose chunks are not split: a chunk is unpacked as a whole.
        start, stop: rows.
    """
    step = min(max(1, column.step), max(1, column.rows))
    rows = max(step, PIECE_BYTES // column.row_bytes // step * step)
    while start < stop:
        end = min(stop, (start + rows) // step * step if step > 1 else start + rows)
        read_watch.goes_on()
        yield start, end
        start = end


def fill_each(
    columns: Sequence[Column],
    out: Sequence[np.ndarray],
    start: int,
    stop: int,
    read: Callable[[Column, int, int], np.ndarray],
) -> None:
    """`ArrayFile.fill` for a format in which columns do not share what is read.

    Args:
        columns, out, start, stop: see `ArrayFile.fill`.
        read: (column, low, high) gives these rows of a column, of any dtype that can be cast.
    """
    for column, array in zip(columns, out, strict=True):
        for low, high in pieces(column, start, stop):
            got = read(column, low, high)
            if got.shape != array[low - start : high - start].shape:
                raise DataError(
                    f"{column.name}: rows {low} to {high} have the shape {got.shape}, where "
                    f"{(high - low, *column.shape)} was expected."
                )
            put(array[low - start : high - start], got, column.name, low)


@contextlib.contextmanager
def data_errors(path: str, doing: str, files: Sequence[FileStamp] = ()) -> Iterator[None]:
    """A block of calls to a library, whose every exception becomes a DataError, and which is given up if it never ends.

    What a library raises on a damaged file is no closed list: KeyError, ValueError, OverflowError, MemoryError and
    RecursionError have all been seen. Nothing but calls to it belongs in the block. A file that has changed is
    reported as that.

    Args:
        path: the file.
        doing: what is done, in words that fit after "cannot be" and "is being": "read as HDF5".
        files: that may have changed.
    """
    try:
        with read_watch.watched(path, doing):
            yield
    except MatexError:
        raise
    except Exception as error:
        for file in files:
            file.check()
        text = " ".join((str(error)[:5000] or type(error).__name__).split())
        raise DataError(f"{path} cannot be {doing}: {shortened(text.rstrip('.'), 300)}.") from None


class ArrayTable(Table):
    """The rows of one file of named arrays."""

    def __init__(self, file: ArrayFile, wanted: ReadOptions):
        """Raises: DataError: columns are not there, cannot be used, or differ in length."""
        self.file, self.paths = file, tuple(watched.path for watched in file.watched) or (file.path,)
        columns = file.columns
        if file.only:
            inputs, several, labels = [file.only[0]], False, file.only[1]
        else:
            usable = {
                name: not column.auxiliary
                and (not column.refused or name.rpartition("/")[2].lower() in input_label_names.USUAL)
                for name, column in columns.items()
            }
            inputs, several, labels = input_label_names.choose(
                file.path, file.kind, columns, wanted.x, wanted.y, usable
            )
        self.names = (*inputs, *([labels] if labels is not None else []))
        for name in self.names:
            if columns[name].refused:
                raise DataError(f"{file.path}: {file.kind} {name} {columns[name].refused}.")
        self.labelled = labels is not None
        self.columns = tuple(inputs)
        self.words = labels is not None and columns[labels].dtype.kind in "UO"
        self.said = _said(columns, inputs, labels, wanted)
        self._several = several
        self._columns = [
            columns[name] if wanted.dtype is None else columns[name].as_input(wanted.dtype) for name in inputs
        ]
        if labels is not None:
            self._columns.append(columns[labels].as_label())
        self.rows = self._columns[0].rows
        for column in self._columns[1:]:
            if column.rows != self.rows:
                raise DataError(
                    f"{file.path}: {inputs[0]} has {self.rows} rows and {column.name} has {column.rows}: they must "
                    "have the same number."
                )
        if self.rows == 0:
            raise DataError(f"{file.path}: {file.kind} {inputs[0]} has no rows.")
        self._dtypes = [
            _cast(file, column, wanted.dtype if position < len(inputs) else None)
            for position, column in enumerate(self._columns)
        ]
        file.check(self.names)
        self.notes = file.notes
        length = max(file.unpacked, sum(watched.bytes for watched in file.everything))
        for column in self._columns:
            check_plausible(file.path, file.kind, column, length)

    def read(self, start: int, stop: int) -> tuple[Arrays, Arrays | None]:
        file, pairs = self.file, zip(self._columns, self._dtypes, strict=True)
        if not 0 <= start <= stop <= self.rows:
            raise DataError(f"{file.path} has {self.rows} rows: there are no rows {start} to {stop}.")
        with data_errors(file.path, f"read (rows {start} to {stop})", file.everything):
            arrays = [room(file.path, stop - start, column.shape, dtype) for column, dtype in pairs]
            if start < stop:
                file.fill(self._columns, arrays, start, stop)
        for watched in file.everything:
            watched.check()
        labels = arrays.pop() if self.labelled else None
        return tuple(arrays) if self._several else arrays[0], labels


def check_plausible(path: str, kind: str, column: Column, length: int) -> None:
    """Refuse a column that is larger than its file can hold, however well it is packed.

    Args:
        path, kind: of the file, and what its format calls a column, for messages.
        length: bytes of the file.

    Raises:
        DataError: it is larger.
    """
    promised = column.rows * column.row_bytes
    if promised > most_claimed(length):
        raise DataError(
            f"{path} is damaged: {kind} {column.name} would have {column.rows} rows of {column.row_bytes} bytes, and "
            f"the file has {length} bytes."
        )


def _said(columns: dict[str, Column], inputs: Sequence[str], labels: str | None, wanted: ReadOptions) -> str:
    """Inputs and labels in words."""

    def one(name: str) -> str:
        shape = " x ".join(map(str, columns[name].shape)) or "one value"
        return f"{shortened(name)} ({shape} a row, {_words(columns[name].dtype)})"

    how = "by its name" if wanted.x is None else "as x= says"
    x = f"input{'s' * (len(inputs) > 1)} {listed(map(one, inputs))} {how}"
    if labels is None:
        return f"{x}, no labels ({'y=False' if wanted.y is False else 'none was found; y= names them'})"
    return f"{x}, labels {one(labels)} {'by its name' if wanted.y is None else 'as y= says'}"


def _cast(file: ArrayFile, column: Column, wanted: np.dtype | None) -> np.dtype:
    """The dtype in which a column is handed out."""
    if wanted is None:
        return column.dtype
    wanted = np.dtype(wanted)
    numbers = column.dtype.kind in "biuf" or (column.dtype.kind == "c" and wanted.kind == "c")
    if not numbers and wanted != column.dtype:
        raise DataError(
            f"{file.path}: {file.kind} {column.name} is {_words(column.dtype)}, and cannot become {wanted.name}."
        )
    return wanted


def _words(dtype: np.dtype) -> str:
    return "text" if dtype.kind in "UO" else dtype.name


def open_each(
    paths: Sequence[str],
    wanted: ReadOptions,
    ranks: World,
    what: str,
    open_one: Callable[[str, ReadOptions], Table],
    each: Sequence[ReadOptions] | None = None,
) -> Table:
    """Open every file on every rank, as one table.

    Args:
        paths, wanted, ranks: as a format's `open` got them.
        what: the purpose, see `all_or_none`.
        open_one: opens one file; raises DataError.
        each: what is wanted of each file, where that differs.
    """
    tables: list[Table] = []
    with all_or_none(ranks, what):
        if not paths:
            raise DataError("no file was named.")
        for path, one in zip(paths, each or [wanted] * len(paths), strict=True):
            tables.append(open_one(path, one))
        if len(tables) > 1:
            tables = [ConcatTable(tables)]
    return tables[0]
