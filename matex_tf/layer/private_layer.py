"""The layer of this rank: what it writes below some directories is kept beside them, in TMPDIR, and seen by it alone.

`kernel.leave_mounts` comes first, before Python has a thread. The layer is put up later, when ranks know each other.
What is below is read at full speed. It must not change before all ranks have done the same, or one would append to what
another has appended to already: so the first rank has a layer as well, and what is in it is put below when the ranks
meet (`publish`), and at the end. Of a rank that was killed, whoever comes next does it (`leftovers`).

A directory or a file of another owner or group cannot be copied into the layer of an ordinary user (EOVERFLOW): such
directories are made in it beforehand, and `shortcomings` puts a copy in the place of such a file before it is written
to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from matex_tf.layer import kernel, leftovers, places, strangers
from matex_tf.layer.publication import Publication
from matex_tf.storage.private_directory import Folder

#: Directories of another group that are made in a layer at its start.
_MOST_MIRRORED = 20_000
#: The owner, or group, of a file whose own one is not in the user namespace.
_NOBODY = 65534


class PrivateLayer:
    """A layer over some directories, from `__init__` to the end of this process.

    Attributes:
        tops: the directories.
        place: the one of TMPDIR and its kin in which what is written lies.
        shared_by: for each directory the ranks that share its file system, by the numbers that they had at the start.
        moved: see `shortcomings.make_up_for`; what this rank has published is taken out.
    """

    def __init__(
        self,
        tops: Sequence[str],
        tried: Sequence[str],
        common: Sequence[str] = (),
        published: Sequence[str] = (),
        room: int = 0,
    ):
        """Put it up, and try it.

        Args:
            tops: none below another.
            published: those of `tops` in which what this rank does counts.
            tried: directories below them in which a file is made, changed, and removed.
            common: directories below them that stay those of all ranks.
            room: bytes that must be free where what is written is kept, on a disk; 0 for what there is.

        Raises:
            OSError, MatexError: it cannot be; there is none then.
        """
        self.tops = list(tops)
        self.shared_by: dict[str, list[int]] = {}
        self.moved: dict[str, str] = {}
        self._publications: dict[str, Publication] = {}
        self._mounted: list[str] = []
        self._lower = {top: os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for top in tops}
        here, last = os.getcwd(), OSError(errno.ENOENT, "there is no directory for what a rank writes")
        for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
            try:
                _see_room(place, room)
                self._put_up(place, tried, common)
            except OSError as error:
                last = error
                self.take_down()
                os.chdir(here)
                continue
            for top in published:
                self.be_first(top)
            return
        raise last

    def _put_up(self, place: str, tried: Sequence[str], common: Sequence[str]) -> None:
        kept = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) for path in common]
        here = os.getcwd()
        with Folder(Path(place), [leftovers.name()], "TMPDIR") as folder:
            hidden = os.path.realpath(folder.path)
            self.place = place
            base = leftovers.begin(hidden)
        self._base, self.base = base, self._outside(base)
        self._lock = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for number, top in enumerate(self.tops):
            parts = os.path.join(base, str(number))
            os.makedirs(os.path.join(parts, "upper"))
            os.mkdir(os.path.join(parts, "work"))
            os.symlink(top, os.path.join(parts, "top"))
            with kernel.all_rights():
                self._prepare(os.path.join(parts, "upper"), top, tried, hidden)
        for number, top in enumerate(self.tops):
            parts = f"/proc/self/fd/{self._lock}/{number}"
            kernel.overlay(top, self._lower[top], f"{parts}/upper", f"{parts}/work")
            self._mounted.append(top)
        for path, original in kept:
            kernel.bind(path, original)
            os.close(original)
        os.chdir(here)
        for path in tried:
            _try(path)

    def _outside(self, path: str) -> str:
        """A path that leads below the layer."""
        for top, lower in self._lower.items():
            if path == top or path.startswith(top.rstrip("/") + "/"):
                return f"/proc/self/fd/{lower}/{os.path.relpath(path, top)}"
        return path

    def _prepare(self, upper: str, top: str, tried: Sequence[str], hidden: str) -> None:
        """Let the upper directory have what must be there before the mount."""
        _mirror(top, upper)
        left = _MOST_MIRRORED
        for path in map(os.path.realpath, tried):
            if path != top and not path.startswith(top + "/"):
                continue
            _make_parents(top, upper, path, only_foreign=True)
            left = self._mirror_below(path, os.path.join(upper, os.path.relpath(path, top)), left)
        if hidden.startswith(top + "/"):  # or a script that walks through TMPDIR would come into the layers
            whiteout = os.path.join(upper, os.path.relpath(hidden, top))
            _make_parents(top, upper, os.path.dirname(hidden))
            os.mknod(whiteout, stat.S_IFCHR, 0)

    def _mirror_below(self, path: str, made: str, left: int) -> int:
        """Make the directories of other groups below one that is such itself; how many more may be made."""
        if _own(os.stat(path)):
            return left
        with os.scandir(path) as entries:
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in folders:
            if left <= 0:
                raise OSError(errno.EOVERFLOW, f"more than {_MOST_MIRRORED} directories of another group", path)
            inside, beside = os.path.join(path, name), os.path.join(made, name)
            if not _own(os.stat(inside)) and os.access(inside, os.R_OK | os.W_OK | os.X_OK):
                os.makedirs(beside, exist_ok=True)
                _mirror(inside, beside)
                left = self._mirror_below(inside, beside, left - 1)
        return left

    def be_first(self, top: str, only_newer: bool = False) -> None:
        """From now on what this rank does in a directory counts.

        Args:
            only_newer: whether to leave what is there and not older: another rank has put it there.
        """
        if top not in self._publications:
            parts = os.path.join(self.base, str(self.tops.index(top)))
            Path(parts, leftovers.FIRST).touch()
            said = os.path.join(parts, strangers.SAID_IN)
            Path(said).touch()
            self._publications[top] = Publication(
                self._upper(top),
                self._real(top),
                self.base,
                only_newer=only_newer,
                said_in=said,
            )
            if not only_newer:
                self._publications[top].skip_present()

    def devices(self) -> dict[str, int]:
        """The directories, and the number of the device that each is on."""
        return {top: os.stat(lower).st_dev for top, lower in self._lower.items()}

    def publish(self) -> None:
        """Put what counts to where the script thinks that it is."""
        for top, publication in self._publications.items():
            for paths in self.moved.items():
                if all(path.startswith(top + os.sep) for path in paths):
                    publication.move(*(os.path.relpath(path, top) for path in paths))
            publication.publish()
        self.moved.clear()

    def first_of(self) -> dict[str, str]:
        """The directories in which what this rank does counts, and where it says what will appear there."""
        tops = (top for top in self.tops if top in self._publications)
        return {top: os.path.join(self._base, str(self.tops.index(top)), strangers.SAID_IN) for top in tops}

    def strangers_of(self, first: Mapping[str, str]) -> list[strangers.Strangers]:
        """What other ranks of this node put into directories of this one's. Args: first: see `first_of`, of those."""
        return [
            strangers.Strangers(top, self._upper(top), self._real(top), self._outside(said_in))
            for top, said_in in first.items()
            if top in self.tops and top not in self._publications
        ]

    def _upper(self, top: str) -> str:
        return os.path.join(self.base, str(self.tops.index(top)), "upper")

    def _real(self, top: str) -> str:
        """A directory as it is below the layer."""
        return f"/proc/self/fd/{self._lower[top]}"

    def keep_missing(self) -> int:
        """Put there what this rank alone has made; how many files, but for byte code."""
        count = 0
        for top in self.tops:
            if top not in self._publications:
                count += Publication(self._upper(top), self._real(top), self.base, only_missing=True).publish()
        return count

    def refresh(self) -> None:
        """See what another rank has written below, also where this one has looked before."""
        for top in self._mounted:
            kernel.refresh(top)

    def take_down(self) -> None:
        """Take it away again: nothing was written yet."""
        while self._mounted:
            kernel.unmount(self._mounted.pop())
        self.remove()

    def remove(self) -> None:
        """Give back the room that it has taken; this process ends."""
        if base := getattr(self, "base", ""):
            leftovers.remove(base)


