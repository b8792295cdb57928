"""A file gets its name when it is whole: what was there before stays until then, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

from matex_tf.errors import SettingError

_Result = TypeVar("_Result")

_DRAFTS = ".matex-writing-"
_LONGEST_NAME = 200  # of the 255 that file systems allow
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def put(path: str | os.PathLike[str], write: Callable[[str], _Result]) -> _Result:
    """Write a file in a directory beside its place, flush it to disk, and move it there.

    The file that was there keeps its owner and mode; a link to it stays. Where nothing can be put beside it, or it is
    no plain file (a device, a pipe), it is written in its place. One process at a time: what a process leaves that was
    killed has the same name each time, and is gone with the next file.

    Args:
        write: writes a file of the same name in another directory; what it returns is returned.

    Raises:
        OSError: the file cannot be written; the old one is as it was.
    """
    place = os.path.realpath(path)
    before = _found(place)
    beside = _make_directory(place) if _replaceable(place, before) else None
    if beside is None:
        return write(os.fspath(path))
    draft = os.path.join(beside, os.path.basename(place))
    try:
        result = write(draft)
        if before is not None:
            _give(draft, before)
        _flush(draft)
        os.replace(draft, place)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        with contextlib.suppress(OSError):
            os.rmdir(beside)
    return result


def check(path: str | os.PathLike[str]) -> None:
    """See that `put` can begin.

    Raises:
        OSError: it cannot.
    """
    place = os.path.realpath(path)
    before = _found(place)
    beside = _make_directory(place) if _replaceable(place, before) else None
    if beside is not None:
        os.rmdir(beside)
    elif before is None or stat.S_ISREG(before.st_mode) or stat.S_ISDIR(before.st_mode):
        open(path, "ab").close()  # says what is amiss


def require(path: str, option: str) -> None:
    """The same, before there is anything to write.

    Args:
        path: of a file; empty for none.
        option: the flag that names it.

    Raises:
        SettingError: the file cannot be written.
    """
    try:
        if path:
            check(path)
    except OSError as error:
        raise SettingError(f"{path} cannot be written ({error.strerror}): give another file as {option}.") from None


def put_json(path: str | os.PathLike[str], value: Any, indent: int | None = None) -> None:
    """Write a value as JSON, see `put`."""

    def write(draft: str) -> None:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=indent)

    put(path, write)


def _replaceable(place: str, before: os.stat_result | None) -> bool:
    """Whether there is nothing, or a plain file that this user may write to."""
    return before is None or (stat.S_ISREG(before.st_mode) and os.access(place, os.W_OK))


def _found(place: str) -> os.stat_result | None:
    try:
        return os.stat(place)
    except OSError:
        return None


def _make_directory(place: str) -> str | None:
    """A directory beside a file that only this user can write to; None where there can be none.

    Raises:
        OSError: a disk that is full, and the like.
    """
    folder, name = os.path.split(place)
    made = os.path.join(folder, f"{_DRAFTS}{name[:_LONGEST_NAME]}")
    try:
        try:
            os.mkdir(made, 0o700)
            return made
        except FileExistsError:  # of a process that was killed, or somebody else's
            found = os.lstat(made)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                return made
            return tempfile.mkdtemp(prefix=_DRAFTS, dir=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            return None
        raise


def _give(draft: str, before: os.stat_result) -> None:
    """Let a file have the mode, and where that is allowed the owner, of the one before."""
    now = os.stat(draft)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(OSError):
            os.chown(draft, before.st_uid, before.st_gid)
    os.chmod(draft, stat.S_IMODE(before.st_mode))


def _flush(draft: str) -> None:
    """What a file system tells of a full disk at last, it tells here."""
    handle = os.open(draft, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
