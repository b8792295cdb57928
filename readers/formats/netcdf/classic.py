"""The header of a classic NetCDF file (CDF-1, CDF-2, CDF-5), and its rows.

Read here, and not by the NetCDF library, for two reasons. The library gives zeros for what a file that was cut short
no longer has. And it reads record variables (those with the unlimited dimension) one by one, though their rows lie
in turn in the file, so that inputs and labels together would be read from disk twice.

The format is described in the NetCDF User's Guide, appendix "File Format Specifications". All numbers are big-endian;
names and values are padded to 4 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matex_tf.errors import DataError
from matex_tf.readers.places import addresses
from matex_tf.readers.safety import read_watch
from matex_tf.readers.tables.arrays import PIECE_BYTES
from matex_tf.readers.tables.values import read_exactly

#: By the number of a type in the header.
TYPES = {
    number: np.dtype(name)
    for number, name in enumerate(("i1", "S1", ">i2", ">i4", ">f4", ">f8", "u1", ">u2", ">u4", ">i8", ">u8"), start=1)
}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12

#: Rather two reads than one that skips more than this.
_SKIPPED_BYTES = 64 << 10


@dataclass
class NetcdfVariable:
    """A variable as it lies in the file.

    Attributes:
        name, dimensions: names; shape: the leading dimension's length first.
        dtype: big-endian; text is "S1".
        attributes: numpy arrays, and str for text.
        begin: of the first row, in bytes; row_bytes: of a row; stride: from one row to the next.
        record: whether the leading dimension is the unlimited one.
    """

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    record: bool
    attributes: dict[str, Any] = field(default_factory=dict)
    row_bytes: int = 0
    stride: int = 0

    @property
    def end(self) -> int:
        """One past the last byte."""
        rows = self.shape[0] if self.shape else 1
        return self.begin + (rows - 1) * self.stride + self.row_bytes if rows else self.begin


class _Header:
    """Takes the header apart, front to back."""

    def __init__(self, file: Any, path: str, length: int):
        self._file, self._path, self._length = file, path, length
        version = self.take(4)[3]
        self._count_type = ">i8" if version == 5 else ">i4"
        self._offset_type = ">i4" if version == 1 else ">i8"

    def take(self, count: int) -> bytes:
        place = self._file.tell()
        if count < 0 or place + count > self._length:
            raise self.damaged(f"needs {count} bytes at byte {place}, and the file has {self._length}")
        got: bytes = self._file.read(count)
        return got

    def damaged(self, why: str) -> DataError:
        return DataError(f"{self._path} is not a whole NetCDF file: its header {why}.")

    def number(self, dtype: str) -> int:
        return int(np.frombuffer(self.take(np.dtype(dtype).itemsize), dtype)[0])

    def count(self) -> int:
        number = self.number(self._count_type)
        if number < 0:
            raise self.damaged(f"has the count {number} before byte {self._file.tell()}")
        return number

    def padded(self, count: int) -> bytes:
        return self.take(count + -count % 4)[:count]

    def name(self) -> str:
        try:
            name = self.padded(self.count()).decode()
        except UnicodeDecodeError:
            name = ""
        if not name:
            raise self.damaged(f"has a name that is empty or no UTF-8 before byte {self._file.tell()}")
        return name

    def list_of(self, tag: int) -> range:
        """The items of a list that may be left out."""
        found, count = self.number(">i4"), self.count()
        if found != tag and (found, count) != (0, 0):
            raise self.damaged(f"has the mark {found} before byte {self._file.tell()}, where {tag} was expected")
        return range(count)

    def type(self) -> np.dtype:
        number = self.number(">i4")
        if number not in TYPES:
            raise self.damaged(f"has the type {number} before byte {self._file.tell()}")
        return TYPES[number]

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in self.list_of(_ATTRIBUTES):
            name, dtype = self.name(), self.type()
            values = self.padded(self.count() * dtype.itemsize)
            text = dtype.kind == "S"
            found[name] = values.decode("utf-8", "replace") if text else np.frombuffer(values, dtype)
        return found

    def variable(self, dimensions: Sequence[tuple[str, int]], records: int) -> tuple[NetcdfVariable, int]:
        """A variable, and the bytes of its row as the header has them."""
        name = self.name()
        count = self.count()
        if count > 1024:
            raise self.damaged(f"gives {name} {count} dimensions")
        numbers = [self.count() for _ in range(count)]
        if any(number >= len(dimensions) for number in numbers):
            raise self.damaged(f"gives {name} a dimension that is not there")
        attributes, dtype = self.attributes(), self.type()
        size = self.number(">u8" if self._count_type == ">i8" else ">u4")
        begin = self.number(self._offset_type)
        lengths = [dimensions[number][1] for number in numbers]
        record = bool(lengths) and lengths[0] == 0
        if 0 in lengths[1:]:
            raise self.damaged(f"has the unlimited dimension as another than the first of {name}")
        shape = ((records, *lengths[1:]) if record else tuple(lengths)) if lengths else ()
        stored = NetcdfVariable(
            name, tuple(dimensions[number][0] for number in numbers), shape, dtype, begin, record, attributes
        )
        stored.row_bytes = stored.stride = dtype.itemsize * int(np.prod(shape[1:], dtype=object))
        whole = stored.row_bytes if record or not shape else stored.row_bytes * shape[0]
        large = size >= 1 << 31 and self._count_type == ">i4"  # cannot be said in CDF-1 and CDF-2
        if not large and size not in (whole, whole + -whole % 4):
            raise self.damaged(f"gives {name} {size} bytes, and its shape {shape} makes {whole}")
        return stored, whole


def parse(path: str, length: int) -> list[NetcdfVariable]:
    """The variables of a classic file of `length` bytes.

    Args:
        length: bytes of the file; a header that promises more is damaged.

    Raises:
        DataError: the header is damaged, or variables lie on one another.
    """
    with addresses.open(path, buffered=True) as file:
        header = _Header(file, path, length)
        records = header.number(header._count_type)
        dimensions = [(header.name(), header.count()) for _ in header.list_of(_DIMENSIONS)]
        if sum(not size for _, size in dimensions) > 1:
            raise header.damaged("has more than one unlimited dimension")
        header.attributes()
        streamed = records < 0  # written to a pipe: as many records as there are bytes for
        variables = [header.variable(dimensions, max(0, records)) for _ in header.list_of(_VARIABLES)]
        first = file.tell()
    in_records = [(stored, size) for stored, size in variables if stored.record]
    # A file with a single record variable has its rows without padding.
    stride = in_records[0][1] if len(in_records) == 1 else sum(size + -size % 4 for _, size in in_records)
    for stored, _ in in_records:
        stored.stride = stride
        if streamed:
            start = min(other.begin for other, _ in in_records)
            stored.shape = (max(0, length - start) // max(1, stride), *stored.shape[1:])
    _check_places(header, [stored for stored, _ in variables], first, stride)
    return [stored for stored, _ in variables]


def _check_places(header: _Header, variables: Sequence[NetcdfVariable], first: int, stride: int) -> None:
    """Every variable after the header, none on another: or rows would be those of another variable."""
    fixed = sorted((one.begin, one.end, one.name) for one in variables if not one.record)
    in_turn = sorted((one.begin, one.begin + one.row_bytes, one.name) for one in variables if one.record)
    if in_turn:
        fixed = sorted([*fixed, (in_turn[0][0], in_turn[-1][1], "the records")])
        if in_turn[-1][1] - in_turn[0][0] > stride:
            raise header.damaged(f"spreads its records over more than {stride} bytes each")
    for places in (fixed, in_turn):
        for (_, end, name), (begin, _, other) in zip(places, places[1:], strict=False):
            if begin < end:
                raise header.damaged(f"puts {other} on top of {name}")
        if places and places[0][0] < first:
            raise header.damaged(f"puts {places[0][2]} before its own end")


def read_rows(path: str, variables: Sequence[NetcdfVariable], start: int, stop: int) -> Any:
    """Rows of several variables, in pieces.

    Args:
        variables: of this file, as `parse` gives them.
        start, stop: rows of the leading dimension, the same for all.

    Yields:
        The number of the variable, the first row of the piece, and the rows, in the file's byte order.
    """
    order = sorted(range(len(variables)), key=lambda number: variables[number].begin)
    groups: list[list[int]] = []
    for number in order:
        one = variables[number]
        before = variables[groups[-1][-1]] if groups else None
        near = before is not None and one.begin - before.begin - before.row_bytes <= _SKIPPED_BYTES
        if before is not None and near and one.record and before.record:
            groups[-1].append(number)
        else:
            groups.append([number])
    with addresses.open(path) as file:
        for group in groups:
            base, last = variables[group[0]], variables[group[-1]]
            span = last.begin + last.row_bytes - base.begin
            apart = base.stride - span > _SKIPPED_BYTES
            rows = max(1, PIECE_BYTES // max(1, span if apart else base.stride))
            for low in range(start, stop, rows):
                high = min(stop, low + rows)
                read_watch.goes_on()
                if apart:
                    block = np.stack([read_exactly(file, base.begin + r * base.stride, span) for r in range(low, high)])
                else:
                    block = np.zeros((high - low) * base.stride, np.uint8)
                    place, count = base.begin + low * base.stride, (high - low - 1) * base.stride + span
                    block[:count] = read_exactly(file, place, count)
                    block = block.reshape(high - low, base.stride)
                for number in group:
                    one = variables[number]
                    at = one.begin - base.begin
                    raw = np.ascontiguousarray(block[:, at : at + one.row_bytes]).view(one.dtype)
                    yield number, low, raw.reshape(high - low, *one.shape[1:])
