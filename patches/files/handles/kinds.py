"""What ranks hold of a file that is opened for writing: the file, something that takes what is written, or a copy.

Closing and flushing any of them is a meeting, so that whoever reads the file afterwards finds it complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
from typing import Any

from matex_tf.patches.files import callers, once
from matex_tf.patches.files.once import Call


def meet_after(doing: str, call: Call | None) -> None:
    """Meet when something has been done to a file that `call` has opened, such as "close"; no other place is needed.

    Args:
        doing: what has been done, in words. call: None where this rank opened it by itself.
    """
    if call is not None and callers.shared():
        once.together(Call(f"{doing} of {call.name}", call.where, call.details, call.folder))


def copy_without_name(path: str, whole: bool, appends: bool) -> int:
    """A descriptor of a private file without a name; gone with this rank.

    Args:
        path: of the file that it stands for. whole: whether it begins as a copy of that, or empty.
        appends: whether all that is written goes to its end.
    """
    with tempfile.TemporaryFile(prefix="matex-", buffering=0) as nameless:  # O_TMPFILE where the system has it
        handle = os.dup(nameless.fileno())
    if whole:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as source:
            with open(handle, "wb", closefd=False) as copy:
                shutil.copyfileobj(source, copy)
            os.lseek(handle, 0, os.SEEK_SET)
    if appends:
        fcntl.fcntl(handle, fcntl.F_SETFL, os.O_APPEND)
    return handle


class Meets:
    """A file whose closing and flushing are meetings."""

    _call: Call | None = None
    _ending = False

    def close(self) -> None:
        if self.closed or self._ending:  # type: ignore[attr-defined]
            return super().close()  # type: ignore[misc]
        self._ending = True
        super().close()  # type: ignore[misc]
        meet_after("close", self._call)

    def flush(self) -> None:
        super().flush()  # type: ignore[misc]
        if not self._ending:
            meet_after("flush", self._call)


class _Text(Meets, io.TextIOWrapper):
    pass


class _Writer(Meets, io.BufferedWriter):
    pass


class _Random(Meets, io.BufferedRandom):
    pass


class RealFile(Meets, io.FileIO):
    held: Any = None  # of a descriptor that it was made of


class Copy(Meets, io.FileIO):
    """A private copy of a file, or an empty one; gone with this rank."""

    def __init__(self, path: str, whole: bool, appends: bool):
        handle = copy_without_name(path, whole, appends)
        if appends:
            os.lseek(handle, 0, os.SEEK_END)
        super().__init__(handle, "r+")
        self.name = path


class Sink(Meets, io.RawIOBase):
    """Takes what is written, forgets it, and knows how much it was."""

    def __init__(self, path: str, mode: str, size: int):
        self.name, self.mode = path, mode + "b"
        self._appends = "a" in mode
        self._size = self._position = size
        self._handle, self._real = -1, False
        self._skipped = 0  # of what this rank wrote, what the rank before it had written already

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        count = memoryview(data).nbytes
        if self._real:
            done = min(self._skipped, count)
            self._skipped -= done
            written = memoryview(data).cast("B")[done:]
            while written:
                written = written[os.write(self._handle, written) :]
        self._position = (self._size if self._appends else self._position) + count
        self._size = max(self._size, self._position)
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        if self._real:
            os.lseek(self._handle, self._position, os.SEEK_SET)
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        if self._real:
            os.truncate(self._handle, self._size)
        return self._size

    def fileno(self) -> int:
        """A descriptor of /dev/null, for those that write past Python."""
        if self._handle < 0:
            self._handle = os.open(os.devnull, os.O_RDWR)
        return self._handle

    def take_over(self) -> int:
        """Be the file from now on, in place of a rank that has died; how many bytes are missing of it.

        What that rank has written and this one has not yet is skipped when this one comes to it.
        """
        handle = os.open(self.name, os.O_WRONLY | os.O_CREAT)
        there = os.lseek(handle, 0, os.SEEK_END)
        missing = max(0, self._size - there)
        self._skipped = max(0, there - self._size)
        if self.closed:
            os.close(handle)
            return missing
        if self._position < self._size:  # the script has gone back in it
            self._skipped = 0
            os.lseek(handle, self._position, os.SEEK_SET)
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._real = handle, True
        return missing

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        super().close()


def built(
    raw: Any, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None, call: Call
) -> Any:
    """The layers that `open` puts on a raw file, the outermost of which meets.

    Args:
        raw: the file, unbuffered. mode, buffering, encoding, errors, newline: see `open`. call: with which ranks meet.

    Raises:
        ValueError: as `open` raises it, for arguments that do not go together. The raw file is closed then.
    """
    file: Any = raw
    try:
        text = "b" not in mode
        if text and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        if not text and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        if buffering != 0:
            size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
            kinds = (io.BufferedRandom, io.BufferedWriter) if text else (_Random, _Writer)
            file = kinds["+" not in mode](raw, size)
        if text:
            file = _Text(file, encoding, errors, newline, line_buffering=buffering == 1)
            file.mode = mode
    except BaseException:
        raw.close()
        raise
    file._call = call
    return file
