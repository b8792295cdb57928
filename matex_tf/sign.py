"""The sign that a script has come to its end: from rank 0, the lowest that is left, to the launcher.

The exit code of mpirun is none. Open MPI 5.0.11 ends with code 0 where its daemons on other hosts were ended, and, with
ULFM, where all ranks have died. So rank 0 says it: in a file without a name that the launcher holds, where it can
reach that, which is on the launcher's machine; and else in a line on stderr, which the launcher takes out of what
mpirun hands on.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import secrets
import stat
from types import TracebackType

#: In the environment of a job: what the sign says, and the file for it.
VARIABLE = "MATEX_END"

_WORD = re.compile("[0-9a-f]{32}")


class Sign:
    """The launcher's side, for one start of a job; a context manager. Its environment is handed on to the ranks.

    Attributes:
        line: what rank 0 writes to stderr where it cannot reach the file.
        heard: whether that line has come.
        missed: whether mpirun has ended with code 0 without the sign.
    """

    def __init__(self) -> None:
        self._word = secrets.token_hex(16)
        self.line = _line(self._word)
        self.heard = self.missed = False
        self._file = -1

    def __enter__(self) -> Sign:
        path = ""
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self._file = os.memfd_create("matex-end")
            os.write(self._file, _before(self._word))
            path = f"/proc/{os.getpid()}/fd/{self._file}"
        os.environ[VARIABLE] = f"{self._word}:{path}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.environ.pop(VARIABLE, None)
        self.heard = self.given
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def given(self) -> bool:
        """Whether rank 0 has come to the end of its script."""
        return self.heard or (self._file >= 0 and os.pread(self._file, 100, 0) == self._word.encode())


def _before(word: str) -> bytes:
    """What the file holds before the sign is given. The same path may be another file on another host."""
    return hashlib.sha256(word.encode()).hexdigest()[: len(word)].encode()


def _line(word: str) -> bytes:
    return f"\x1ematex_tf: end {word}\n".encode()  # one character begins it, and is nowhere else in it


class Strip:
    """Takes the line of a sign out of a stream."""

    def __init__(self, sign: Sign | None):
        self._sign = sign
        self._kept = b""

    def __call__(self, data: bytes, last: bool = False) -> bytes:
        """What to hand on of the stream; what may be the beginning of the line is kept back until the next call.

        Args:
            data: the next part.
            last: whether none comes after it.
        """
        if self._sign is None:
            return data
        line = self._sign.line
        data = self._kept + data
        if line in data:
            self._sign.heard = True
            data = data.replace(line, b"")
        begin = data.rfind(line[:1])
        cut = begin if not last and begin >= 0 and line.startswith(data[begin:]) else len(data)
        self._kept = data[cut:]
        return data[:cut]


_told = ""
_reached = False


def take() -> None:
    """Before the script of a rank: see what the launcher wants to hear, and take it out of the environment, so that
    nothing that the script starts says it."""
    global _told
    _told = os.environ.pop(VARIABLE, "")
    if _told:
        atexit.register(give)  # what the script registers runs before


def reach() -> None:
    """The script has come to its end on all ranks that are left, and this is the first of them."""
    global _reached
    _reached = True


def give() -> None:
    """At the end of this process, after all that the script has left to be done: give the sign where it is due."""
    word, _, path = _told.partition(":")
    if not _reached or not _WORD.fullmatch(word):
        return
    if not _write(path, word):
        os.write(2, _line(word))


def _write(path: str, word: str) -> bool:
    """Give the sign in the launcher's file; whether that could be done."""
    if not path:
        return False
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and found.st_size == len(word) and os.pread(file, 100, 0) == _before(word):
                return os.pwrite(file, word.encode(), 0) == len(word)
        finally:
            os.close(file)
    return False
