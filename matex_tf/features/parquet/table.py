"""Parquet files as a table, by pyarrow: of the row groups that overlap some rows, the columns that are wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, listed, quoted, shortened
from matex_tf.readers.places import addresses
from matex_tf.readers.safety import read_watch
from matex_tf.readers.safety.limits import room
from matex_tf.readers.tables.arrays import data_errors
from matex_tf.readers.tables.columns import ColumnSelection, Kind, choose
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table, all_or_none, library

#: Rows that are decoded at a time where a row group has more: pyarrow's copy and the arrays exist at once.
BATCH_ROWS = 1 << 16


class ParquetTable(Table):
    """Rows of Parquet files. Inputs are one array of shape (rows, columns), labels one of (rows,) or (rows, columns).

    What labels are is what the files say of their columns: int64 for integers (and booleans), float32 for numbers,
    Python's str for strings.
    """

    names = ("x", "y")

    def __init__(self, paths: Sequence[str], wanted: ReadOptions):
        """Raises: DataError: a file cannot be read, or has other columns than are wanted or than the first file."""
        self.paths = tuple(paths)
        self._arrow = library("pyarrow", paths[0])
        self._parquet = library("pyarrow.parquet", paths[0])
        self._watched = [FileStamp(path) for path in paths]
        schemas: list[Any] = []
        self._metadata: list[Any] = []  # of each file, which need not be read again
        self._groups: list[tuple[int, int, int]] = []  # file, group in the file, rows
        self._before: list[int] = []  # rows of the whole before each file
        for file in range(len(paths)):
            with self._opened(file) as opened:
                schemas.append(opened.schema_arrow)
                self._metadata.append(opened.metadata)
                counts = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
                if min(counts, default=0) < 0 or sum(counts) != opened.metadata.num_rows:
                    raise DataError(
                        f"{paths[file]} is damaged: its row groups have {sum(counts)} rows, and the file "
                        f"{opened.metadata.num_rows}."
                    )
            self._before.append(sum(rows for _, _, rows in self._groups))
            self._groups += [(file, group, rows) for group, rows in enumerate(counts)]
        self._ends = np.cumsum([rows for _, _, rows in self._groups], dtype=np.int64)
        self.rows = int(self._ends[-1]) if self._groups else 0
        if self.rows == 0:
            raise DataError(f"{paths[0]} has no rows.")
        names = tuple(schemas[0].names)
        self._chosen: ColumnSelection = choose(names, len(names), wanted, paths[0], _index_of(schemas[0]))
        self._columns = [names[column] for column in self._chosen.needed]
        self.labelled = bool(self._chosen.y)
        self.kind = Kind.INTEGER
        for path, schema in zip(paths, schemas, strict=True):
            if tuple(schema.names) != names:
                raise DataError(
                    f"{path} has the columns {listed(schema.names)}, and {paths[0]} has {listed(names)}: files "
                    "that are read as one table must have the same."
                )
            kinds = {column: self._kind(schema.field(column), path) for column in self._chosen.needed}
            for column in self._chosen.x:
                if kinds[column] is Kind.WORDS:
                    raise DataError(
                        f"{path}: column {quoted(names[column])} has words, and inputs must be numbers (leave "
                        "columns out with x=)."
                    )
            for column in self._chosen.y:
                self.kind = max(self.kind, kinds[column])
        self.said, self.columns, self.words = self._chosen.said, self._chosen.columns, self.kind is Kind.WORDS

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        start, stop = max(0, start), min(stop, self.rows)
        count = max(0, stop - start)
        x = room(self.paths[0], count, (len(self._chosen.x),), self._chosen.dtype)
        labels = [np.empty(count, self.kind.dtype) for _ in self._chosen.y]
        at = 0
        for begin, batch in self._batches(start, stop):
            rows = slice(at, at + batch.num_rows)
            for position, column in enumerate(self._chosen.x):
                with np.errstate(over="ignore"):  # what is too large for the dtype is infinite, as CSV has it
                    x[rows, position] = self._inputs(batch, column, begin)
            for part, column in zip(labels, self._chosen.y, strict=True):
                part[rows] = self._labels(batch, column, begin)
            at = rows.stop
        if at != count:
            raise DataError(f"{self.paths[0]}: {at} of {count} rows could be read: the file is damaged.")
        return x, self._chosen.labels(labels, count, self.kind)

    def _batches(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Rows in order, with the row at which each batch begins."""
        for (file, group, rows), end in zip(self._groups, self._ends.tolist(), strict=True):
            at = end - rows
            if end <= start or at >= stop or rows == 0:
                continue
            with self._opened(file) as opened:
                for batch in opened.iter_batches(
                    BATCH_ROWS, row_groups=[group], columns=self._columns, use_threads=False
                ):
                    read_watch.goes_on()
                    low, high = max(start - at, 0), min(stop - at, batch.num_rows)
                    if low < high:
                        yield at + low, batch.slice(low, high - low)
                    at += batch.num_rows
                    if at >= stop:
                        break
                else:
                    if at != end:
                        raise DataError(f"{self.paths[file]} has other rows than it says: it is damaged.")

    def _opened(self, file: int) -> Any:
        metadata = self._metadata[file] if file < len(self._metadata) else None
        return _opened(self._parquet, self._watched[file], metadata)

    def _inputs(self, batch: Any, column: int, begin: int) -> np.ndarray:
        values = batch.column(self._chosen.place[column])
        if values.null_count and self._chosen.dtype.kind in "iu":
            raise self._error(column, begin, values, f"has no value, and the inputs are {self._chosen.dtype}")
        kind = "int64" if self._chosen.dtype.kind in "iu" else "float64"
        return self._cast(values, column, begin, kind)

    def _labels(self, batch: Any, column: int, begin: int) -> np.ndarray:
        values = batch.column(self._chosen.place[column])
        if self.kind is Kind.NUMBER:
            return self._cast(values, column, begin, "float64")
        if values.null_count:
            others = "words" if self.kind is Kind.WORDS else "integers"
            raise self._error(column, begin, values, f"has no label, and the others are {others}")
        if self.kind is Kind.INTEGER:
            return self._cast(values, column, begin, "int64")
        words: np.ndarray = self._cast(values, column, begin, "string")
        return words

    def _cast(self, values: Any, column: int, begin: int, to: str) -> np.ndarray:
        """A column as a numpy array; missing numbers are NaN."""
        try:
            cast = values.cast(to)
            if to == "string":
                cast.validate(full=True)  # UTF-8
            array: np.ndarray = cast.to_numpy(zero_copy_only=False)
        except (self._arrow.ArrowException, ValueError, NotImplementedError) as error:
            raise DataError(f"{self._place(column, begin)} cannot become {to} ({error}).") from None
        kind = self._chosen.dtype
        if kind.kind in "iu" and to == "int64" and column in self._chosen.x and len(array):
            limits = np.iinfo(kind)
            if array.min() < limits.min or array.max() > limits.max:
                raise DataError(f"{self._place(column, begin)} has numbers that are no {kind}.")
        return array

    def _error(self, column: int, begin: int, values: Any, what: str) -> DataError:
        first = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        return DataError(f"{self._place(column, begin + first)} {what}.")

    def _place(self, column: int, row: int) -> str:
        file = int(np.searchsorted(self._before, row, side="right")) - 1
        while file + 1 < len(self._before) and self._before[file + 1] == self._before[file]:
            file += 1
        return f"{self.paths[file]}, data row {row - self._before[file] + 1}: column {self._chosen.names[column]}"

    def _kind(self, field: Any, path: str) -> Kind:
        types = self._arrow.types
        kind = field.type
        if types.is_dictionary(kind):
            kind = kind.value_type
        if types.is_integer(kind) or types.is_boolean(kind):
            return Kind.INTEGER
        if types.is_floating(kind) or types.is_decimal(kind):
            return Kind.NUMBER
        if types.is_string(kind) or types.is_large_string(kind):
            return Kind.WORDS
        raise DataError(
            f"{path}: column {quoted(field.name)} is {shortened(str(field.type))}: it must be of numbers or of words."
        )


