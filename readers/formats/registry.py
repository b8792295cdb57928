"""Which format a file has, and the function that opens it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from matex_tf.core.world import World
from matex_tf.errors import DataError, listed, quoted
from matex_tf.readers.safety import read_watch
from matex_tf.readers.safety.signature import is_hdf5
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table, all_or_none, library

#: The module of each format. A module is imported when its format is used: pandas alone takes half a second.
FORMATS = {
    "csv": "csv.table",
    "hdf5": "hdf5.table",
    "netcdf": "netcdf.table",
    "parquet": "parquet",
    "numpy": "npy",
    "idx": "idx",
    "cifar": "cifar",
}

#: What packs files, by their first bytes, and is not unpacked here.
PACKERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf": "7-Zip"}

#: Other names that users have for them.
ALIASES = {"h5": "hdf5", "pnetcdf": "netcdf", "nc": "netcdf", "npy": "numpy", "npz": "numpy", "mnist": "idx",
           "tsv": "csv", "cifar10": "cifar", "cifar100": "cifar"}  # fmt: skip


def name_of(format: str) -> str:
    """The format that a user means, in any case.

    Raises:
        DataError: there is none of this name.
    """
    name = ALIASES.get(format.lower(), format.lower())
    if name not in FORMATS:
        raise DataError(f"{quoted(format)} is no format: name one of {', '.join(sorted({*FORMATS, *ALIASES}))}.")
    return name


def by_content(path: str) -> str:
    """The format of a file, by its first bytes; text that is nothing else is CSV.

    Raises:
        DataError: the file cannot be read, is empty, or is of no format that is known.
    """
    FileStamp(path)
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"\x1f\x8b"):
        return _in_gzip(path)
    if head[:3] != b"CDF" and is_hdf5(path):
        return "netcdf" if _is_netcdf(path) else "hdf5"
    return _by_head(path, head)


def _is_netcdf(path: str) -> bool:
    """Whether an HDF5 file was written as NetCDF: its name says so, or the library that wrote it.

    Of missing values and packed numbers HDF5 knows nothing, so such a file must not be taken for plain HDF5.
    """
    if path.lower().endswith((".nc", ".nc4", ".cdf")):
        return True
    h5py = library("h5py", path)
    try:
        with (
            read_watch.watched(path, "opened to find its format"),
            h5py.File(path, "r", locking="best-effort") as file,
        ):
            return "_NCProperties" in file.attrs
    except Exception:  # a damaged file: the reader of HDF5 says what is wrong with it
        return False


def _by_head(path: str, head: bytes) -> str:
    if head[:3] == b"CDF" and head[3:4] in (b"\x01", b"\x02", b"\x05"):
        return "netcdf"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"\x93NUMPY", b"PK\x03\x04")):
        return "numpy"
    if head[:2] == b"\0\0" and head[2:3] in (b"\x08", b"\x09", b"\x0b", b"\x0c", b"\x0d", b"\x0e"):
        return "idx"
    if head.startswith(b"\x80") and head[1:2] in b"\x02\x03\x04\x05":
        return "cifar"
    for start, packer in PACKERS.items():
        if head.startswith(start):
            raise DataError(f"{path} is packed by {packer}, and only gzip is unpacked here: unpack it first.")
    if head[257:262] == b"ustar":
        raise DataError(f"{path} is a tar archive: unpack it, and name the files that were in it.")
    if b"\0" in head:
        raise DataError(f"{path} is of no format that is known by its content: name it with format=.")
    return "csv"


def _in_gzip(path: str) -> str:
    import gzip
    import zlib

    try:
        with gzip.open(path, "rb") as file:
            head = file.read(4096)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not whole: it starts as gzip, and cannot be unpacked ({error}).") from None
    return _by_head(path, head)


def open_table(paths: Sequence[str], format: str | None, wanted: ReadOptions, ranks: World) -> Table:
    """Open files as one table. Every rank calls it with the same arguments.

    Raises:
        DataError: on every rank: a file is not there on some rank, has no known format, or has not what is wanted.
    """
    found = ""
    with all_or_none(ranks, "find the format of the data"):
        kinds = {path: name_of(format) if format else by_content(path) for path in paths}
        if len(set(kinds.values())) > 1:
            each = listed((f"{path}: {kind}" for path, kind in kinds.items()), "; ")
            raise DataError(f"files that are read as one table must have one format ({each}).")
        found = kinds[paths[0]]
    if len(set(ranks.allgather(found, "compare the formats of the data"))) > 1:
        raise DataError(f"{paths[0]} has other formats on other ranks: is it the same file on every host?")
    module = importlib.import_module(f"matex_tf.readers.formats.{FORMATS[found]}")
    table: Table = module.open(paths, wanted, ranks)
    table.format = found
    return table
