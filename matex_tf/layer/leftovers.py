"""What layers leave in TMPDIR: removed as a rank ends. Of ranks that were killed, whoever comes next puts what counts
to where it belongs, and removes the rest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time

from matex_tf.layer.publication import HIDDEN, Publication

#: Beside a layer, if what is in it counts.
FIRST = "first"
_NEW = "new-"  # of a directory that is not yet locked
_NEW_SECONDS = 60.0


def name() -> str:
    """Of the directory in TMPDIR that has the layers of this user."""
    return f"{HIDDEN}{os.geteuid()}"


def begin(place: str) -> str:
    """A directory for a layer, which is this process's as long as it lives."""
    draft = tempfile.mkdtemp(prefix=_NEW, dir=place)
    held = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # and never closed
    fcntl.flock(held, fcntl.LOCK_EX)
    base = os.path.join(place, os.path.basename(draft).removeprefix(_NEW))
    os.rename(draft, base)
    return base


def remove(base: str) -> None:
    """Remove the files of a layer. Nobody need be able to read the directories that overlayfs makes for itself."""
    with contextlib.suppress(OSError):
        for folder, names, _ in os.walk(base):
            for each in names:
                path = os.path.join(folder, each)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
    shutil.rmtree(base, ignore_errors=True)
    with contextlib.suppress(OSError):  # others have theirs in it
        os.rmdir(os.path.dirname(base))


def tidy(place: str = "") -> None:
    """See to the layers of ranks that are no more, in a TMPDIR."""
    with contextlib.suppress(OSError):
        place = os.path.join(place or tempfile.gettempdir(), name())
        if os.stat(place, follow_symlinks=False).st_uid != os.geteuid():
            return
        for each in os.listdir(place):
            if each.startswith(_NEW) and time.time() - os.stat(os.path.join(place, each)).st_mtime < _NEW_SECONDS:
                continue
            _remove_of_the_dead(os.path.join(place, each))
        os.rmdir(place)


def _remove_of_the_dead(base: str) -> None:
    with contextlib.suppress(OSError):
        held = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for parts in os.scandir(base):
                if os.path.exists(os.path.join(parts.path, FIRST)):
                    upper, top = os.path.join(parts.path, "upper"), os.readlink(os.path.join(parts.path, "top"))
                    Publication(upper, top, only_newer=True).publish()
            remove(base)
        finally:
            os.close(held)
