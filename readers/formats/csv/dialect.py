"""How a CSV file is written: what separates its fields, and whether its first row has names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matex_tf import settings
from matex_tf.errors import DataError, quoted
from matex_tf.readers.formats.csv.parse import fields, is_missing, is_number
from matex_tf.readers.formats.csv.scan import QuoteScanner, Read, whole_lines
from matex_tf.readers.tables.table import ReadOptions

#: What is looked for between fields where the script does not say; the first of equals is taken.
DELIMITERS = (",", ";", "\t", "|", " ")

_FIRST_BYTES = 16 << 10
_SAMPLE_ROWS = 20


@dataclass(frozen=True)
class Dialect:
    """Args: names: of the columns, None where the file has no header. count: fields of a row."""

    delimiter: str
    names: tuple[str, ...] | None
    count: int


def check_delimiter(delimiter: str | None) -> None:
    """Raises: DataError: it is more than one character, or one that cannot be a delimiter."""
    if delimiter is None:
        return
    if len(delimiter) != 1:
        raise DataError(
            f"the delimiter {quoted(delimiter)} is not one character: patterns and longer ones are not read."
        )
    if not delimiter.isascii() or delimiter in '"\r\n\0' or delimiter.isalnum() or delimiter in "+-.":
        raise DataError(f"{delimiter!r} cannot be a delimiter: it is part of fields, quotes or ends of rows.")


def find(read: Read, begin: int, size: int, wanted: ReadOptions, path: str) -> Dialect:
    """Find the dialect of a file from its first rows.

    Args:
        read: of the file's text, see `csv_scan.Read`; the file is number 0.
        begin, size: the text's first byte, and the one after its last.
        wanted: what the script says of it, and the names that it expects.

    Raises:
        DataError: the file has no row, or no text.
    """
    candidates: Sequence[str] = (wanted.delimiter,) if wanted.delimiter is not None else DELIMITERS
    text, records = _sample(read, begin, size, candidates, path)
    if not text.strip():
        raise DataError(f"{path} has no row.")
    candidates = [candidate for candidate in candidates if records[candidate]]
    if not candidates:
        raise DataError(f"{path}: a quoted field begins in the first row, and the file ends before its closing quote.")
    delimiter = max(candidates, key=lambda candidate: _fitness(records[candidate], candidate))
    count = records[delimiter][0][2]
    alike = [text[low:high] for low, high, fields_ in records[delimiter] if fields_ == count]
    rows = fields(b"".join(alike), delimiter, count, path)
    first = rows[0]
    if _has_header(rows, wanted):
        return Dialect(delimiter, tuple(first), len(first))
    return Dialect(delimiter, None, len(first))


def first_row(read: Read, file: int, begin: int, size: int, delimiter: str, path: str) -> list[str]:
    """The fields of a file's first row; none where it has no row.

    Args:
        read: of the text, see `scan.Read`.
        begin, size: the text's first byte, and the one after its last.
        path: of the file, for messages.
    """

    def this(_: int, low: int, high: int) -> bytes:
        return read(file, low, high)

    text, records = _sample(this, begin, size, (delimiter,), path, rows=1)
    if not records[delimiter]:
        return []
    low, high, count = records[delimiter][0]
    return fields(text[low:high], delimiter, count, path)[0]


def _sample(
    read: Read, begin: int, size: int, candidates: Sequence[str], path: str, rows: int = 2
) -> tuple[bytes, dict[str, list[tuple[int, int, int]]]]:
    """The first text of a file; and for each delimiter its whole rows there: first byte, last, number of fields."""
    count, most = _FIRST_BYTES, settings.current().csv_line_mb << 20
    while True:
        text = read(0, begin, min(begin + count, size))
        if begin == 0 and text[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{path} is UTF-16, and CSV files must be UTF-8: convert it (iconv -f utf-16 -t utf-8).")
        over = begin + count >= size
        if not over:
            text = text[: whole_lines(text)]
        found = {candidate: _records(text, candidate) for candidate in candidates}
        if over or max(map(len, found.values())) >= rows:
            return text, found
        if count > most * (rows if text else 1):
            raise too_long(
                f"{path} has a line or a row that begins in its first {begin + count} bytes and does not end"
            )
        count = min(4 * count, count + most)


def too_long(what: str) -> DataError:
    """The error for a line or a row above the limit. Args: what: of which file, and where."""
    most = settings.current().csv_line_mb
    return DataError(
        f"{what}: the most is {most} MB. If the file is whole, and is a table, give --csv-line-mb (or "
        "MATEX_CSV_LINE_MB)."
    )


def _records(text: bytes, delimiter: str) -> list[tuple[int, int, int]]:
    tokens = QuoteScanner(text, delimiter.encode())
    starts = tokens.starts()
    bounds = np.append(starts, len(text))
    counts = np.diff(np.searchsorted(tokens.delimiters(), bounds)) + 1
    whole = len(starts) - tokens.ends_inside
    rows = zip(starts.tolist(), bounds[1:].tolist(), counts.tolist(), strict=True)
    return list(rows)[: min(whole, _SAMPLE_ROWS)]


def _fitness(records: list[tuple[int, int, int]], delimiter: str) -> tuple[float, int]:
    """How well a delimiter divides: the share of rows with the usual number of fields, where that is more than one."""
    usual = Counter(count for _, _, count in records if count > 1).most_common(1)
    share = usual[0][1] / len(records) if usual else 0.0
    return share, -DELIMITERS.index(delimiter) if delimiter in DELIMITERS else 0


def _has_header(rows: list[list[str]], wanted: ReadOptions) -> bool:
    """Names that the script expects, or a word above a number."""
    if wanted.header is not None:
        return wanted.header
    for names in (wanted.x, wanted.y):
        listed = [names] if isinstance(names, str) else names if isinstance(names, (list, tuple)) else []
        if any(isinstance(name, str) for name in listed):
            return True
    first, rest = rows[0], rows[1:]
    words = [column for column, text in enumerate(first) if not is_missing(text) and not is_number(text)]
    if not rest:
        return bool(words)
    for column in words:
        below = next((row[column] for row in rest if not is_missing(row[column])), "")
        if is_number(below):
            return True
    return False
