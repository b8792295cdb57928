"""What is in a layer is put to where the script thinks that it is: files whole, as links where that can be.

The rank that has the first word on a file system does so whenever all ranks meet. Then the others have changed the same
in their own layers, and do not see what it puts below them. A file that was put there is put there again once it has
changed; what has been removed in the layer is removed once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass, field

from matex_tf.layer import names
from matex_tf.layer.shortcomings import IN_PLACE

HIDDEN = "matex-layers-"  # begins the name of the directory of the layers, which no layer shows
_BYTE_CODE = ".pyc"  # which Python writes by itself, whenever a rank imports something first
_EVENTS = "tfevents"  # of TensorBoard; each process has a file of another name for the same
_OPAQUE = "user.overlay.opaque"  # of a directory that replaces one of its name
_Signature = tuple[int, int, int, int]


@dataclass
class Publication:
    """From one layer to the directory below it.

    Attributes:
        upper, real: the directories, as this process reaches them.
        drafts: a directory that the ranks do not see, for files that are not yet whole.
        only_missing: whether what is there already stays, and nothing is removed.
        only_newer: whether what has changed there since stays: another rank goes on where this one has died.
        said_in: a file that says beforehand what will appear in directories that were there before, see `strangers`.
        count: files that were put there, but for byte code.
    """

    upper: str
    real: str
    drafts: str = ""
    only_missing: bool = False
    only_newer: bool = False
    said_in: str = ""
    count: int = 0
    _done: dict[str, _Signature] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)  # directories that were not there before
    _names: dict[str, set[str]] = field(default_factory=dict)  # what was in each directory of the layer

    def skip_present(self) -> None:
        """What is in the layer now is not to be published."""
        folders = [self.upper]
        for folder in folders:
            for entry in _entries(folder):
                self._is_new(entry.path)
                folders += [entry.path] if entry.is_dir(follow_symlinks=False) else []

    def publish(self) -> int:
        """Put there what has changed since the last time; how many files. A link shows by itself what was added."""
        before = self.count
        with names.drawn_apart():
            self._folder(self.upper, self.real)
        return self.count - before

    def move(self, now: str, before: str) -> None:
        """Give another name to what is below, which so stays its owner's. Args: paths from the directory."""
        place, copy = os.path.join(self.real, now), os.path.join(self.upper, now)
        if self.only_newer or not os.path.lexists(copy):  # the rank that has died may have done so
            return
        with contextlib.suppress(OSError):
            self._make_parents(place)
            self._say(place)
            os.rename(os.path.join(self.real, before), place)
            if os.path.isdir(copy):  # what the script has removed from it does not show again
                os.setxattr(copy, _OPAQUE, b"y")

    def _make_parents(self, place: str) -> None:
        inside = os.path.dirname(place)
        if not os.path.isdir(inside):
            self._make_parents(inside)
            self._say(inside)
            os.mkdir(inside)

    def _folder(self, upper: str, real: str, replaced: bool = False) -> None:
        """Args: replaced: whether nothing shows of what is below, since a directory above replaces one of its name."""
        present = set()
        try:
            entries = _entries(upper)
        except OSError:
            return
        replaced = replaced or _is_opaque(upper)
        for entry in entries:
            present.add(entry.name)
            place = os.path.join(real, entry.name)
            with contextlib.suppress(OSError):  # a file that the script has removed meanwhile, or that nobody may write
                self._entry(entry, place, replaced)
        gone, self._names[upper] = self._names.get(upper, set()) - present, present
        if replaced and self._is_new(f"{upper}/."):
            with contextlib.suppress(OSError):
                gone |= set(os.listdir(real)) - present
        for name in () if self.only_missing else gone:
            with contextlib.suppress(OSError):
                self._remove(upper, os.path.join(real, name))

    def _entry(self, entry: os.DirEntry[str], place: str, replaced: bool) -> None:
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            # One that is made anew may have the number of one that is gone.
            if not self.only_missing and (self._is_new(entry.path) or not os.path.isdir(place)):
                self._say(place)
                self._make_folder(place, found)
            self._folder(entry.path, place, replaced)
        elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            hidden = entry.name.startswith(HIDDEN)
            if self._is_new(entry.path) and not self.only_missing and not hidden and os.path.lexists(place):
                self._remove(os.path.dirname(entry.path), place)
        elif self._is_new(entry.path) and self._wanted(found, place):
            if self.only_missing:
                os.makedirs(os.path.dirname(place), exist_ok=True)
            self._say(place)
            self.count += self._put(entry.path, place, found) and not entry.name.endswith(_BYTE_CODE)
            self._is_new(entry.path)  # as it is now: a link more has changed it

    def _say(self, place: str) -> None:
        """Say that something will appear, unless that is inside of what has appeared: nobody else sees into that."""
        if not self.said_in or os.path.dirname(place) in self._made:
            self._made.add(place)
        elif not os.path.lexists(place):
            self._made.add(place)
            with open(self.said_in, "ab") as said:
                said.write(os.fsencode(os.path.relpath(place, self.real)) + b"\0")

    def _is_new(self, path: str) -> bool:
        """Whether something has changed since this was asked; directories, but for their mode, have not."""
        try:
            found = os.lstat(path)
        except OSError:
            return False
        is_folder = stat.S_ISDIR(found.st_mode)
        times = (found.st_mode, 0) if is_folder else (found.st_size, found.st_ctime_ns)
        signature = (found.st_ino, found.st_mtime_ns if not is_folder else 0, *times)
        if self._done.get(path) == signature:
            return False
        self._done[path] = signature
        return True

    def _wanted(self, found: os.stat_result, place: str) -> bool:
        if self.only_missing and _EVENTS in os.path.basename(place):
            return False
        if not (self.only_missing or self.only_newer) or not os.path.lexists(place):
            return True
        there = os.lstat(place)
        return not self.only_missing and there.st_mtime_ns < found.st_mtime_ns

    def _remove(self, upper: str, place: str) -> None:
        """Remove what the rank has removed from a directory, whose layer `upper` is."""
        if self.only_newer and os.lstat(place).st_ctime_ns > os.stat(upper).st_mtime_ns:
            return
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
        else:
            os.unlink(place)

    def _make_folder(self, place: str, found: os.stat_result) -> None:
        if os.path.islink(place) or os.path.isfile(place):
            os.unlink(place)
        if not os.path.isdir(place):
            os.makedirs(place)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_IMODE(os.stat(place).st_mode) != mode:
            os.chmod(place, mode)

    def _put(self, file: str, place: str, found: os.stat_result) -> bool:
        """Put a file, a link or a pipe in its place, whole; whether it was not there."""
        if os.path.lexists(place) and os.path.samestat(os.lstat(place), found):
            return False
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
            return False  # a socket, which is nothing without the process that made it
        inside = os.path.dirname(place)
        there = _in_place_of(file, place, found)
        if there and (there.st_size, there.st_mtime_ns) == (found.st_size, found.st_mtime_ns):
            return False
        if there and os.access(place, os.W_OK):
            with open(file, "rb") as source, open(place, "r+b") as target:
                shutil.copyfileobj(source, target)
                target.truncate()
            return True
        for beside in dict.fromkeys((self.drafts or inside, inside)):
            draft = tempfile.mkdtemp(prefix=".matex-", dir=beside)
            try:
                copy = os.path.join(draft, "file")
                _draw_up(file, found, inside, copy)
                if self.only_missing:
                    os.link(copy, place, follow_symlinks=False)  # of two ranks that have it, one comes first
                else:
                    if os.path.isdir(place) and not os.path.islink(place):
                        shutil.rmtree(place)
                    os.replace(copy, place)
            except OSError:  # drafts are on another file system
                if beside == inside:
                    raise
                continue
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            break
        return True


