"""Rows of CSV text to arrays, by pandas' C engine; and what is wrong with a row, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.errors import DataError, quoted
from matex_tf.readers.formats.csv import wide as csv_wide
from matex_tf.readers.formats.csv.scan import QuoteScanner
from matex_tf.readers.tables.columns import ColumnSelection, Facts, Kind
from matex_tf.readers.tables.table import rows_with_gaps

#: What stands for a missing number; those that pandas knows.
MISSING = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
           "NA", "NULL", "NaN", "None", "n/a", "nan", "null")  # fmt: skip

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_NUMBER = re.compile(r"\s*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|infinity)\s*", re.IGNORECASE)


def is_missing(text: str) -> bool:
    """Whether a field stands for a missing number."""
    return text in MISSING or not text.strip()


def is_number(text: str) -> bool:
    """Whether a field is a number."""
    return _NUMBER.fullmatch(text) is not None


def _is_whole(text: str, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> bool:
    return _WHOLE.fullmatch(text) is not None and len(text) < 4000 and low <= int(text) <= high


class _Stream:
    """Bytes as a file that pandas reads as they are: io.BytesIO it would decode and encode again."""

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def read(self, count: int = -1) -> bytes:
        begin = self._at
        self._at = len(self._data) if count < 0 else min(len(self._data), begin + count)
        return self._data[begin : self._at]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._data.splitlines(keepends=True))


def frame(data: bytes, delimiter: str, count: int, **options: Any) -> Any:
    """A pandas frame of rows without a header, whose columns are called 0, 1, …"""
    import pandas

    return pandas.read_csv(
        _Stream(data),
        sep=delimiter,
        header=None,
        names=range(count),
        index_col=False,
        engine="c",
        low_memory=False,
        **options,
    )


def fields(rows: bytes, delimiter: str, count: int, path: str) -> list[list[str]]:
    """The fields of some rows of a file, as text.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        rows.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the first rows are not UTF-8 ({error.reason}, byte {error.start}).") from None
    if b"\0" in rows:
        raise DataError(f"{path}: the first rows have NUL bytes: this is not CSV text in UTF-8.")
    try:
        if count > csv_wide.MOST_COLUMNS:
            tokens = QuoteScanner(rows, delimiter.encode())
            wide = csv_wide.Fields(tokens, tokens.starts(), len(rows), count)
            texts: list[list[str]] = wide.read(range(count), dtype=str, na_filter=False).tolist()
            return texts
        read: list[list[str]] = frame(rows, delimiter, count, dtype=str, na_filter=False).to_numpy(object).tolist()
    except ValueError as error:
        raise DataError(f"{path}: the first rows are not CSV text ({error}).") from None
    return read


@dataclass
class Rows:
    """Some rows of one file, parsed.

    Attributes:
        x: the inputs, of shape (rows, columns).
        y: the label columns as pandas understood them by themselves: numbers, or Python's str.
        facts: about the label columns; rows counted from the first of these.
    """

    x: np.ndarray
    y: list[np.ndarray]
    facts: Facts


