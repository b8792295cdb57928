"""A directory that one user alone can change, and the files in it.

What is read back from a file decides what a job does, so it must be what this user's own job has written. Files are
reached through the open directory, by names in it, and never through a symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from matex_tf.errors import MatexError

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # or a named pipe would never open
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Folder:
    """A directory, open. A context manager.

    Attributes:
        path: of the directory.
    """

    def __init__(self, base: Path, names: Sequence[str], option: str):
        """Open a directory, after it has been made, if need be, so that nobody else can read it.

        Args:
            base: a directory of the user's; made where there is none. It may belong to anybody.
            names: of the directories in it, each in the one before. Each belongs to this user alone.
            option: the flag with which another `base` can be given.

        Raises:
            MatexError: one of them is a link, belongs to another user, or can be changed by others.
            OSError: one of them cannot be made or opened.
        """
        self._option = option
        self._names = list(names)
        self.path = base
        base.mkdir(parents=True, exist_ok=True)
        self._open: list[int] = [os.open(base, _DIRECTORY)]
        try:
            for name in names:
                self.path /= name
                self._enter(name)
        except BaseException:
            self.close()
            raise

    def _enter(self, name: str) -> None:
        inside = self._open[-1]
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=inside)
        if stat.S_ISLNK(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
            raise MatexError(
                f"{self.path} is a symbolic link, which is not followed: remove it, and give the directory that it "
                f"leads to as {self._option}."
            )
        self._open.append(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=inside))
        found = os.fstat(self._open[-1])
        if found.st_uid != os.geteuid():
            raise MatexError(
                f"{self.path} belongs to {owner(found.st_uid)}, who could change what this job reads back: give a "
                f"directory of your own as {self._option}."
            )
        if found.st_mode & _OF_OTHERS:
            raise MatexError(
                f"others than you can write to {self.path} (mode {stat.S_IMODE(found.st_mode):04o}), and so could "
                f"change what this job reads back: `chmod go-w` it if you trust what is in it, or give another "
                f"directory as {self._option}."
            )

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        while self._open:
            os.close(self._open.pop())

    def names(self) -> list[str]:
        """The plain files of this user."""
        inside = os.open(".", _DIRECTORY, dir_fd=self._open[-1])  # threads must not share a place in the list
        try:
            with os.scandir(inside) as entries:
                return sorted(entry.name for entry in entries if self.has(entry.name))
        finally:
            os.close(inside)

    def create(self, name: str) -> BinaryIO:
        """A new file, to be written to, that nobody else can read.

        Raises:
            FileExistsError: there is one.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        return os.fdopen(os.open(name, flags, 0o600, dir_fd=self._open[-1]), "wb")

    def open(self, name: str) -> BinaryIO:
        """A file, to be read.

        Raises:
            OSError: there is none, or it is a link.
            MatexError: it is not a plain file of this user.
        """
        file = os.fdopen(os.open(name, os.O_RDONLY | _OPEN, dir_fd=self._open[-1]), "rb")
        if not _is_own(os.fstat(file.fileno())):
            file.close()
            raise MatexError(f"{self.path / name} is not a plain file of yours.")
        return file

    def lock_file(self, name: str) -> int:
        """A descriptor of a file that is there to be locked."""
        return os.open(name, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=self._open[-1])

    def touch(self, name: str) -> None:
        """Have an empty file, or the one that is there."""
        with contextlib.suppress(FileExistsError):
            self.create(name).close()

    def has(self, name: str) -> bool:
        """Whether there is a plain file of this user."""
        try:
            return _is_own(os.stat(name, dir_fd=self._open[-1], follow_symlinks=False))
        except FileNotFoundError:
            return False

    def replace(self, name: str, by: str) -> None:
        """Give the file `by` of this directory the name `name`, in place of the one that has it."""
        os.replace(by, name, src_dir_fd=self._open[-1], dst_dir_fd=self._open[-1])

    def flush(self) -> None:
        """Let names be on disk too, where the file system can do that."""
        with contextlib.suppress(OSError):
            os.fsync(self._open[-1])

    def remove(self, name: str) -> None:
        """Remove a plain file of this user, if it is there."""
        if self.has(name):
            os.unlink(name, dir_fd=self._open[-1])

    def remove_if_empty(self) -> None:
        """Remove the directory, and the others that were made for it, where they are empty."""
        for name, inside in zip(reversed(self._names), reversed(self._open[:-1]), strict=True):
            try:
                os.rmdir(name, dir_fd=inside)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    return


def _is_own(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def user_of(connection: socket.socket) -> int:
    """The number of the user whose process is at the other end of a UNIX socket."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


def owner(number: int) -> str:
    """The name of a user."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
