"""Files at addresses (s3://, gs://, https://), of which a rank reads the bytes that it needs, by fsspec.

A file on disk is opened by the same functions, so that a format need not know where its file is. What a store needs
(keys, an endpoint) is said as fsspec has it: by its configuration, by variables such as FSSPEC_S3_ENDPOINT_URL, or by
those of the store's own library.
"""

from __future__ import annotations

import builtins
import functools
import glob
import importlib
import io
import os
import re
from typing import Any, BinaryIO, cast

from matex_tf.errors import DataError, MissingPackage, shortened
from matex_tf.state import run_state

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)(://|::)")

#: The schemes of web servers, which list nothing.
WEB = ("http", "https")

#: Bytes of a read where a library asks for a few: the headers of HDF5 lie near one another.
_AHEAD = 1 << 15


class _Lengths(dict[str, int]):
    """Of a run: how long the files at addresses were when they were looked at last."""


def is_address(path: str) -> bool:
    """Whether it is an address, and not a file on a disk."""
    return _SCHEME.match(path) is not None


def open(path: str, buffered: bool = False) -> BinaryIO:
    """A file for reading, at an address or on a disk; what is buffered reads ahead.

    Args:
        path: an address such as "s3://bucket/data.csv", or a path.
        buffered: whether many small reads come one after the other.

    Raises:
        OSError: of a file on a disk.
        DataError: there is nothing at the address, or it cannot be read in parts.
    """
    if not is_address(path):
        return cast(BinaryIO, builtins.open(path, "rb", buffering=-1 if buffered else 0))
    raw = _Ranges(path)
    return cast(BinaryIO, io.BufferedReader(raw, _AHEAD) if buffered else raw)


def look(path: str) -> tuple[int, Any]:
    """How long the file at an address is, and what changes when another one takes its place.

    Raises:
        DataError: there is none, or its length is not known.
    """
    try:
        system, name = _found(path)
        system.invalidate_cache()
        info = system.info(name)
    except Exception as error:
        raise _refused(path, error) from None
    if info.get("type") == "directory":
        raise DataError(f"{path} cannot be read: it is a directory.")
    length = info.get("size")
    if length is None:
        raise DataError(f"{path} cannot be read: its server does not say how long it is. Download it first.")
    run_state.part(_Lengths)[path] = int(length)
    marks = ("ETag", "etag", "Last-Modified", "LastModified", "mtime", "generation", "md5Hash", "created")
    return int(length), str([info[mark] for mark in marks if info.get(mark)])


def expand(path: str) -> list[str]:
    """The files that an address stands for: its own, those of a pattern with `*`, or those of a directory.

    Raises:
        DataError: there are none.
    """
    try:
        system, name = _found(path)
        web = scheme(path) in WEB  # whose `?` begins a query, and whose directories are pages
        if "*" in name if web else glob.has_magic(name):
            found = system.glob(name)
        elif path.endswith("/") or (not web and system.isdir(name)):
            found = [one["name"] for one in system.ls(name, detail=True) if one["type"] == "file"]
        else:
            return [path]
        files = sorted(system.unstrip_protocol(one) for one in found)
    except Exception as error:
        raise _refused(path, error) from None
    files = [one for one in files if not one.rpartition("/")[2].startswith((".", "_"))]
    if not files:
        raise DataError(f"no file matches {path}.")
    return files


class _Ranges(io.RawIOBase):
    """A file at an address: each read is a request for so many bytes."""

    def __init__(self, path: str):
        self.name = path
        known = run_state.part(_Lengths).get(path)
        self._length = look(path)[0] if known is None else known
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Its length in bytes, as pyarrow asks for it."""
        return self._length

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        if count:
            buffer[:count] = _fetched(self.name, self._at, self._at + count)
            self._at += count
        return count


def _fetched(path: str, start: int, stop: int) -> bytes:
    try:
        system, name = _found(path)
        if scheme(path) in WEB:
            _see_ranges(path, run_state.part(_Lengths)[path])
        got: bytes = system.cat_file(name, start=start, end=stop)
    except DataError:
        raise
    except Exception as error:
        raise _refused(path, error) from None
    if len(got) != stop - start:
        raise DataError(f"{path} changed while it was read: of bytes {start} to {stop} there came {len(got)}.")
    return got


@functools.lru_cache(maxsize=4096)
def _see_ranges(path: str, length: int) -> None:
    """See that a server sends parts of a file. One that does not would send all of it to each rank, at each read."""
    if length < 2:
        return
    system, name = _found(path)
    try:
        with system.open(name, "rb", size=length, cache_type="none") as file:
            file.seek(1)
            file.read(1)  # of a whole file it says so before the file has come
    except ValueError:
        raise DataError(
            f"{path} cannot be read in parts: its server sends the whole file to whoever asks for a range of bytes. "
            "Download it once, and give the path of the file."
        ) from None


def _found(path: str) -> tuple[Any, str]:
    """The file system of an address, and the name in it."""
    try:
        fsspec = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise MissingPackage(
            f"{path} is read with fsspec, which cannot be imported ({error}): pip install 'matex_tf[addresses]'."
        ) from None
    try:
        system, name = fsspec.url_to_fs(path)
    except ImportError as error:
        needs = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
        package = needs.get(scheme(path))
        advice = f": pip install {package}" if package else ""
        raise MissingPackage(f"{path} cannot be read: {str(error).rstrip('.')}{advice}.") from None
    return system, name


def scheme(path: str) -> str:
    """Of an address, in lower case: s3, gs, https; "" for a path."""
    found = _SCHEME.match(path)
    return found["scheme"].lower() if found else ""


def _refused(path: str, error: Exception) -> DataError | MissingPackage:
    """What a store says, in one line."""
    if isinstance(error, (DataError, MissingPackage)):
        return error
    cause = error.__cause__ or error  # of every failure of a web server fsspec says that the file is not there
    status = getattr(cause, "status", None)
    if status in (401, 403) or isinstance(cause, PermissionError):
        reason = "this user may not read it"
    elif status == 404 or isinstance(cause, FileNotFoundError):
        reason = "there is nothing at this address"
    else:
        reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
    return DataError(f"{path} cannot be read: {shortened(reason, 300)}.")