class Parser:
    """Makes arrays of text.

    Args:
        delimiter: between fields.
        count: fields of a row.
        chosen: the columns.
    """

    def __init__(self, delimiter: str, count: int, chosen: ColumnSelection):
        self.delimiter, self.count, self.chosen = delimiter, count, chosen
        dtype = chosen.dtype
        # pandas parses numbers as float64 and makes float32 of them; other sizes are made afterwards.
        self._dtype = dtype if dtype.kind in "iu" or dtype in (np.float32, np.float64) else np.dtype(np.float64)
        inputs = set(chosen.x)
        # A column that is asked for twice is parsed once as a number, and once more as text.
        self._as_text = len(inputs) + len(chosen.y) > len(chosen.needed)
        # With NumPy 1 pandas makes 44 of 300 where it is told uint8: short integers are cut to size here.
        wide = np.dtype(np.int64 if self._dtype.kind in "iu" and self._dtype != np.uint64 else self._dtype)
        self._given = {column: wide for column in inputs}

    def rows(self, tokens: QuoteScanner, starts: np.ndarray, first: int, stop: int, path: str, number: int) -> Rows:
        """Parse rows `first` to `stop` of a piece of text.

        Args:
            tokens: of the piece.
            starts: where its rows begin.
            path, number: the file, and which of its rows the first of these is, from 1; for messages.

        Raises:
            DataError: a row has too many or too few fields, has bytes that are no text, or a word where inputs are.
        """
        low = int(starts[first])
        high = int(starts[stop]) if stop < len(starts) else len(tokens.data)
        data = tokens.data[low:high]
        begins = starts[first:stop]

        def where(at: int) -> str:
            return f"{path}, data row {number + int(np.searchsorted(begins - low, at, side='right')) - 1}"

        self._check_text(data, where)
        self._check_counts(tokens, begins, high, path, number)
        if self.count > csv_wide.MOST_COLUMNS:
            return self._wide(csv_wide.Fields(tokens, begins, high, self.count), path, number)
        try:
            read = self._frame(data)
            self._check_sizes(read)
        except (ValueError, TypeError, OverflowError) as error:
            self._blame(data, path, number)
            raise DataError(f"{path}, data rows {number} to {number + len(begins) - 1}: {error}") from None
        if len(read) != len(begins):
            raise DataError(
                f"{path}, data rows {number} to {number + len(begins) - 1}: {len(read)} rows were understood."
            )
        if self._as_text:
            labels = self.texts(data)
        else:
            plain = [_plain(read.pop(column)) for column in self.chosen.y]
            texts: list[Any] = self.texts(data) if any(label is None for label in plain) else [None] * len(plain)
            labels = [text if label is None else label for label, text in zip(plain, texts, strict=True)]
        x = self._inputs(read)
        return Rows(x, labels, _facts(labels, self.chosen.y, x))

    def _wide(self, fields: csv_wide.Fields, path: str, number: int) -> Rows:
        """`rows` where there are very many columns."""
        labels = [np.asarray(column, object) for column in fields.read(self.chosen.y, dtype=str, na_filter=False).T]
        try:
            x = fields.read(self.chosen.x, dtype=next(iter(self._given.values())))
            limits = np.iinfo(self._dtype) if self._dtype.kind in "iu" else None
            if limits is not None and x.size and (x.min() < limits.min or x.max() > limits.max):
                raise OverflowError(f"a number is no {self._dtype}")
        except (ValueError, TypeError, OverflowError) as error:
            texts = fields.read(self.chosen.x, dtype=str, na_filter=False)
            for row, column in np.ndindex(texts.shape):
                text = str(texts[row, column])
                if not self._is_input(text):
                    raise self._no_number(path, number + row, self.chosen.x[column], text) from None
            raise DataError(f"{path}, data rows {number} to {number + len(texts) - 1}: {error}") from None
        with np.errstate(over="ignore"):
            x = x.astype(self.chosen.dtype, copy=False)
        return Rows(x, labels, _facts(labels, self.chosen.y, x))

    def _frame(self, data: bytes) -> Any:
        """The rows as a frame, whose inputs are numbers.

        pandas takes half as long again where it is told the dtype of every column. It is told only where it finds
        something else by itself, so that it takes or refuses each field as it must.
        """
        needed = self.chosen.needed
        if self._dtype.kind == "f":
            read = frame(data, self.delimiter, self.count, usecols=needed)
            kinds = read.dtypes
            if all(isinstance(kinds[i], np.dtype) and kinds[i].kind in "iuf" for i in self._given):
                return read
        return frame(data, self.delimiter, self.count, usecols=needed, dtype=self._given)

    def texts(self, data: bytes) -> list[np.ndarray]:
        """The label columns of rows, as Python's str."""
        columns = list(self.chosen.y)
        read = frame(data, self.delimiter, self.count, usecols=sorted(set(columns)), dtype=str, na_filter=False)
        return [read[column].to_numpy(object) for column in columns]

    def _check_sizes(self, read: Any) -> None:
        """Raises: OverflowError: a whole number of the inputs does not fit into their dtype."""
        shorter = [column for column, wide in self._given.items() if wide != self._dtype]
        if not shorter or not len(read):
            return
        values, limits = read[shorter].to_numpy(), np.iinfo(self._dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise OverflowError(f"a number is no {self._dtype}")

    def _inputs(self, read: Any) -> np.ndarray:
        columns = list(self.chosen.x)
        if list(read.columns) != columns:
            read = read[columns]
        # By way of float64 for integers too, as where pandas knows the dtype: a piece of whole numbers is no exception.
        values = read.to_numpy(np.float64 if self._dtype.kind == "f" else None)
        return np.ascontiguousarray(values, dtype=self.chosen.dtype)

    @staticmethod
    def _check_text(data: bytes, where: Any) -> None:
        nul = data.find(b"\0")
        if nul >= 0:
            raise DataError(f"{where(nul)} has a NUL byte: this is not CSV text in UTF-8, or the file is damaged.")
        if data.isascii():
            return
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where(error.start)} is not UTF-8 ({error.reason}: {data[error.start : error.end].hex(' ')})."
            ) from None

    def _check_counts(self, tokens: QuoteScanner, begins: np.ndarray, end: int, path: str, number: int) -> None:
        """pandas fills up short rows silently, and where columns are chosen cuts long ones."""
        if not len(tokens.toggles) and self.count <= 256:
            # Eight times as fast as to find each delimiter: sums modulo 256, and one sum of all that has to fit.
            low = int(begins[0])
            found = tokens.bytes[low:end] == tokens.delimiter
            sums = np.add.reduceat(found.view(np.uint8), begins - low, dtype=np.uint8)
            if (sums == self.count - 1).all() and np.count_nonzero(found) == len(begins) * (self.count - 1):
                return
        places = tokens.delimiters()
        bounds = np.searchsorted(places, np.append(begins, end))
        counts = np.diff(bounds)
        wrong = np.flatnonzero(counts != self.count - 1)
        if len(wrong):
            row = int(wrong[0])
            seen = int(counts[row]) + 1
            raise DataError(
                f"{path}, data row {number + row} has {seen} field{'s' * (seen > 1)}, and "
                f"{self.count} were expected (separated by {self.delimiter!r})."
            )

    def _blame(self, data: bytes, path: str, number: int) -> None:
        """Raises: DataError: naming the first input that is no number of the inputs' dtype."""
        columns = sorted(set(self.chosen.x))
        read = frame(data, self.delimiter, self.count, usecols=columns, dtype=str, na_filter=False)
        worst: tuple[int, int, str] | None = None
        for column in columns:
            texts = read[column].tolist()[: worst[0] if worst else None]
            for row, text in enumerate(texts):
                if not self._is_input(text):
                    worst = row, column, text
                    break
        if worst is not None:
            row, column, text = worst
            raise self._no_number(path, number + row, column, text)

    def _no_number(self, path: str, row: int, column: int, text: str) -> DataError:
        whole = self._dtype.kind in "iu"
        what = f"not of type {self._dtype}" if whole and (is_number(text) or is_missing(text)) else "not a number"
        return DataError(
            f"{path}, data row {row}: column {self.chosen.names[column]} has {quoted(text)}, which is {what}; "
            "inputs must be numbers (leave columns out with x=)."
        )

    def _is_input(self, text: str) -> bool:
        return self._fits(text) if self._dtype.kind in "iu" else text in MISSING or is_number(text)

    def _fits(self, text: str) -> bool:
        limits = np.iinfo(self._dtype)
        return _is_whole(text, limits.min, limits.max)


