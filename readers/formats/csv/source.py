"""The bytes of CSV files: read from disk, kept from an earlier read, or unpacked from gzip."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf.errors import DataError
from matex_tf.readers.places import addresses
from matex_tf.readers.safety import read_watch
from matex_tf.readers.safety.limits import most_unpacked, unpacks_to_too_much
from matex_tf.readers.tables.table import FileStamp, unreadable

#: Bytes of text that a rank keeps from the scan for rows until they are parsed. A part that is larger is read twice:
#: the machine must have room for the arrays, which such text becomes, as well.
KEEP_BYTES = 1 << 30

_BOM = b"\xef\xbb\xbf"
_UNPACK_BYTES = 4 << 20
_READ_BYTES = 16 << 20  # that are read by one call
_LEFT_FREE = 256 << 20  # of the disk that has temporary files: the job and others need some


class Source:
    """Any bytes of any of the files' text.

    Attributes:
        paths: the files.
        packed: for each file, whether it is gzip.
        sizes: bytes of each file's text; 0 for a gzip file until it has been unpacked on some rank.
        bytes: of each file on disk.
    """

    def __init__(self, paths: Sequence[str]):
        """Raises: DataError: a file is missing, empty, or may not be read."""
        self.paths = list(paths)
        self._watched = [FileStamp(path) for path in paths]
        self.bytes = [watched.bytes for watched in self._watched]
        self.packed = [self._from_disk(file, 0, 2) == b"\x1f\x8b" for file in range(len(paths))]
        self.sizes = [0 if packed else size for packed, size in zip(self.packed, self.bytes, strict=True)]
        self._kept: list[list[tuple[int, bytes]]] = [[] for _ in paths]
        self._spools: dict[int, Any] = {}
        self._unpacking: tuple[int, gzip.GzipFile] | None = None

    def read(self, file: int, low: int, high: int) -> bytes:
        """Bytes `low` to `high` of a file's text.

        Args:
            file: its place in `paths`.
            low, high: bytes of the text, which of a gzip file is what it unpacks to.

        Raises:
            DataError: the file cannot be read, has changed, or is gzip and cannot be unpacked.
        """
        pieces = []
        while low < high:
            kept, end = self._find(file, low, high)
            pieces.append(self._fetch(file, low, end) if kept is None else kept)
            low = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def begin(self, file: int) -> int:
        """Where the text begins: after a byte-order mark."""
        return len(_BOM) if self.read(file, 0, min(len(_BOM), self.sizes[file])) == _BOM else 0

    def keep(self, file: int, low: int, text: bytes) -> None:
        """Hold text in memory, which begins at `low`, so that it is not read again.

        Args:
            file: its place in `paths`.
            low: the byte of the file's text at which this begins.
        """
        self._kept[file].append((low, text))
        self._kept[file].sort(key=lambda kept: kept[0])

    def drop_all(self) -> None:
        """Let go of all kept text, of what was unpacked too."""
        self._kept = [[] for _ in self.paths]
        for spool in self._spools.values():
            spool.close()
        self._spools = {}

    def unpack(self, file: int) -> None:
        """Unpack a gzip file, once, into memory, or into a temporary file where it is larger than `KEEP_BYTES`.

        Raises:
            DataError: it is truncated or damaged, unpacks to more than the limit, or to more than there is room for.
        """
        most = most_unpacked(self.bytes[file])
        spool = tempfile.SpooledTemporaryFile(max_size=KEEP_BYTES // max(1, sum(self.packed)))  # noqa: SIM115
        self._spools[file] = spool
        try:
            with self._packed_errors(file), self._unpacker(file) as text:
                while block := text.read(_UNPACK_BYTES):
                    read_watch.goes_on()
                    self.sizes[file] += len(block)
                    if self.sizes[file] > most:
                        raise unpacks_to_too_much(self.paths[file], self.bytes[file])
                    self._put(file, block)
            self._watched[file].check()
        except BaseException:
            self.drop_all()  # of a temporary file nothing is left once it is closed
            raise

    def _put(self, file: int, block: bytes) -> None:
        """Raises: DataError: there is no room for it."""
        try:
            if self.sizes[file] > KEEP_BYTES // max(1, sum(self.packed)):
                status = os.statvfs(tempfile.gettempdir())
                if status.f_bavail * status.f_frsize < _LEFT_FREE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._spools[file].write(block)
        except OSError as error:
            raise DataError(
                f"{self.paths[file]} has been unpacked to {self.sizes[file]} bytes so far, and a temporary file cannot "
                f"take more ({error.strerror}; TMPDIR is {os.environ.get('TMPDIR', 'not set')}): set TMPDIR to a "
                "directory with room, or unpack the file yourself."
            ) from None

    def _find(self, file: int, low: int, high: int) -> tuple[bytes | None, int]:
        """Kept text from `low` on and where it ends; or None, and where there is kept text again."""
        end = high
        for begin, text in self._kept[file]:
            if begin <= low < begin + len(text):
                stop = min(high, begin + len(text))
                return text[low - begin : stop - begin], stop
            if low < begin < end:
                end = begin
        return None, end

    def _fetch(self, file: int, low: int, high: int) -> bytes:
        if not self.packed[file]:
            text = self._from_disk(file, low, high - low)
        elif file in self._spools:
            self._spools[file].seek(low)
            text = self._spools[file].read(high - low)
        else:
            text = self._unpack_again(file, low, high - low)
        self._watched[file].check()
        if len(text) < high - low:
            raise DataError(f"{self.paths[file]} changed while it was read: it ends at byte {low + len(text)} now.")
        return text

    def _from_disk(self, file: int, low: int, count: int) -> bytes:
        read = io.BytesIO()  # which hands its bytes out without a copy
        try:
            doing = f"read (bytes {low} to {low + count})"
            with read_watch.watched(self.paths[file], doing), addresses.open(self.paths[file]) as disk:
                disk.seek(low)
                while count > 0 and (piece := disk.read(min(count, _READ_BYTES))):
                    count -= read.write(piece)
                    read_watch.goes_on()
        except OSError as error:
            raise unreadable(self.paths[file], error) from None
        return read.getvalue()

    def _unpack_again(self, file: int, low: int, count: int) -> bytes:
        """From the file's start, or from where the last such read ended."""
        with self._packed_errors(file):
            if self._unpacking is None or self._unpacking[0] != file:
                if self._unpacking is not None:
                    self._unpacking[1].close()
                self._unpacking = file, self._unpacker(file)
            text = self._unpacking[1]
            text.seek(low)
            return text.read(count)

    def _unpacker(self, file: int) -> gzip.GzipFile:
        opened = addresses.open(self.paths[file], buffered=True)
        unpacker = gzip.GzipFile(fileobj=opened, mode="rb")
        unpacker.myfileobj = opened  # type: ignore[assignment]  # which is closed with it
        return unpacker

    @contextlib.contextmanager
    def _packed_errors(self, file: int) -> Iterator[None]:
        """Errors of the gzip module as DataErrors."""
        try:
            with read_watch.watched(self.paths[file], "unpacked"):
                yield
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{self.paths[file]} is not whole: it cannot be unpacked as gzip ({error}).") from None
        except OSError as error:
            raise unreadable(self.paths[file], error) from None
