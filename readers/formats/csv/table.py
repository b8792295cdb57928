"""CSV files as a table: each rank finds the rows of its part of the bytes, and reads its part of the rows.

The ranks divide the bytes of all files, and each reads its part once. It finds where rows begin (`csv_scan`), keeps the
text, and hears from the others how many rows came before. Then it parses the rows that are its own:
`row_partition.span` of all, which begin and end near where its bytes do; what is missing there is read besides. Arrays
are kept until they are asked for, so the kind of the labels is known before, and what is wrong with a row is found on
opening.

A gzip file is read and unpacked once, by one rank, which passes the others their parts on. Other rows of it than those
a rank has been passed can still be read, but slowly: that rank unpacks the file itself, from its start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core.row_partition import span
from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted
from matex_tf.readers.formats.csv import dialect as csv_dialect
from matex_tf.readers.formats.csv import scan as csv_scan
from matex_tf.readers.formats.csv.dialect import Dialect
from matex_tf.readers.formats.csv.parse import Parser, as_kind, facts
from matex_tf.readers.formats.csv.scan import INDEX_ENTRIES, STEP_BYTES, Index, Part, Piece, QuoteScanner
from matex_tf.readers.formats.csv.source import KEEP_BYTES, Source
from matex_tf.readers.safety.limits import room
from matex_tf.readers.tables import packed
from matex_tf.readers.tables.columns import ColumnSelection, Facts, Kind, agree, choose
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import ReadOptions, Table, all_or_none, library

#: Text that is parsed at a time: its arrays and pyarrow's copies of them exist at once.
PIECE_BYTES = 8 << 20

_PASS_BYTES = 16 << 20


@dataclass(eq=False)
class _Kept:
    """Rows `start` to `stop` that were parsed on opening; labels are text, in Arrow arrays, until all are known."""

    start: int
    stop: int
    x: np.ndarray
    y: list[Any]


class CsvTable(Table):
    """Rows of CSV files. Inputs are one array of shape (rows, columns), labels one of (rows,) or (rows, columns)."""

    names = ("x", "y")

    def __init__(self, source: Source, index: Index, dialect: Dialect, chosen: ColumnSelection):
        self.paths = tuple(source.paths)
        self.rows = index.rows
        self.labelled = bool(chosen.y)
        self.kind = Kind.INTEGER
        self.said, self.columns = chosen.said, chosen.columns
        self._source, self._index, self._chosen = source, index, chosen
        self._delimiter = dialect.delimiter.encode()
        self._parser = Parser(dialect.delimiter, dialect.count, chosen)
        self._kept: list[_Kept] = []

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        start, stop = max(0, start), min(stop, self.rows)
        count = max(0, stop - start)
        first = self._kept[0] if self._kept else None
        if first is not None and count and (first.start, first.stop) == (start, stop):
            self._kept.clear()
            return first.x, self._chosen.labels(first.y, count, self.kind)
        x = room(self.paths[0], count, (len(self._chosen.x),), self._chosen.dtype)
        columns = [np.empty(count, self.kind.dtype) for _ in self._chosen.y]
        for piece in self._pieces(start, stop):
            rows = slice(piece.start - start, piece.stop - start)
            x[rows] = piece.x
            for column, part in zip(columns, piece.y, strict=True):
                column[rows] = part
        return x, self._chosen.labels(columns, count, self.kind)

    def _pieces(self, start: int, stop: int) -> Iterator[_Kept]:
        """The rows, in order, from what is kept, which is let go of at its end, and from the files."""
        while start < stop:
            kept = next((kept for kept in self._kept if kept.stop > start), None)
            if kept is not None and kept.start <= start:
                end = min(stop, kept.stop)
                rows = slice(start - kept.start, end - kept.start)
                yield _Kept(start, end, kept.x[rows], [column[rows] for column in kept.y])
                if end == kept.stop:
                    self._kept.remove(kept)
            else:
                end = stop if kept is None else min(stop, kept.start)
                for piece in self._index.pieces(start, end, PIECE_BYTES):
                    yield self._settled(self._parse(piece))
            start = end

    def _parse(self, piece: Piece) -> _Kept:
        text = self._source.read(piece.file, piece.low, piece.high)
        tokens = QuoteScanner(text, self._delimiter)
        starts = tokens.starts()
        path = self.paths[piece.file]
        if len(starts) != piece.records:
            raise DataError(f"{path} changed while it was read.")
        stop = piece.skip + piece.stop - piece.start
        number = self._index.place(piece.start)[1] + 1
        return _Kept(piece.start, piece.stop, *self._parser.rows(tokens, starts, piece.skip, stop, path, number))

    def _settled(self, parsed: _Kept) -> _Kept:
        """With the labels that the whole table has."""
        return _Kept(parsed.start, parsed.stop, parsed.x, [as_kind(texts, self.kind) for texts in parsed.y])

    def prepare(self, ranks: World) -> None:
        """Parse this rank's rows, and find out with the others what labels are. Every rank must come here.

        Raises:
            DataError: on every rank, where a row of any of them is not as it should be.
        """
        start, stop = span(self.rows, ranks.rank, ranks.size)
        pieces = list(self._index.pieces(start, stop, PIECE_BYTES))
        keep = sum(piece.high - piece.low for piece in pieces) <= KEEP_BYTES
        parsed: list[_Kept] = []
        seen: list[Facts] = []
        with all_or_none(ranks, "parse the rows of CSV files"):
            for piece in pieces:
                rows = self._parse(piece)
                seen.append(facts(rows.y, self._chosen.y, rows.x, piece.start))
                if keep:
                    parsed.append(rows)
        everyone = ranks.allgather(_merged(seen), "compare the labels of CSV files")
        self.kind, lacking = agree(everyone)
        self.words, self.gaps = self.kind is Kind.WORDS, sum(one.gaps for one in everyone)
        if lacking is not None:
            file, row = self._index.place(lacking[0])
            raise DataError(
                f"{self.paths[file]}, data row {row + 1}: column {self._chosen.names[lacking[1]]} has no label, and "
                f"the others are {'words' if self.kind is Kind.WORDS else 'integers'}."
            )
        self._kept = [self._settled(rows) for rows in parsed]
        self._source.drop_all()


def _merged(every: Sequence[Facts]) -> Facts:
    """The facts of a rank's pieces as one: ranks gather as little as they need."""
    kind = max((seen.kind for seen in every), default=Kind.INTEGER)
    missing = min((seen.missing for seen in every if seen.missing is not None), default=None)
    empty = min((seen.empty for seen in every if seen.empty is not None), default=None)
    return Facts(kind, missing, empty, sum(seen.gaps for seen in every))


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> CsvTable:
    """Open CSV files as one table. Every rank calls it with the same arguments.

    Args:
        paths: the files, plain or gzip; with a header, each must have the same.
        wanted: see `ReadOptions`, and `columns.choose` for what is found where it says nothing.
        ranks: who reads.

    Raises:
        DataError: on every rank: a file cannot be read; has no rows; has no such column; has a row with too many or too
            few fields, a word among the inputs, no label, a quote that is not closed, NUL bytes, or no UTF-8.
    """
    csv_dialect.check_delimiter(wanted.delimiter)
    with all_or_none(ranks, "open CSV files"):
        library("pyarrow", paths[0])
        source = Source(paths)
        owner = _unpack(source, ranks)
    _compare_sizes(source, ranks)
    sizes = source.sizes
    dialect: Dialect | None = None
    with all_or_none(ranks, "look at the first rows of CSV files"):
        if ranks.rank == 0:
            dialect = csv_dialect.find(source.read, source.begin(0), sizes[0], wanted, paths[0])
    dialect = ranks.broadcast(dialect, "share how CSV files are written")
    assert dialect is not None
    chosen = choose(dialect.names, dialect.count, wanted, paths[0])
    index = _find_rows(source, owner, dialect, ranks)
    if not index.rows:
        raise DataError(f"{paths[0]} has a header and no rows." if dialect.names else f"{paths[0]} has no rows.")
    _pass_on(source, owner, index, ranks)
    table = CsvTable(source, index, dialect, chosen)
    table.prepare(ranks)
    return table


