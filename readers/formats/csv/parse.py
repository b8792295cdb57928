"""Rows of CSV text to arrays, by pyarrow's parser; and what is wrong with a row, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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

#: Text that pyarrow parses at a time, which has a cost for each column as well; and the most that it can.
_BLOCK_BYTES, _BLOCK_ROWS, _MOST_BYTES = 1 << 20, 1 << 10, (1 << 31) - 1

_NUMBER = re.compile(r"\s*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|infinity)\s*", re.IGNORECASE)


def is_missing(text: str) -> bool:
    """Whether a field stands for a missing number."""
    return text in MISSING or not text.strip()


def is_number(text: str) -> bool:
    """Whether a field is a number."""
    return _NUMBER.fullmatch(text) is not None


def columns_of(
    data: bytes,
    delimiter: str,
    count: int,
    types: Mapping[int, str],
    missing: Sequence[str] = MISSING,
    keep_blank: bool = False,
    longest: int = 0,
) -> dict[int, Any]:
    """Columns of rows without a header, as Arrow arrays in chunks.

    Args:
        data: whole rows, in UTF-8.
        delimiter: one character between fields.
        count: fields of each row.
        types: the columns to read, by position, and the Arrow type of each: "float64" or "string".
        missing: what stands for a missing number; it is null in a column of numbers, and text in one of strings.
        keep_blank: whether a blank line is a row, of one empty field; else it is no row.
        longest: bytes of the longest row, if it is known: blocks that stay in the caches are parsed faster.

    Raises:
        ValueError: a row has another number of fields, or a field is not of its type.
    """
    import pyarrow
    from pyarrow import csv

    blanks = b" \t".replace(delimiter.encode(), b"")
    if count == 1 and not keep_blank:
        data = b"\n".join(line for line in data.splitlines() if line.strip(blanks))
    size = min(len(data), max(_BLOCK_BYTES, longest * _BLOCK_ROWS)) if longest else len(data)
    read = csv.read_csv(
        pyarrow.BufferReader(data),
        csv.ReadOptions(
            use_threads=False, block_size=min(size + 1, _MOST_BYTES), column_names=list(map(str, range(count)))
        ),
        csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=not keep_blank,
            invalid_row_handler=lambda row: "error" if row.text.strip(blanks.decode()) else "skip",
        ),
        csv.ConvertOptions(
            column_types={str(column): kind for column, kind in types.items()},
            include_columns=list(map(str, types)),
            null_values=missing,
        ),
    )
    return {column: read.column(str(column)) for column in types}


def _check_text(data: bytes, where: Callable[[int], str]) -> None:
    """Raises: DataError: it has a NUL byte, or is not UTF-8. Args: where: the row of a byte, in words."""
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


def fields(rows: bytes, delimiter: str, count: int, path: str) -> list[list[str]]:
    """The fields of some rows of a file, as text.

    Args:
        rows: whole rows, of `count` fields each.

    Raises:
        DataError: it is not UTF-8, or has NUL bytes.
    """
    _check_text(rows, lambda at: f"{path}, in its first rows,")
    try:
        if count > csv_wide.MOST_COLUMNS:
            tokens = QuoteScanner(rows, delimiter.encode())
            wide = csv_wide.Fields(tokens, tokens.starts(), len(rows), count)
            texts: list[list[str]] = wide.read(range(count), "string").to_numpy(False).reshape(-1, count).tolist()
            return texts
        read = columns_of(rows, delimiter, count, dict.fromkeys(range(count), "string"))
    except ValueError as error:
        raise DataError(f"{path}: the first rows are not CSV text ({error}).") from None
    return [list(row) for row in zip(*(column.to_pylist() for column in read.values()), strict=True)]


class Parser:
    """Makes arrays of text.

    Args:
        delimiter: between fields.
        count: fields of a row.
        chosen: the columns.
    """

    def __init__(self, delimiter: str, count: int, chosen: ColumnSelection):
        self.delimiter, self.count, self.chosen = delimiter, count, chosen
        self._dtype = chosen.dtype
        # Few files need more than this: each field is compared with all of `missing`, and text is slower than integers.
        self._as(str(self._dtype) if self._dtype.kind in "iu" else "float64", MISSING[:1])

    def _as(self, kind: str, missing: Sequence[str]) -> None:
        """Parse inputs as this Arrow type, with these for missing numbers."""
        self._kind, self._missing = kind, missing
        self._types = dict.fromkeys(self.chosen.x, kind) | dict.fromkeys(self.chosen.y, "string")

    def rows(self, tokens: QuoteScanner, starts: np.ndarray, first: int, stop: int, path: str, number: int) -> Any:
        """Parse rows `first` to `stop` of a piece of text.

        Args:
            tokens: of the piece.
            starts: where its rows begin.
            path, number: the file, and which of its rows the first of these is, from 1; for messages.

        Returns:
            The inputs, of shape (rows, columns); and the text of each label column, an Arrow array.

        Raises:
            DataError: a row has too many or too few fields, has bytes that are no text, or a word where inputs are.
        """
        low = int(starts[first])
        high = int(starts[stop]) if stop < len(starts) else len(tokens.data)
        data = tokens.data[low:high]
        begins = starts[first:stop]

        def where(at: int) -> str:
            return f"{path}, data row {number + int(np.searchsorted(begins - low, at, side='right')) - 1}"

        _check_text(data, where)
        if self._kind != "float64" and (b"0x" in data or b"0X" in data):
            self._as("string", self._missing)  # pyarrow takes hexadecimal numbers for integers
        x = np.empty((len(begins), len(self.chosen.x)), self._dtype)
        wide = None
        if self.count > csv_wide.MOST_COLUMNS:
            self._check_counts(tokens, begins, high, path, number)
            wide = csv_wide.Fields(tokens, begins, high, self.count)
        try:
            if wide:
                x[:] = _inputs(wide.read(self.chosen.x, self._kind, self._missing), self._dtype).reshape(x.shape)
                labels = [wide.read([column], "string") for column in self.chosen.y]
            else:
                longest = int(np.diff(begins, append=high).max())
                columns = columns_of(data, self.delimiter, self.count, self._types, self._missing, longest=longest)
                at = 0
                for chunks in zip(*(columns[column].iterchunks() for column in self.chosen.x), strict=True):
                    rows = slice(at, at := at + len(chunks[0]))
                    for place, chunk in enumerate(chunks):
                        x[rows, place] = _inputs(chunk, self._dtype)
                if at != len(x):
                    raise ValueError(f"{at} rows were understood")
                labels = [columns[column].combine_chunks() for column in self.chosen.y]
        except ValueError as error:
            if self._missing != MISSING:
                self._as("string" if self._dtype.kind in "iu" else "float64", MISSING)  # for "+1" and "1.0"
                return self.rows(tokens, starts, first, stop, path, number)
            self._check_counts(tokens, begins, high, path, number)
            if wide:
                texts = wide.read(self.chosen.x, "string").to_numpy(False).reshape(x.shape)
            else:
                columns = columns_of(data, self.delimiter, self.count, dict.fromkeys(self.chosen.x, "string"))
                texts = zip(*(columns[column].to_pylist() for column in self.chosen.x), strict=True)
            self._blame(texts, path, number)
            raise DataError(f"{path}, data rows {number} to {number + len(begins) - 1}: {error}") from None
        return x, labels

    def _check_counts(self, tokens: QuoteScanner, begins: np.ndarray, end: int, path: str, number: int) -> None:
        counts = np.diff(np.searchsorted(tokens.delimiters(), np.append(begins, end)))
        wrong = np.flatnonzero(counts != self.count - 1)
        if len(wrong):
            row = int(wrong[0])
            seen = int(counts[row]) + 1
            raise DataError(
                f"{path}, data row {number + row} has {seen} field{'s' * (seen > 1)}, and "
                f"{self.count} were expected (separated by {self.delimiter!r})."
            )

    def _blame(self, texts: Iterable[Iterable[str]], path: str, number: int) -> None:
        """Raises: DataError: naming the first input that is no number of the inputs' dtype."""
        for row, inputs in enumerate(texts, number):
            for column, text in zip(self.chosen.x, inputs, strict=True):
                if self._is_input(text):
                    continue
                whole = self._dtype.kind in "iu" and (is_number(text) or is_missing(text))
                what = f"not of type {self._dtype}" if whole else "not a number"
                raise DataError(
                    f"{path}, data row {row}: column {self.chosen.names[column]} has {quoted(text)}, which is {what}; "
                    "inputs must be numbers (leave columns out with x=)."
                )

    def _is_input(self, text: str) -> bool:
        if self._dtype.kind == "f":
            return text in MISSING or is_number(text)
        limits = np.iinfo(self._dtype)
        return is_number(text) and float(text).is_integer() and limits.min <= float(text) <= limits.max