def _in_place_of(file: str, place: str, found: os.stat_result) -> os.stat_result | None:
    """Another's file, if this is a copy for what is written to that."""
    with contextlib.suppress(OSError):
        os.getxattr(file, IN_PLACE)
        there = os.lstat(place)
        return there if there.st_uid != found.st_uid and stat.S_ISREG(there.st_mode) else None
    return None


def _draw_up(file: str, found: os.stat_result, inside: str, copy: str) -> None:
    """Have a file under another name, as a link if it has the group of the directory that it goes to."""
    if stat.S_ISFIFO(found.st_mode):
        os.mkfifo(copy, stat.S_IMODE(found.st_mode))
        return
    if stat.S_ISREG(found.st_mode) and os.stat(inside).st_gid == found.st_gid:
        with contextlib.suppress(OSError):
            return os.link(file, copy, follow_symlinks=False)
    if stat.S_ISREG(found.st_mode) and hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # NFS has no files without names
            nameless = os.open(inside, os.O_TMPFILE | os.O_WRONLY, 0o600)
            with open(nameless, "wb") as target, open(file, "rb") as source:
                shutil.copyfileobj(source, target)
                target.flush()
                shutil.copystat(file, f"/proc/self/fd/{nameless}")
                # With `src_dir_fd` Python takes linkat, which alone follows the link.
                return os.link(f"/proc/self/fd/{nameless}", copy, src_dir_fd=nameless, follow_symlinks=True)
    if os.stat(inside).st_mode & stat.S_ISGID and not copy.startswith(f"{inside}/"):
        raise OSError(errno.EXDEV, "a file that is made elsewhere has another group", inside)
    shutil.copy2(file, copy, follow_symlinks=False)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What is in a directory of a layer: of one that nobody may read, as /home may be, too."""
    before = stat.S_IMODE(os.stat(folder).st_mode)
    readable = before | stat.S_IRUSR
    if readable != before:
        os.chmod(folder, readable)
    try:
        with os.scandir(folder) as found:
            return list(found)
    finally:
        if readable != before:
            os.chmod(folder, before)


def _is_opaque(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.getxattr(path, _OPAQUE) == b"y"
    return False
