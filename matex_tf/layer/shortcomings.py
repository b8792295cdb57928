"""What overlayfs cannot do and a directory can, made up for where Python asks for it.

A file of another owner or group cannot be copied into the layer of an ordinary user as it is (EOVERFLOW): a copy of the
user's own takes its place in the layer before it is written to. A directory that is below a layer cannot get another
name, and nothing a name in another layer (EXDEV): it is copied. What so moves is told to who publishes, and gets its
other name there: it stays that of its owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from matex_tf.layer import names

#: Events of Python at which a file is about to be changed, see the table of audit events.
_CHANGES = frozenset(("os.rename", "os.chmod", "os.chown", "os.truncate", "os.utime", "os.link", "sqlite3.connect"))
_NOBODY = 65534
#: Attribute of a copy of another's file, and of a directory that has moved: what is then published goes into that one.
IN_PLACE = "user.matex.in_place"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


def make_up_for(devices: Mapping[str, int], user_namespace: bool) -> dict[str, str]:
    """Do so from now on, to the end of this process.

    Args:
        devices: the directories that have a layer, and the number of the device of each.
        user_namespace: whether files of others cannot be copied.

    Returns:
        What has another name now, with the one that it had: files of others, and directories; it changes.
    """
    moved: dict[str, str] = {}
    if user_namespace:
        sys.addaudithook(_before)
    for name in ("rename", "replace", "link"):
        setattr(os, name, _moving(getattr(os, name), devices, moved))
    return moved


def _before(event: str, args: tuple[Any, ...]) -> None:
    opens = event == "open" and isinstance(args[2], int) and args[2] & _WRITING
    if (opens or event in _CHANGES) and isinstance(args[0], (str, bytes, os.PathLike)):
        with contextlib.suppress(OSError, ValueError), names.drawn_apart():
            take_over(os.fsdecode(args[0]), follow=event != "os.rename")


def take_over(path: str, follow: bool = True) -> None:
    """Put a copy in the place of a file of another owner or group, so that it can be changed as the user's own. Nothing
    where it is the user's, or neither a plain file nor a link.

    Args:
        path: of the file, or of a link.
        follow: whether the file is meant that a link leads to; else a link of another owner is made anew.
    """
    path = os.path.realpath(path) if follow else _itself(path)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and _NOBODY in (found.st_uid, found.st_gid):
        target = os.readlink(path)
        os.remove(path)
        return os.symlink(target, path)
    if not stat.S_ISREG(found.st_mode) or _NOBODY not in (found.st_uid, found.st_gid) or not os.access(path, os.W_OK):
        return
    handle, draft = tempfile.mkstemp(prefix=".matex-", dir=os.path.dirname(path))
    os.close(handle)
    shutil.copyfile(path, draft)
    os.chmod(draft, stat.S_IMODE(found.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
    os.utime(draft, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.remove(path)
    os.rename(draft, path)
    _mark(path)


def _itself(path: Any) -> str:
    """The whole path of a file, or of a link, which is not followed."""
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    return os.path.join(os.path.realpath(folder), name)


def _mark(copy: str) -> None:
    with contextlib.suppress(OSError):  # a file system without attributes: the file is the user's from then on
        os.setxattr(copy, IN_PLACE, b"y")


def _copy(file: str, copy: str) -> None:
    shutil.copyfile(file, copy)
    if os.stat(file).st_uid != os.geteuid():
        _mark(copy)  # before it may be one that nobody writes to
    shutil.copystat(file, copy)


def _moving(move: Any, devices: Mapping[str, int], told: dict[str, str]) -> Any:
    """`move` of `os`, which gives a file another name; what layers alone forbid is done with a copy."""

    def tell(src: Any, dst: Any) -> None:
        """Something with a mark has moved."""
        with contextlib.suppress(OSError):
            before, now = _itself(src), _itself(dst)
            os.getxattr(now, IN_PLACE, follow_symlinks=False)
            told[now] = told.pop(before, before)

    def moved(src: Any, dst: Any, **places: Any) -> None:
        try:
            move(src, dst, **places)
            return tell(src, dst) if not places and move.__name__ != "link" else None
        except OSError as error:
            ways = {_device(path, devices) for path in (src, dst)} if not places else ()
            if error.errno != errno.EXDEV or len(ways) != 1 or None in ways:
                raise
        with names.drawn_apart():
            draft = tempfile.mkdtemp(prefix=".matex-", dir=os.path.dirname(os.path.abspath(os.fsdecode(dst))))
        copy = os.path.join(draft, "copy")
        try:
            if os.path.isdir(src) and not os.path.islink(src):
                shutil.copytree(src, copy, symlinks=True, copy_function=_copy)
                _mark(copy)
            else:
                shutil.copy2(src, copy, follow_symlinks=False)
            move(copy, dst)
            tell(src, dst)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if move.__name__ != "link":
            shutil.rmtree(src) if os.path.isdir(src) and not os.path.islink(src) else os.unlink(src)

    moved.__name__, moved.__doc__ = move.__name__, move.__doc__
    return moved


def _device(path: Any, devices: Mapping[str, int]) -> int | None:
    """The device that a path is on below its layer; None where it has no layer, or leads below it by an open one."""
    path = os.path.abspath(os.fsdecode(path))
    if path.startswith("/proc/"):
        return None
    path = os.path.join(os.path.realpath(os.path.dirname(path)), "")
    return next((device for top, device in devices.items() if path.startswith(top.rstrip("/") + "/")), None)
