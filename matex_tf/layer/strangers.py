"""What the first rank has put into a directory that this rank has changed too: it is not there for this one.

Names that come of the clock or of a process's number differ between ranks. A rank has the file that it has made itself,
and would find the first rank's beside it, once that is in its place. One process finds one. So the first rank says what
will appear, and whoever lists a directory removes from its own layer what it has not made itself.

A directory that a rank has not changed shows what the first rank puts there: what one rank downloads for all, say.
Python says before it lists a directory; what C libraries list is as it was when the ranks last met.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence

#: Beside a layer: the names, each with a 0 at its end.
SAID_IN = "said"
_LISTS = frozenset(("os.listdir", "os.scandir"))


class Strangers:
    """Files that another rank puts below one directory."""

    def __init__(self, top: str, upper: str, real: str, said_in: str):
        """Args:
        top: the directory.
        upper: this rank's layer over it.
        real: the directory without the layer.
        said_in: what the other rank writes names to.
        """
        self._top, self._upper, self._real = top, upper, real
        self._handle = os.open(said_in, os.O_RDONLY | os.O_CLOEXEC)
        self._read, self._rest, self._left = 0, b"", list[str]()

    def hide(self) -> None:
        """Remove those that have appeared."""
        while text := os.pread(self._handle, 1 << 16, self._read):
            self._read += len(text)
            *whole, self._rest = (self._rest + text).split(b"\0")
            self._left += map(os.fsdecode, whole)
        if self._left:
            self._left = [name for name in self._left if not self._is_hidden(name)]

    def _is_hidden(self, name: str) -> bool:
        """Whether this rank has it, or has it no more; else it may come, or this rank may change the directory.

        What is not below yet is not looked for in `top`: overlayfs would keep in mind that it is not there.
        """
        own, place = os.path.join(self._upper, name), os.path.join(self._top, name)
        if os.path.lexists(own):
            return True
        if not os.path.isdir(os.path.dirname(own)) or not os.path.lexists(os.path.join(self._real, name)):
            return False
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(place)
        return True


def watch(strangers: Sequence[Strangers], sees_others: Callable[[], bool]) -> Callable[[], None]:
    """Hide them before a directory is listed, to the end of this process; and whenever the result is called.

    Args:
        sees_others: whether the script may look for files of other ranks.
    """
    hiding = False

    def hide() -> None:
        nonlocal hiding
        if hiding or sees_others():
            return
        hiding = True
        try:
            for each in strangers:
                each.hide()
        finally:
            hiding = False

    sys.addaudithook(lambda event, args: hide() if event in _LISTS else None)
    return hide