def guess_can_open(path: str, head: bytes) -> bool:
    """Whether it is text. Other formats are asked first."""
    return b"\0" not in head and not packed.advice(head)


FORMAT = Format("csv", guess_can_open, open, ("tsv",))


def _unpack(source: Source, ranks: World) -> dict[int, int]:
    """Unpack this rank's gzip files; the rank that does it, for each of them."""
    packed = [file for file, is_packed in enumerate(source.packed) if is_packed]
    owner = {file: place % ranks.size for place, file in enumerate(packed)}
    for file in packed:
        if owner[file] == ranks.rank:
            source.unpack(file)
    return owner


def _compare_sizes(source: Source, ranks: World) -> None:
    """Every rank sees the same files; and what gzip files unpack to is known to all."""
    everyone = ranks.allgather((source.bytes, source.packed, source.sizes), "compare the sizes of CSV files")
    for file, path in enumerate(source.paths):
        seen = {(sizes[file], packed[file]) for sizes, packed, _ in everyone}
        if len(seen) > 1:
            listed = ", ".join(str(size) for size, _ in sorted(seen))
            raise DataError(f"{path} is not the same file on every rank: it has {listed} bytes.")
        source.sizes[file] = max(sizes[file] for _, _, sizes in everyone)
        if source.sizes[file] == 0:
            raise DataError(f"{path} is empty.")


