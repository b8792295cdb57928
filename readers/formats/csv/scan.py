"""Where the rows of a CSV text begin, found in parallel: each part of the text is scanned by itself.

A part begins after a newline, of which nobody knows yet whether it lies inside a quoted field. A part is scanned as
if it does not; only where the parts before it show that it does, it is scanned again. What a row is, is what the C
tokenizer of pandas makes of it: a quote opens a field only at the field's start and is text elsewhere; two quotes
inside a quoted field are one; CR alone ends a row as LF and CR LF do; a row of blanks is no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from matex_tf.core.row_partition import span

#: Text is scanned in pieces of this size: large enough for numpy, small enough for the caches' outskirts.
BLOCK_BYTES = 8 << 20

#: Least distance of the row starts that the index remembers: what a read of some rows has to read besides them.
STEP_BYTES = 16 << 10

#: Most row starts that the index remembers, over all files: 1 MB on every rank.
INDEX_ENTRIES = 1 << 16

LF, CR, QUOTE, SPACE, TAB = b'\n\r" \t'

#: read(file, low, high): these bytes of a file.
Read = Callable[[int, int, int], bytes]


class QuoteScanner:
    """A piece of text that begins after a newline, or at the text's start, and ends so, or at the text's end.

    Attributes:
        data: the text; bytes: the same as uint8 of shape (len(data),).
        inside: whether it begins inside a quoted field.
        toggles: positions of the quotes at which a quoted field begins or ends; two that are one
            character may be among them.
        ends_inside: whether it ends inside a quoted field.
    """

    def __init__(self, data: bytes, delimiter: bytes, inside: bool = False):
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        self.delimiter = delimiter[0]
        self.inside = inside
        self.toggles = self._quotes()
        self.ends_inside = bool((len(self.toggles) + inside) % 2)

    def outside(self, positions: np.ndarray) -> np.ndarray:
        """The positions that do not lie in a quoted field."""
        if not len(self.toggles):
            return positions[:0] if self.inside else positions
        return positions[(np.searchsorted(self.toggles, positions) + self.inside) % 2 == 0]

    def delimiters(self) -> np.ndarray:
        """Positions of the delimiters between fields."""
        return self.outside(np.flatnonzero(self.bytes == self.delimiter))

    def starts(self) -> np.ndarray:
        """Where the rows begin that begin in this piece; int64 of shape (rows,)."""
        ends = np.flatnonzero(self.bytes == LF)
        if b"\r" in self.data:
            returns = np.flatnonzero(self.bytes == CR)
            follows = np.append(self.bytes, np.uint8(0))[returns + 1]
            alone = returns[follows != LF]
            if len(alone):
                ends = np.sort(np.concatenate([ends, alone]))
        starts = self.outside(ends) + 1
        if not self.inside:
            starts = np.concatenate([[0], starts])
        return self._not_blank(starts[starts < len(self.data)])

    def _not_blank(self, starts: np.ndarray) -> np.ndarray:
        first = self.bytes[starts]
        blank = (first == LF) | (first == CR)
        unsure = np.flatnonzero(self._is_space(first))
        at = starts[unsure]
        while len(unsure):
            at = at + 1
            over = at >= len(self.data)
            blank[unsure[over]] = True
            unsure, at = unsure[~over], at[~over]
            now = self.bytes[at]
            blank[unsure[(now == LF) | (now == CR)]] = True
            space = self._is_space(now)
            unsure, at = unsure[space], at[space]
        return starts[~blank]

    def _is_space(self, bytes_: np.ndarray) -> np.ndarray:
        return ((bytes_ == SPACE) | (bytes_ == TAB)) & (bytes_ != self.delimiter)

    def _quotes(self) -> np.ndarray:
        if b'"' not in self.data:
            return np.zeros(0, np.int64)
        quotes = np.flatnonzero(self.bytes == QUOTE)
        # Quotes take turns to open and to close where each stands at an edge of a field or beside another quote.
        edge = np.zeros(256, bool)
        edge[[LF, CR, self.delimiter]] = True
        before = np.concatenate([np.full(1, LF, np.uint8), self.bytes])[quotes]
        after = np.append(self.bytes, np.uint8(LF))[quotes + 1]
        opening, closing = slice(int(self.inside), None, 2), slice(int(not self.inside), None, 2)
        good = edge.copy()
        good[QUOTE] = True
        if good[before[opening]].all() and good[after[closing]].all():
            return quotes
        # Some quote is text in an unquoted field: go through them one by one.
        opens, places = edge[before].tolist(), quotes.tolist()
        real, inside, i = [], self.inside, 0
        while i < len(places):
            if not inside:
                if opens[i]:
                    real.append(places[i])
                    inside = True
            elif i + 1 < len(places) and places[i + 1] == places[i] + 1:
                i += 1  # two quotes inside a quoted field are one character
            else:
                real.append(places[i])
                inside = False
            i += 1
        return np.array(real, np.int64)


@dataclass
class Found:
    """Rows that begin in a part of a file, given whether the part begins inside a quoted field.

    Attributes:
        rows: how many.
        ends_inside: whether the part ends inside a quoted field.
        entries: some of the rows, counted from the part's first: int64 of shape (entries, 2), row and byte.
    """

    rows: int
    ends_inside: bool
    entries: np.ndarray


@dataclass
class Part:
    """A part of a file: bytes `low` to `high`, both after a newline or at an end of the text.

    Attributes:
        quotes: whether there are any.
        outside, inside: what it has if it begins outside, or inside, of a quoted field; None: not scanned so.
    """

    file: int
    low: int
    high: int
    quotes: bool = False
    outside: Found | None = None
    inside: Found | None = None


def plan(sizes: Sequence[int], rank: int, size: int) -> list[tuple[int, int, int]]:
    """A rank's share of all bytes of the files: (file, low, high), in order. Files of size 0 are left out.

    Args:
        sizes: bytes of each file's text.
        size: the number of ranks.
    """
    first, last = span(sum(sizes), rank, size)
    shares, begin = [], 0
    for file, count in enumerate(sizes):
        low, high = max(first - begin, 0), min(last - begin, count)
        if low < high:
            shares.append((file, low, high))
        begin += count
    return shares


def behind_newline(read: Read, file: int, at: int, begin: int, size: int) -> int:
    """The first byte from `at` on that is after a newline; `begin` for 0, and the size where there is no more.

    Args:
        at: a byte of the text.
        begin, size: the text's first byte, and the one after its last.
    """
    if at <= 0:
        return begin
    at, window = at - 1, 4 << 10
    while at < size:
        text = read(file, at, min(at + window, size))
        found = text.find(b"\n")
        if found >= 0:
            return max(begin, at + found + 1)
        at, window = at + len(text), min(window * 4, BLOCK_BYTES)
    return size


def blocks(read: Read, part: Part, most: int) -> Iterator[tuple[int, bytes]]:
    """The text of a part in pieces that end after the end of a line, each with the byte at which it begins.

    Args:
        most: bytes of the longest line.

    Raises:
        LineTooLong: a line is longer.
    """
    at, window = part.low, BLOCK_BYTES
    while at < part.high:
        text = read(part.file, at, min(at + window, part.high))
        if at + len(text) < part.high:
            end = whole_lines(text)
            if end == 0 and len(text) > most:
                raise LineTooLong(at)
            if end == 0:
                window *= 2
                continue
            text = text[:end]
        yield at, text
        at, window = at + len(text), BLOCK_BYTES


def whole_lines(text: bytes) -> int:
    """Where the last whole line of a text ends that goes on; 0 where there is none."""
    # A CR ends a line by itself, unless it stands before LF, as the last one may do.
    return text.rfind(b"\n") + 1 or text.rfind(b"\r", 0, len(text) - 1) + 1


class LineTooLong(Exception):
    """A line is longer than the limit. Args: place: the byte at which it begins."""

    def __init__(self, place: int):
        self.place = place


def scan(read: Read, part: Part, delimiter: bytes, inside: bool, step: int, most: int) -> Found:
    """Find the rows of a part.

    Args:
        read: of the text.
        part: which part.
        delimiter: between fields.
        inside: whether it begins inside a quoted field.
        step: least distance of the rows that are remembered.
        most: bytes of the longest line.

    Raises:
        LineTooLong: a line is longer. A row of several lines may be longer as well: see `Index.longest`.
    """
    rows, cell, entries = 0, -1, []
    for at, text in blocks(read, part, most):
        tokens = QuoteScanner(text, delimiter, inside)
        part.quotes |= b'"' in text
        inside = tokens.ends_inside
        starts = tokens.starts() + at
        cells = starts // step
        first = np.flatnonzero(np.diff(cells, prepend=cell))
        entries.append(np.stack([first + rows, starts[first]], axis=1))
        rows += len(starts)
        cell = int(cells[-1]) if len(cells) else cell
    return Found(rows, inside, np.concatenate(entries) if entries else np.zeros((0, 2), np.int64))


def unresolved(parts: Sequence[Part]) -> bool:
    """Whether some part begins inside a quoted field and has not been scanned so."""
    return any(found is None for found in _walk(parts))


def _walk(parts: Sequence[Part]) -> Iterator[Found | None]:
    file, inside = -1, False
    for part in parts:
        if part.file != file:
            file, inside = part.file, False
        found = part.inside if inside else part.outside
        if inside and not part.quotes:
            found = Found(0, True, np.zeros((0, 2), np.int64))
        yield found
        if found is None:
            return
        inside = found.ends_inside


class Index:
    """The rows of all files, and the bytes at which some of them begin.

    Attributes:
        counts: rows of each file, its header not among them.
        rows: of all files.
        unclosed: for each file, whether it ends inside a quoted field.
    """

    def __init__(self, parts: Sequence[Part], sizes: Sequence[int], header: bool):
        """Args: parts: all parts of all files in order, resolved. sizes: of the files' text. header: in each file."""
        self._sizes = list(sizes)
        self._header = int(header)
        entries: list[list[np.ndarray]] = [[np.zeros((0, 2), np.int64)] for _ in sizes]
        counts = [0] * len(sizes)
        self.unclosed = [False] * len(sizes)
        for part, found in zip(parts, _walk(parts), strict=True):
            assert found is not None
            entries[part.file].append(found.entries + [[counts[part.file], 0]])
            counts[part.file] += found.rows
            self.unclosed[part.file] = found.ends_inside
        joined = [np.concatenate(pieces) for pieces in entries]
        self._rows = [np.ascontiguousarray(pairs[:, 0]) for pairs in joined]
        self._bytes = [np.ascontiguousarray(pairs[:, 1]) for pairs in joined]
        self.records = counts
        self.counts = [max(0, count - self._header) for count in counts]
        self._begins = np.concatenate([[0], np.cumsum(self.counts)])
        self.rows = int(self._begins[-1])

    def longest(self, file: int) -> tuple[int, int]:
        """The longest row of a file, and its bytes: those of up to two steps may be too many."""
        if not len(self._bytes[file]):
            return 0, 0
        lengths = np.diff(self._bytes[file], append=self._sizes[file])
        at = int(lengths.argmax())
        return int(np.append(self._rows[file], self.records[file])[at + 1]) - 1 - self._header, int(lengths[at])

    def place(self, row: int) -> tuple[int, int]:
        """The file of a row, and the row's number in it, from 0, not counting the header."""
        file = int(np.searchsorted(self._begins, row, side="right")) - 1
        return file, row - int(self._begins[file])

    def pieces(self, start: int, stop: int, size: int) -> Iterator[Piece]:
        """Rows `start` to `stop` of the whole, in pieces of some `size` bytes.

        Args:
            start, stop: rows, counted over all files.
            size: bytes; a piece has more if its rows are longer than the index is fine.
        """
        for file, begin in enumerate(self._begins[:-1].tolist()):
            rows, places, records = self._rows[file], self._bytes[file], self.records[file]
            to_whole = begin - self._header
            low, high = max(start, begin) - to_whole, min(stop, begin + self.counts[file]) - to_whole
            while low < high:
                first = int(np.searchsorted(rows, low, side="right")) - 1
                last = int(np.searchsorted(rows, high))
                last = max(first + 1, min(last, int(np.searchsorted(places, places[first] + size))))
                behind = (int(rows[last]), int(places[last])) if last < len(rows) else (records, self._sizes[file])
                until, row = min(high, behind[0]), int(rows[first])
                yield Piece(
                    file, low + to_whole, until + to_whole, int(places[first]), behind[1], low - row, behind[0] - row
                )
                low = until


@dataclass(frozen=True)
class Piece:
    """Some rows of one file.

    Attributes:
        file: which.
        start, stop: the rows, counted over all files.
        low, high: bytes of the file in which they lie; at `low` a row begins.
        skip: rows that begin in these bytes before the first that is meant.
        records: rows that begin in these bytes in all.
    """

    file: int
    start: int
    stop: int
    low: int
    high: int
    skip: int
    records: int
