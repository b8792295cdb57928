"""`open` for writing: the file is real on one rank, and takes what is written and forgets it on the others.

Each rank writes as it would; closing and flushing are meetings, so that whoever reads the file afterwards, by whatever
means, finds it complete. A file that is read as well as written is a private copy on the other ranks.

Relies on: `builtins.open`, `io.open`, `pathlib.Path.open`, `gzip.open`, `bz2.open`, `lzma.open`, and `close` of the
files that the last three give, public.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matex_tf.patches.files import callers, once, takeover
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import wrap

_COMPRESSED = {"gzip": "GzipFile.close", "bz2": "BZ2File.close", "lzma": "LZMAFile.close"}


def apply(module: ModuleType) -> None:
    """Patch builtins, io, pathlib, gzip, bz2 or lzma."""
    if module.__name__ == "builtins":
        wrap(module, "open", _open)
        io.open = module.open
    elif module.__name__ == "pathlib":
        wrap(module, "Path.open", _open_path)
    elif module.__name__ in _COMPRESSED:
        wrap(module, "open", _open_compressed)
        wrap(module, _COMPRESSED[module.__name__], _close_compressed)


def _open(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return _shared_open(lambda: wrapped(*args, **kwargs), *args, **kwargs)


def _open_path(wrapped: Any, path: Any, args: Any, kwargs: Any) -> Any:
    return _shared_open(lambda: wrapped(*args, **kwargs), path, *args, **kwargs)


def _shared_open(
    alone: Callable[[], Any],
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    where = callers.caller() if writes(file, mode) and closefd and opener is None else ""
    if not where:
        return alone()
    options = (buffering, encoding, errors, newline)
    return open_as(call_of("open", where, file, mode), os.fsdecode(file), mode, options, alone)


def call_of(name: str, where: str, file: Any, *details: Any) -> Call:
    """A call that opens a file; ranks that open the same at the same place do so together."""
    path = os.fsdecode(file)
    shown = once.describe((path, *details), {})
    return Call(name, where, shown, os.path.dirname(path) or ".")


def meet_after(doing: str, call: Call | None) -> None:
    """Meet when something has been done to a file that `call` has opened, such as "close"; no other place is needed.

    Args:
        call: None where this rank opened it by itself.
    """
    if call is not None and callers.shared():
        once.together(Call(f"{doing} of {call.name}", call.where, call.details, call.folder))


def open_as(
    call: Call, path: str, mode: str, options: tuple[int, str | None, str | None, str | None], alone: Callable[[], Any]
) -> Any:
    """Open a file for writing on one rank, and the likeness of one on the others.

    Args:
        call: where the script does.
        options: buffering, encoding, errors and newline, as `open` takes them.
        alone: opens it on a rank that is on its own.
    """
    raw_mode = "".join(letter for letter in mode if letter in "wax+r")
    copied = "+" in mode and mode[0] != "w"

    def act() -> Any:
        if os.path.isdir(path):
            return open(path, mode)  # says what is wrong
        return _built(_RealFile(path, raw_mode), mode, *options, call=call)

    def elsewhere(size: int) -> Any:
        raw = _Copy(path, copied, "a" in mode) if "+" in mode else Sink(path, raw_mode, size)
        return _built(raw, mode, *options, call=call)

    file = once.do(call, act, lambda opened: opened.tell(), elsewhere, alone)
    if isinstance(file, _Meets):
        if copied:
            meet_after("copy", call)
        raw = getattr(getattr(file, "buffer", file), "raw", file)
        takeover.watch(raw if isinstance(raw, Sink) else file, path, call.folder)
    return file


def writes(file: Any, mode: Any) -> bool:
    """Whether a file of a name is opened for writing; devices and what the kernel shows as files are no such files."""
    if not isinstance(mode, str) or not set(mode) & set("wax+") or not isinstance(file, (str, bytes, os.PathLike)):
        return False
    path = os.fsdecode(file)
    return not path.startswith(("/dev/", "/proc/")) or path.startswith("/dev/shm/")


class _Meets:
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


class _Text(_Meets, io.TextIOWrapper):
    pass


class _Writer(_Meets, io.BufferedWriter):
    pass


class _Random(_Meets, io.BufferedRandom):
    pass


class _RealFile(_Meets, io.FileIO):
    pass


class _Copy(_Meets, io.FileIO):
    """A private copy of a file, or an empty one; gone with this rank."""

    def __init__(self, path: str, whole: bool, appends: bool):
        with tempfile.TemporaryFile(prefix="matex-", buffering=0) as nameless:  # O_TMPFILE where the system has it
            handle = os.dup(nameless.fileno())
        if whole:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as source:
                with open(handle, "wb", closefd=False) as copy:
                    shutil.copyfileobj(source, copy)
                os.lseek(handle, 0, os.SEEK_SET)
        if appends:
            fcntl.fcntl(handle, fcntl.F_SETFL, os.O_APPEND)
            os.lseek(handle, 0, os.SEEK_END)
        super().__init__(handle, "r+")
        self.name = path


class Sink(_Meets, io.RawIOBase):
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

    def isatty(self) -> bool:
        return False

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


def _built(
    raw: Any, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None, call: Call
) -> Any:
    """The layers that `open` puts on a raw file, the outermost of which meets."""
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


def _open_compressed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    file = args[0] if args else kwargs.get("filename")
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "rb")
    where = callers.caller() if writes(file, mode) else ""
    if not where:
        return wrapped(*args, **kwargs)
    path, call = os.fsdecode(file), call_of("open", where, file, mode)
    rest, named = args[2:], {name: value for name, value in kwargs.items() if name not in ("filename", "mode")}
    raw = open_as(call, path, mode.replace("t", "").replace("b", "") + "b", (-1, None, None, None), lambda: None)
    if raw is None:
        return wrapped(file, mode, *rest, **named)
    opened = wrapped(raw, mode, *rest, **named)
    inner = getattr(opened, "buffer", opened)
    inner._matex_closes = raw  # closed with it, see `_close_compressed`
    return opened


def _close_compressed(wrapped: Any, file: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    raw = vars(file).pop("_matex_closes", None)
    if raw is not None:
        raw.close()
    return result