def _inputs(values: Any, dtype: np.dtype) -> np.ndarray:
    """A column of inputs. Raises: ValueError: one is not of its dtype."""
    if values.type == "string":
        try:
            values = _numbers(values, dtype)
        except ValueError:
            values = _numbers(values, np.dtype(np.float64)).cast(str(dtype))  # 1.0 is a whole number here
    if values.null_count and dtype.kind in "iu":
        raise ValueError(f"a number is missing, and the inputs are {dtype}")
    with np.errstate(over="ignore"):
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype, copy=False)


def _numbers(texts: Any, dtype: np.dtype) -> Any:
    """Text as numbers: an Arrow array of float64, or of an integer dtype, with null for what is missing.

    Raises:
        ValueError: a text is no such number.
    """
    from pyarrow import compute

    try:
        floats = _cast(texts, "float64")  # which also refuses hexadecimal numbers, as integers may be
    except ValueError:
        floats = None
    if floats is None or compute.any(compute.is_nan(floats)).as_py():
        texts = compute.if_else(_missing(texts), None, compute.utf8_trim_whitespace(texts))
        floats = _cast(texts, "float64")
    if dtype.kind == "f":
        return floats
    return _cast(compute.utf8_ltrim(texts, "+"), str(dtype))


def _cast(texts: Any, kind: str) -> Any:
    """Text as numbers; a few first, since a text that is none takes pyarrow twenty times as long as one that is."""
    texts[:16].cast(kind)
    return texts.cast(kind)