def _find_rows(source: Source, owner: dict[int, int], dialect: Dialect, ranks: World) -> Index:
    delimiter = dialect.delimiter.encode()
    step = max(STEP_BYTES, sum(source.sizes) // INDEX_ENTRIES)
    parts: list[Part] = []
    most = settings.current().csv_line_mb << 20
    with all_or_none(ranks, "find the rows of CSV files"):
        parts = _own_parts(source, owner, ranks.rank, ranks.size)
        for part in parts:
            with _line_errors(source.paths[part.file]):
                part.outside = csv_scan.scan(source.read, part, delimiter, False, step, most)
            if part.low <= len(b"\xef\xbb\xbf") and part.file and dialect.names is not None:
                _check_header(source, part, dialect)
    everyone = _in_order(ranks.allgather(parts, "count the rows of CSV files"))
    if csv_scan.unresolved(everyone):
        with all_or_none(ranks, "find the rows of CSV files again"):
            for part in parts:
                if part.quotes:
                    with _line_errors(source.paths[part.file]):
                        part.inside = csv_scan.scan(source.read, part, delimiter, True, step, most)
        everyone = _in_order(ranks.allgather(parts, "count the rows of CSV files again"))
    index = Index(everyone, source.sizes, dialect.names is not None)
    for file, unclosed in enumerate(index.unclosed):
        if unclosed:
            raise DataError(
                f"{source.paths[file]}, data row {index.counts[file]}: a quoted field begins in this row, and the file "
                "ends before its closing quote."
            )
    for file, path in enumerate(source.paths):
        row, length = index.longest(file)
        if length > most + 2 * step:
            raise csv_dialect.too_long(f"{path}, data row {row + 1} has {length >> 20} MB")
    return index


@contextlib.contextmanager
def _line_errors(path: str) -> Iterator[None]:
    try:
        yield
    except csv_scan.LineTooLong as error:
        raise csv_dialect.too_long(f"{path} has a line that begins at byte {error.place} and does not end") from None


def _own_parts(source: Source, owner: dict[int, int], rank: int, size: int) -> list[Part]:
    """The parts of the files' text that a rank scans; kept from the first read on, where they are not too large."""
    plain = [0 if file in owner else count for file, count in enumerate(source.sizes)]
    parts = []
    for file, low, high in csv_scan.plan(plain, rank, size):
        begin = source.begin(file) if low == 0 else 0
        low, high = (csv_scan.behind_newline(source.read, file, at, begin, plain[file]) for at in (low, high))
        parts.append(Part(file, low, high))
    if sum(part.high - part.low for part in parts) <= KEEP_BYTES:
        for part in parts:
            if part.low < part.high:
                source.keep(part.file, part.low, source.read(part.file, part.low, part.high))
    for file, by in owner.items():
        if by == rank:
            parts.append(Part(file, source.begin(file), source.sizes[file]))
    return [part for part in parts if part.low < part.high]


def _in_order(everyone: Sequence[Sequence[Part]]) -> list[Part]:
    return sorted((part for parts in everyone for part in parts), key=lambda part: (part.file, part.low))


def _check_header(source: Source, part: Part, dialect: Dialect) -> None:
    path = source.paths[part.file]
    names = csv_dialect.first_row(source.read, part.file, part.low, source.sizes[part.file], dialect.delimiter, path)
    assert dialect.names is not None
    if tuple(names) == dialect.names:
        return
    other = [f"{quoted(a)}, not {quoted(b)}" for a, b in zip(names, dialect.names, strict=False) if a != b]
    more = f"{len(names)} columns, not {len(dialect.names)}" if len(names) != len(dialect.names) else other[0]
    raise DataError(
        f"{path} has another header than {source.paths[0]} ({more}): files that are read as one table must have the "
        "same columns, in the same order."
    )


def _pass_on(source: Source, owner: dict[int, int], index: Index, ranks: World) -> None:
    """Give each rank its part of what one of them unpacked."""
    if ranks.is_single:
        return
    for file, root in owner.items():
        ranges = []
        for rank in range(ranks.size):
            pieces = [p for p in index.pieces(*span(index.rows, rank, ranks.size), PIECE_BYTES) if p.file == file]
            ranges.append((pieces[0].low, pieces[-1].high) if pieces else (0, 0))
        low, high = ranges[ranks.rank]
        for offset in range(0, max(b - a for a, b in ranges), _PASS_BYTES):
            slices = None
            with all_or_none(ranks, "read what was unpacked of CSV files"):
                if ranks.rank == root:
                    slices = [
                        source.read(file, min(a + offset, b), min(a + offset + _PASS_BYTES, b)) for a, b in ranges
                    ]
            text = ranks.scatter(slices, "pass on rows of CSV files", root)
            if text and ranks.rank != root:
                source.keep(file, low + offset, text)
