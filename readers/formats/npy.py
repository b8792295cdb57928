"""NumPy's files: .npy (one array) and .npz (several, packed or not). Nothing in them is ever unpickled."""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted
from matex_tf.readers.places import addresses
from matex_tf.readers.tables.arrays import ArrayTable, data_errors, open_each
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.raw import Place, RawFile, check_whole
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the encoding of field names, and those are refused
}


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> Table:
    """Open .npy and .npz files as one table. Every rank calls it.

    A .npy file is inputs without labels, unless `wanted.y` is the path of another .npy file, seen from the directory
    of the first (a sequence of paths for several files). Of a .npz file the members are chosen like datasets.

    Rows of a .npy file and of a .npz file that is not packed are read by themselves; those of a packed one
    (`np.savez_compressed`) by unpacking the member up to the last of them. The checksum of a member is of all its
    bytes: when the file is opened, each rank sums up a part of a member that is not packed, and one rank of each node
    unpacks the others to their end.

    Raises:
        DataError: on every rank: a file cannot be read, or has not what is wanted.
    """
    each = [wanted] * len(paths)
    if isinstance(wanted.y, (list, tuple)) and len(wanted.y) == len(paths) > 1:
        each = [replace(wanted, y=y) for y in wanted.y]
    table = open_each(paths, wanted, ranks, "open NumPy files", _open_one, each)
    check_whole(table, ranks)
    return table


def guess_can_open(path: str, head: bytes) -> bool:
    """Whether it is a .npy file, or a zip archive, which a .npz file is."""
    return head.startswith((b"\x93NUMPY", b"PK\x03\x04"))


FORMAT = Format("numpy", guess_can_open, open, ("npy", "npz"))


def _open_one(path: str, wanted: ReadOptions) -> Table:
    watched = FileStamp(path)
    with addresses.open(path, buffered=True) as file:
        head = file.read(6)
    if head.startswith(b"PK\x03\x04"):
        with data_errors(path, "read as .npz", [watched]):
            places = _members(path)
        return ArrayTable(RawFile(path, "array", [watched], places), wanted)
    if wanted.x is not None:
        raise DataError(f"{path} holds one array without a name: x={quoted(wanted.x)} is not in it.")
    name = os.path.basename(path)
    places, files, labels = {name: _npy(path, watched)}, [watched], None
    if wanted.y is not None and wanted.y is not False:
        if not isinstance(wanted.y, (str, os.PathLike)):
            raise DataError(
                f"{path} is a .npy file: y is the path of another one, or False, and not {quoted(wanted.y)}."
            )
        other = os.path.join(os.path.dirname(path), os.fspath(wanted.y))
        labels = other if os.path.basename(other) == name else os.path.basename(other)
        files.append(FileStamp(other))
        places[labels] = _npy(other, files[1])
    return ArrayTable(RawFile(path, "array", files, places, (name, labels)), wanted)


def _npy(path: str, watched: FileStamp) -> Place:
    with data_errors(path, "read as .npy", [watched]), addresses.open(path, buffered=True) as file:
        return _place(file, path, path, watched.bytes)


def _place(stream: IO[bytes], path: str, what: str, length: int) -> Place:
    """The array in a .npy file, or in a stream of one, of `length` bytes from here; its offset is counted from here."""
    start = stream.tell()
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise DataError(f"{what} is of version {version[0]}.{version[1]} of the .npy format, which is not known.")
        shape, fortran, dtype = _HEADERS[version](stream)
    except DataError:
        raise
    except Exception as error:  # the header is Python source: what can go wrong in it is no closed list
        raise DataError(f"{what} is not a .npy file ({' '.join(str(error).split())[:200]}).") from None
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise DataError(f"{what} is not a .npy file: it has the shape {shape}.")
    place = Place(path, stream.tell() - start, shape, dtype, fortran)
    if not dtype.hasobject and place.offset + place.bytes != length:
        raise DataError(
            f"{what} has {length} bytes, and its header, {dtype} of shape {shape}, makes {place.offset + place.bytes}."
        )
    return place


def _members(path: str) -> dict[str, Place]:
    """The arrays of a .npz file by name."""
    places: dict[str, Place] = {}
    with addresses.open(path, buffered=True) as file, zipfile.ZipFile(file) as archive:
        _compare_count(file, archive, path)
        for info in archive.infolist():
            begin = _begin(file, info, path)
            if not info.filename.endswith(".npy"):
                continue
            name = info.filename[: -len(".npy")]
            what = f"{path}: {name}"
            if name in places:
                raise DataError(f"{what} is in it twice.")
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                if info.compress_size != info.file_size:
                    raise DataError(f"{what} is not where the directory of the file says.")
                file.seek(begin)
                place = _place(file, path, what, info.file_size)
                places[name] = replace(place, offset=begin + place.offset, begin=begin, sum=info.CRC)
            else:
                with archive.open(info) as stream:
                    place = _place(stream, path, what, info.file_size)
                unpack = functools.partial(_member, path, info.filename)
                places[name] = replace(place, unpack=unpack, packed=info.compress_size)
    return places


def _compare_count(file: Any, archive: zipfile.ZipFile, path: str) -> None:
    """See that no member is lost between others: Python's zipfile does not compare their number."""
    file.seek(archive.start_dir)
    rest = file.read()
    end = rest.rfind(b"PK\x05\x06")
    (count,) = struct.unpack_from("<H", rest, end + 10)
    if count not in (len(archive.infolist()), 0xFFFF):  # which stands for a larger number
        raise DataError(f"{path} is damaged: it has {len(archive.infolist())} members, and {count} were written.")


def _begin(file: Any, info: zipfile.ZipInfo, path: str) -> int:
    """Where the bytes of a member begin. Of its name, which no checksum covers, both copies must be alike."""
    file.seek(info.header_offset)
    header = file.read(30)
    what = f"{path}: {quoted(info.filename)}"
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise DataError(f"{what} is not where the directory of the file says.")
    names, extra = struct.unpack("<HH", header[26:30])
    if file.read(names) != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace"):
        raise DataError(f"{what} is not where the directory of the file says.")
    return int(info.header_offset + 30 + names + extra)


@contextlib.contextmanager
def _member(path: str, name: str) -> Iterator[IO[bytes]]:
    with (
        addresses.open(path, buffered=True) as file,
        zipfile.ZipFile(file) as archive,
        archive.open(name) as stream,
    ):
        yield stream
