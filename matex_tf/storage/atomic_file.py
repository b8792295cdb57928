"""A file gets its name when it is whole: what was there before stays until then, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from matex_tf.errors import SettingError

_Result = TypeVar("_Result")

_DRAFTS = ".matex-writing-"
_LONGEST_NAME = 200  # bytes, of the 255 that file systems allow
_MOST_LINKS = 40  # as Linux has it
_BOOT = "/proc/sys/kernel/random/boot_id"
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def put(path: str | os.PathLike[str], write: Callable[[str], _Result]) -> _Result:
    """Write a file in a directory beside its place, flush it to disk, and move it there.

    The file that was there keeps its owner and mode; a link to it stays. Where nothing can be put beside it, or it is
    no plain file (a device, a pipe), it is written in its place. Where several write at once each has a directory of
    its own, and the last one's file stays, whole. What a process leaves that was killed is gone with the next file of
    this name that is written on the same machine.

    Args:
        write: writes a file of the same name in another directory; what it returns is returned.

    Raises:
        OSError: the file cannot be written; the old one is as it was.
    """
    place = _followed(path)
    before = _found(place)
    with _directory_beside(place, before) as beside:
        if beside is None:
            return write(os.fspath(path))
        draft = os.path.join(beside, os.path.basename(place))
        result = write(draft)
        if before is not None:
            _give(draft, before)
        _flush(draft)
        os.replace(draft, place)
    return result


def check(path: str | os.PathLike[str]) -> None:
    """See that `put` can begin.

    Raises:
        OSError: it cannot.
    """
    place = _followed(path)
    before = _found(place)
    with _directory_beside(place, before) as beside:
        can = beside is not None
    if can:
        return
    if before is None or stat.S_ISREG(before.st_mode) or stat.S_ISDIR(before.st_mode):
        open(path, "ab").close()  # says what is amiss


def require(path: str, option: str) -> None:
    """See that a file can be written, before there is anything to write.

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


def _followed(path: str | os.PathLike[str]) -> str:
    """Where links lead, but none that somebody else has put into a directory that all can write to, such as /tmp.

    Linux follows no such link at the end of a path where `fs.protected_symlinks` is set, as it is nearly everywhere.

    Raises:
        OSError: there is such a link, or links lead in a circle.
    """
    place, links = "/", 0
    waiting = os.path.join(os.getcwd(), os.fsdecode(path)).split("/")[::-1]
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = os.path.dirname(place)
            continue
        here = os.path.join(place, part)
        try:
            target = os.readlink(here)
        except OSError:  # no link, or nothing at all
            place = here
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        folder, link = os.stat(place), os.lstat(here)
        open_to_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if open_to_all and link.st_uid not in (os.geteuid(), folder.st_uid):
            why = "a link that another user has put into a directory that all can write to is not followed"
            raise PermissionError(errno.EACCES, why, here)
        place = "/" if target.startswith("/") else place
        waiting += target.split("/")[::-1]
    return place


@contextlib.contextmanager
def _directory_beside(place: str, before: os.stat_result | None) -> Iterator[str | None]:
    """A directory beside a file that only this user can write to, and this call alone uses; None where there is none.

    It is locked as long as it is used, so that the next call tells it from one of a process that was killed. The lock
    need not reach other machines: each clears its own.

    Raises:
        OSError: a disk that is full, and the like.
    """
    made, lock = _make_directory(place) if _replaceable(place, before) else (None, -1)
    try:
        yield made
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
            if lock >= 0:
                os.close(lock)


def _make_directory(place: str) -> tuple[str | None, int]:
    """The directory, and a descriptor that is locked; or None and -1."""
    folder, name = os.path.split(place)
    prefix, suffix = f"{_DRAFTS}{_machine()}-", "-" + os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])
    _clear(folder, prefix, suffix)
    try:
        while True:
            made = tempfile.mkdtemp(suffix, prefix, folder)
            try:
                lock = _locked(made)
            except OSError:  # a file system without locks, on which nothing is cleared
                return made, -1
            if lock is not None:
                return made, lock
    except FileNotFoundError:
        return None, -1
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            return None, -1
        raise


def _clear(folder: str, prefix: str, suffix: str) -> None:
    """Remove what processes of this machine have left for a file that were killed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not (entry.name.startswith(prefix) and entry.name.endswith(suffix)):
                continue
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                lock = _locked(entry.path)
                if lock is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def _locked(directory: str) -> int | None:
    """A descriptor of a directory that nobody else has locked; None where somebody has, or it is gone.

    Raises:
        OSError: the file system has no locks.
    """
    with contextlib.ExitStack() as open_ones, contextlib.suppress(BlockingIOError, FileNotFoundError):
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        open_ones.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.lstat(directory)):
            open_ones.pop_all()
            return lock
    return None


def _machine() -> str:
    """What tells machines apart, as long as they run."""
    with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as file:
        return file.read()[:8]
    return "unknown"


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