def _missing(texts: Any, among: Sequence[str] = MISSING) -> Any:
    """For each text, whether it stands for a missing number, as `is_missing`."""
    import pyarrow
    from pyarrow import compute

    blank = compute.equal(compute.utf8_trim_whitespace(texts), "")
    return compute.or_(blank, compute.is_in(texts, pyarrow.array(among, "string")))


def facts(labels: Sequence[Any], columns: tuple[int, ...], x: np.ndarray, start: int) -> Facts:
    """What is seen of the label columns of some rows.

    Args:
        labels, x: what `Parser.rows` returns.
        columns: which columns the labels are.
        start: the number of the first row.
    """
    kind = Kind.INTEGER
    missing: list[tuple[int, int]] = []
    empty: list[tuple[int, int]] = []
    for column, texts in zip(columns, labels, strict=True):
        own, lacks = _kind(texts)
        kind = max(kind, own)
        if lacks:
            coded = texts.dictionary_encode()
            for found, among in ((missing, MISSING), (empty, ("",))):
                row = _missing(coded.dictionary, among).take(coded.indices).index(True).as_py()
                found += [(start + row, column)] if row >= 0 else []
    return Facts(kind, min(missing, default=None), min(empty, default=None), rows_with_gaps(x))


def _kind(texts: Any) -> tuple[Kind, bool]:
    """What all texts of a column are; and whether some may be missing."""
    for kind in (Kind.INTEGER, Kind.NUMBER):
        try:
            return kind, _numbers(texts, kind.dtype).null_count > 0
        except ValueError:
            continue
    return Kind.WORDS, True


def as_kind(texts: Any, kind: Kind) -> np.ndarray:
    """A label column as what the whole table has. Args: texts: an Arrow array of strings."""
    if kind is not Kind.WORDS:
        return _inputs(_numbers(texts, kind.dtype), kind.dtype)
    coded = texts.dictionary_encode()  # rows of one word share a str
    words: np.ndarray = coded.dictionary.to_numpy(zero_copy_only=False)
    return words[coded.indices.to_numpy()]