def _see_room(place: str, room: int) -> None:
    if not room:
        return
    free = os.statvfs(place)
    if places.in_memory(place):
        raise OSError(errno.ENOSPC, "files in it are kept in memory", place)
    if free.f_bavail * free.f_frsize < room:
        raise OSError(errno.ENOSPC, f"less than {room >> 30} GB are free", place)


def _own(found: os.stat_result) -> bool:
    """Whether a file can be copied into the layer."""
    return found.st_uid != _NOBODY and found.st_gid != _NOBODY


def _make_parents(top: str, upper: str, path: str, only_foreign: bool = False) -> None:
    """Make a directory in a layer, and those above it; only those of others, with what they lie in, if that is said."""
    inside, made = top, upper
    for part in os.path.relpath(path, top).split(os.sep) if path != top else ():
        inside, made = os.path.join(inside, part), os.path.join(made, part)
        if not os.path.isdir(made) and not (only_foreign and _own(os.stat(inside))):
            os.makedirs(made)
            _mirror(inside, made)


def _mirror(path: str, made: str) -> None:
    """Let a directory of a layer allow what the one below it allows this user."""
    found = os.stat(path)
    mode = stat.S_IMODE(found.st_mode)
    try:
        os.chown(made, found.st_uid, found.st_gid)
    except OSError:  # it is another user's
        own = sum(bit << 6 for bit in (os.R_OK, os.W_OK, os.X_OK) if os.access(path, bit))
        mode = mode & ~0o700 | own
    os.chmod(made, mode)


def _try(path: str) -> None:
    """See that a file can be made, changed, renamed and removed in a directory, if the user may."""
    if not os.access(path, os.W_OK):
        return
    handle, draft = tempfile.mkstemp(prefix=".matex-layer-", dir=path)
    try:
        os.write(handle, b"1")
        os.rename(draft, f"{draft}-")
        draft += "-"
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(draft)
