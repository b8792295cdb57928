"""Arrays whose bytes lie in a file as they are (NumPy's, idx), or come out of a stream that unpacks them.

Read by ordinary reads and not by a memory map: a map of a file that becomes shorter kills the process, where a read
gives an error; and what is read can be counted.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from matex_tf.core.row_partition import span
from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.places import addresses
from matex_tf.readers.safety import checksum, read_watch
from matex_tf.readers.safety.limits import most_unpacked, unpacks_to_too_much
from matex_tf.readers.tables.arrays import PIECE_BYTES, ArrayFile, ArrayTable, Column, data_errors, pieces
from matex_tf.readers.tables.table import ConcatTable, FileStamp, Table, all_or_none
from matex_tf.readers.tables.values import decode, native, put, read_exactly


@dataclass(frozen=True)
class Place:
    """Where an array lies.

    Attributes:
        path: of the file.
        offset: of its first byte; in what the stream gives, where there is one.
        shape, dtype: of the whole array.
        fortran: whether the first axis runs fastest. A range of rows is then a piece of every column, read one by one.
        unpack: opens the stream, where the array is packed. It is read from its start up to the last row wanted, and
            never held as a whole.
        packed: its bytes in the file, where it is packed.
        sum: the CRC-32 of the bytes from `begin` to its end that the file has, where it is not packed and has one.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool = False
    unpack: Callable[[], AbstractContextManager[IO[bytes]]] | None = None
    packed: int = 0
    sum: int | None = None
    begin: int = 0

    @property
    def bytes(self) -> int:
        """Of the whole array."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def column(self, name: str) -> Column:
        """As a column of a table; one that is refused where rows cannot be made of it."""
        if not self.shape:
            return Column(name, 0, (), np.dtype(np.void), refused="is a single value, and has no rows")
        refused = ""
        if self.dtype.hasobject:
            refused = "holds Python objects, which are never unpickled: save numbers or text"
        elif self.dtype.kind not in "biufcSUmM":
            refused = f"is of type {self.dtype}: save an array for each field"
        return Column(
            name, self.shape[0], self.shape[1:], np.dtype(np.void) if refused else native(self.dtype), refused=refused
        )


class RawFile(ArrayFile):
    """Arrays at known places, of one file or several."""

    def __init__(
        self,
        path: str,
        kind: str,
        watched: Sequence[FileStamp],
        places: Mapping[str, Place],
        only: tuple[str, str | None] | None = None,
    ):
        super().__init__(watched)
        self.path, self.kind, self.only = path, kind, only
        self._places = dict(places)
        self.columns = {name: place.column(name) for name, place in places.items()}

    def check(self, names: Sequence[str]) -> None:
        for place in map(self._places.__getitem__, names):
            if place.unpack and place.offset + place.bytes > most_unpacked(place.packed):
                raise unpacks_to_too_much(place.path, place.packed)

    def places(self, names: Sequence[str]) -> list[Place]:
        """Where some columns lie."""
        return [self._places[name] for name in names]

    def fill(self, columns: Sequence[Column], out: Sequence[np.ndarray], start: int, stop: int) -> None:
        for column, array in zip(columns, out, strict=True):
            place = self._places[column.name]
            what = f"{place.path}: {self.kind} {column.name}"
            with _opened(place) as read:
                if place.fortran and len(place.shape) > 1:
                    _fill_columns(place, read, array, start, stop, what)
                    continue
                row_bytes = place.dtype.itemsize * int(np.prod(place.shape[1:], dtype=object))
                for low, high in pieces(column, start, stop):
                    got = read(place.offset + low * row_bytes, (high - low) * row_bytes)
                    values = _values(got, place.dtype, what).reshape(high - low, *place.shape[1:])
                    put(array[low - start : high - start], values, what, low)


def _fill_columns(
    place: Place, read: Callable[[int, int], np.ndarray], array: np.ndarray, start: int, stop: int, what: str
) -> None:
    size, rows = place.dtype.itemsize, place.shape[0]
    step = max(1, PIECE_BYTES // size)
    for number in range(int(np.prod(place.shape[1:], dtype=object))):
        index = np.unravel_index(number, place.shape[1:], order="F")
        for low in range(start, stop, step):
            high = min(stop, low + step)
            got = read(place.offset + (number * rows + low) * size, (high - low) * size)
            here: Any = (slice(low - start, high - start), *index)
            put(array[here], _values(got, place.dtype, what), what, low)


def _values(raw: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """Bytes as values; those that no value of the dtype has are refused."""
    if dtype.itemsize == 0:
        raise DataError(f"{what} has elements of no bytes.")
    if dtype.kind == "b":
        return raw != 0
    if dtype.kind == "U" and raw.size and raw.view(np.dtype("u4").newbyteorder(dtype.byteorder)).max() > 0x10FFFF:
        raise DataError(f"{what} holds text with characters that do not exist.")
    values = raw.view(dtype)
    return decode(values, what) if dtype.kind == "S" else values


class _Stream:
    """A stream that only runs forward; places must not go back."""

    def __init__(self, stream: IO[bytes], path: str, length: int):
        self._stream, self._path, self._length = stream, path, length
        self._at = 0

    def read(self, place: int, count: int) -> np.ndarray:
        while self._at < place:
            self._take(min(PIECE_BYTES, place - self._at))
        got = bytearray()
        while len(got) < count:
            got += self._take(min(PIECE_BYTES, count - len(got)))
        if self._at == self._length:
            self._stream.read(1)  # at its end the stream compares its checksum
        return np.frombuffer(got, np.uint8)

    def _take(self, count: int) -> bytes:
        read_watch.goes_on()
        got = self._stream.read(count)
        if not got:
            raise DataError(f"{self._path} is not whole: it ends after {self._at} bytes unpacked.")
        self._at += len(got)
        return got


@contextlib.contextmanager
def _opened(place: Place) -> Iterator[Callable[[int, int], np.ndarray]]:
    """What gives so many bytes, uint8, from a byte on."""
    if place.unpack is None:
        with addresses.open(place.path) as file:
            yield functools.partial(read_exactly, file)
    else:
        with place.unpack() as stream:
            yield _Stream(stream, place.path, place.offset + place.bytes).read


def check_whole(table: Table, ranks: World) -> None:
    """See that arrays are whole, where their file can tell. Every rank calls it.

    A packed one is unpacked to its end by one rank of each node. Of one that is not packed and has a checksum each rank
    sums up a part.

    Args:
        ranks: who reads; they divide the work.

    Raises:
        DataError: on every rank: an array is not whole, or is not what was written.
    """
    parts = table.tables if isinstance(table, ConcatTable) else [table]
    files = [(part.file, part.names) for part in parts if isinstance(part, ArrayTable)]
    places = [
        (place, f"{place.path}: {file.kind} {name}")
        for file, names in files
        if isinstance(file, RawFile)
        for name, place in zip(names, file.places(names), strict=True)
    ]
    sums: list[int] = []
    with all_or_none(ranks, "see whether arrays are whole"):
        for place, _ in places:
            if place.sum is not None:
                sums.append(_sum(place, *span(place.offset + place.bytes - place.begin, ranks.rank, ranks.size)))
            elif place.unpack and ranks.local_rank == 0:
                _unpack_whole(place)
    everyone = ranks.allgather(sums, "compare the checksums of arrays")
    summed = [(place, what) for place, what in places if place.sum is not None]
    for (place, what), *shares in zip(summed, *everyone, strict=True):
        total = 0
        for rank, share in enumerate(shares):
            low, high = span(place.offset + place.bytes - place.begin, rank, ranks.size)
            total = checksum.joined(total, share, high - low)
        if total != place.sum:
            raise DataError(
                f"{what} is damaged: its checksum (CRC-32) is {total:08x}, and {place.sum:08x} was written."
            )


def _sum(place: Place, low: int, high: int) -> int:
    """The CRC-32 of some of the bytes that a checksum is of."""
    found = 0
    with data_errors(place.path, "read"), addresses.open(place.path) as file:
        for at in range(place.begin + low, place.begin + high, PIECE_BYTES):
            read_watch.goes_on()
            found = zlib.crc32(read_exactly(file, at, min(PIECE_BYTES, place.begin + high - at)).data, found)
    return found


def _unpack_whole(place: Place) -> None:
    """Raises: DataError: an array cannot be unpacked to its end, or has not the length that its header says."""
    assert place.unpack is not None
    with data_errors(place.path, "unpacked"), place.unpack() as stream:
        length, due = 0, place.offset + place.bytes
        while length <= due and (got := stream.read(1 << 20)):
            length += len(got)
            read_watch.goes_on()
    compare_length(place, length)


def compare_length(place: Place, length: int) -> None:
    """Compare the length of a file, or of what it unpacks to, with what its header says.

    Args:
        place: of its array, as the header has it.
        length: bytes.

    Raises:
        DataError: it is shorter or longer.
    """
    due = place.offset + place.bytes
    if length != due:
        raise DataError(f"{place.path} has {length} bytes, and its header, shape {place.shape}, makes {due}.")