def _index_of(schema: Any) -> frozenset[str]:
    """The columns in which pandas, or Dask, has put the numbers or names of rows."""
    try:
        said = (schema.pandas_metadata or {}).get("index_columns", [])
        return frozenset(name for name in said if isinstance(name, str)) if isinstance(said, list) else frozenset()
    except (ValueError, AttributeError):  # what others have written there is no closed list
        return frozenset()


@contextlib.contextmanager
def _opened(parquet: Any, watched: FileStamp, metadata: Any) -> Iterator[Any]:
    """A Parquet file while it is read from; what pyarrow raises becomes a DataError."""
    watched.check()
    with data_errors(watched.path, "read as Parquet", [watched]):
        far = addresses.is_address(watched.path)  # where requests are few if neighbours are read together
        source = addresses.open(watched.path) if far else watched.path
        file = parquet.ParquetFile(source, metadata=metadata, page_checksum_verification=True, pre_buffer=far)
        try:
            yield file
        finally:
            file.close()
    watched.check()


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> ParquetTable:
    """Open Parquet files as one table. Every rank calls it with the same arguments.

    Args:
        paths: the files, all with the same columns.
        wanted: see `ReadOptions`, and `columns.choose` for what is found where it says nothing. The index of a data
            frame is taken only where it is named, as pandas has it.
        ranks: who reads.

    Raises:
        DataError: on every rank: a file cannot be read or is damaged, has no rows, or has no such column.
    """
    table: ParquetTable | None = None
    with all_or_none(ranks, "open Parquet files"):
        table = ParquetTable(paths, wanted)
    assert table is not None
    return table


def guess_can_open(path: str, head: bytes) -> bool:
    """Whether it begins as Parquet does."""
    return head.startswith(b"PAR1")


FORMAT = Format("parquet", guess_can_open, open)
