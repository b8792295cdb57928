"""The directories that a layer is put over: those that a script may change, as high up as one mount reaches."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

#: What of the root a script does not change on purpose, or all ranks must have in common.
_OF_THE_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/lost+found", "/proc", "/run", "/sbin", "/sys"),
    *("/usr", "/snap"),
)
#: File systems that have no files of a user's.
_NO_FILES = re.compile(
    r"proc|sysfs|dev\w*|cgroup2?|securityfs|debugfs|tracefs|configfs|bpf|pstore|mqueue|hugetlbfs|efivarfs|rpc_pipefs|"
    r"binfmt_misc|nsfs|fusectl|squashfs|iso9660|autofs|fuse\.(?:lxcfs|gvfsd-fuse|portal)"
)
_VARIABLES = ("HOME", "TMPDIR", "SCRATCH", "WORK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def to_cover(first: Iterable[str], environ: Mapping[str, str] = os.environ, mounts: str = "") -> list[str]:
    """The directories, none below another.

    Args:
        first: that must be among them or below one.
        mounts: the text of /proc/self/mountinfo.

    Raises:
        OSError: one of `first` has other mounts below it.
    """
    table = _mounts(mounts or Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    points, writable = [point for point, _, _ in table], {point for point, _, can in table if can}
    needed = [os.path.realpath(path) for path in (*first, tempfile.gettempdir())]
    wanted = [
        *needed,
        "/tmp",
        "/var/tmp",
        *(os.path.realpath(environ[name]) for name in _VARIABLES if environ.get(name)),
    ]
    wanted += [point for point, kind, _ in table if not _NO_FILES.fullmatch(kind)]
    wanted += [entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)]
    found = set()
    for path in wanted:
        mount = max((point for point in points if point == path or _below(path, point)), key=len, default="/")
        if _of_the_system(path) or mount not in writable or not os.path.isdir(path):
            continue
        top = _top(path, mount, points)
        if top is not None and not _of_the_system(top):
            found.add(top)
        elif path in needed:
            raise OSError(f"other file systems are mounted below {path}")
    return [path for path in sorted(found) if not any(_below(path, other) for other in found)]


def in_memory(path: str) -> bool:
    """Whether a directory is on a file system that takes memory, not a disk."""
    table = _mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    path = os.path.realpath(path)
    below = [(point, kind) for point, kind, _ in table if point == path or _below(path, point)]
    return max(below, key=lambda mount: len(mount[0]), default=("", ""))[1] in ("tmpfs", "ramfs")


def _top(path: str, mount: str, points: Sequence[str]) -> str | None:
    """The highest directory of a path that is on its mount, is not the root, and has no other mount below; None where
    there is none."""
    parts = path.split(os.sep)
    for depth in range(len(mount.rstrip("/").split(os.sep)), len(parts) + 1):
        top = os.sep.join(parts[:depth])
        if top and not any(_below(point, top) for point in points):
            return top
    return None


def _below(path: str, other: str) -> bool:
    return path.startswith(other.rstrip("/") + "/") and path != other


def _of_the_system(path: str) -> bool:
    return path == "/" or any(path == part or _below(path, part) for part in _OF_THE_SYSTEM)


def _mounts(text: str) -> list[tuple[str, str, bool]]:
    """Of a table of mounts, where each is, of what kind, and whether it can be written to."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words[4])
        found.append((point, after.split()[0], "rw" in words[5].split(",")))
    return found
