"""What overlayfs cannot do and a directory can, made up for where Python asks for it.

A file of another owner or group cannot be copied into the layer of an ordinary user as it is (EOVERFLOW): a copy of the
user's own takes its place in the layer before it is written to. A directory that is below a layer cannot get another
name (EXDEV): what is in it is copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from matex_tf.layer import names

#: Events of Python at which a file is about to be changed, see the table of audit events.
_CHANGES = frozenset(("os.rename", "os.chmod", "os.chown", "os.truncate", "os.utime", "os.link", "sqlite3.connect"))
_NOBODY = 65534
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


def make_up_for(tops: Sequence[str], user_namespace: bool) -> None:
    """Do so from now on, to the end of this process.

    Args:
        tops: the directories that have a layer.
        user_namespace: whether files of others cannot be copied.
    """
    if user_namespace:
        sys.addaudithook(_before)
    for name in ("rename", "replace"):
        setattr(os, name, _renaming(getattr(os, name), tops))


def _before(event: str, args: tuple[Any, ...]) -> None:
    opens = event == "open" and isinstance(args[2], int) and args[2] & _WRITING
    if (opens or event in _CHANGES) and isinstance(args[0], (str, bytes, os.PathLike)):
        with contextlib.suppress(OSError, ValueError), names.drawn_apart():
            take_over(os.fsdecode(args[0]))


def take_over(path: str) -> None:
    """Put a copy in the place of a file of another owner or group. Nothing where it is the user's, or no plain file."""
    path = os.path.realpath(path)
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or _NOBODY not in (found.st_uid, found.st_gid) or not os.access(path, os.W_OK):
        return
    handle, draft = tempfile.mkstemp(prefix=".matex-", dir=os.path.dirname(path))
    os.close(handle)
    shutil.copyfile(path, draft)
    os.chmod(draft, stat.S_IMODE(found.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
    os.utime(draft, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.remove(path)
    os.rename(draft, path)


def _renaming(rename: Any, tops: Sequence[str]) -> Any:
    def renamed(src: Any, dst: Any, **places: Any) -> None:
        try:
            return rename(src, dst, **places)
        except OSError as error:
            if error.errno != errno.EXDEV or places or os.path.islink(src) or not os.path.isdir(src):
                raise
            if len({_top(path, tops) for path in (src, dst)}) > 1:
                raise
        if os.path.isdir(dst):
            os.rmdir(dst)
        shutil.copytree(src, dst, symlinks=True)
        shutil.rmtree(src)

    renamed.__name__, renamed.__doc__ = rename.__name__, rename.__doc__
    return renamed


def _top(path: Any, tops: Sequence[str]) -> str:
    path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path)))), "")
    return next((top for top in tops if path.startswith(top + "/")), "")