def _plain(column: Any) -> np.ndarray | None:
    """A label column of a frame as numbers, or as Python's str; None where its text must tell: something is missing."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "iufb":
        return None if column.hasnans else column.to_numpy(object)
    values = column.to_numpy()
    if values.dtype.kind == "f":
        lacks = np.isnan(values)
        there = values[~lacks]
        if lacks.any() and (there == np.floor(there)).all():
            return None
    return values


def _facts(labels: list[np.ndarray], columns: tuple[int, ...], x: np.ndarray) -> Facts:
    kind, missing, empty = Kind.INTEGER, None, None
    for column, values in zip(columns, labels, strict=True):
        if values.dtype.kind == "b":
            kind = Kind.WORDS  # "True" and "False"
        elif values.dtype.kind != "O":
            kind = max(kind, Kind.INTEGER if values.dtype == np.int64 else Kind.NUMBER)
        else:
            lacks = np.fromiter(map(is_missing, values), bool, len(values))
            there = values[~lacks]
            if all(map(is_number, there)):
                kind = max(kind, Kind.INTEGER if all(map(_is_whole, there)) else Kind.NUMBER)
            else:
                kind = Kind.WORDS
            places = np.flatnonzero(lacks)
            if len(places):
                missing = min(missing or (len(values), 0), (int(places[0]), column))
            nothing = next((row for row in places.tolist() if not values[row].strip()), None)
            if nothing is not None:
                empty = min(empty or (len(values), 0), (nothing, column))
    return Facts(kind, missing, empty, rows_with_gaps(x))


def as_kind(values: np.ndarray, kind: Kind) -> np.ndarray | None:
    """A label column as what the whole table has; None: its text is needed for that."""
    if kind is Kind.WORDS:
        return values if values.dtype.kind == "O" else None
    if values.dtype.kind == "O":
        number = int if kind is Kind.INTEGER else float
        values = np.array([np.nan if is_missing(text) else number(text) for text in values], kind.dtype)
    return values.astype(kind.dtype, copy=False)
