"""Signs from rank 0, the lowest that is left, to the launcher: that the script has come to its end; and before that,
where ranks go on when a host is lost, that they can from now on.

The exit code of mpirun is none. Open MPI 5.0.11 ends with code 0 where its daemons on other hosts were ended, and, with
ULFM, where all ranks have died. So rank 0 says it: in a file without a name that the launcher holds, where it can
reach that, which is on the launcher's machine; and else in a line on stderr, which the launcher takes out of what
mpirun hands on. Of the standard library alone, for `agent.py`.
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

#: The beginning of the last line of a job that has ended well, where mpirun may wait for ranks that are out of reach.
ENDS_WITHOUT = "matex_tf: the job ends without "

_WORD = re.compile("[0-9a-f]{32}")


class Sign:
    """The launcher's side, for one start of a job; a context manager. Its environment is handed on to the ranks.

    Attributes:
        lines: what rank 0 writes to stderr where it cannot reach the file: that ranks can go on, and the end.
        missed: whether mpirun has ended with code 0 without the sign.
    """

    def __init__(self) -> None:
        self._word = secrets.token_hex(16)
        self.lines = [_line(what, self._word) for what in (UP, END)]
        self.missed = self._heard = False
        self._file = -1

    def __enter__(self) -> Sign:
        path = ""
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self._file = os.memfd_create("matex-end")
            os.write(self._file, _content("", self._word))
            path = f"/proc/{os.getpid()}/fd/{self._file}"
        os.environ[VARIABLE] = f"{self._word}:{path}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.environ.pop(VARIABLE, None)
        self._heard = self.given
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def job(self) -> str:
        """What names this start of the job to those who know its word, see `of_job`."""
        return _content(_NAME, self._word).decode()

    @property
    def given(self) -> bool:
        """Whether rank 0 has come to the end of its script."""
        return self._heard or (self._file >= 0 and os.pread(self._file, 100, 0) == _content(END, self._word))

    def hear(self, line: bytes) -> None:
        """One of the lines has come."""
        self._heard |= line == self.lines[1]
        if self._file >= 0:
            os.pwrite(self._file, _content(UP if line == self.lines[0] else END, self._word), 0)


UP, END = "up", "end"
_NAME = "name"


def _content(what: str, word: str) -> bytes:
    """What the file holds; `what` is empty before the first sign. The same path may be another file on another host."""
    return hashlib.sha256(f"{what}{word}".encode()).hexdigest().encode()


def _line(what: str, word: str) -> bytes:
    return f"\x1ematex_tf: {what} {word}\n".encode()  # one character begins it, and is nowhere else in it


class Strip:
    """Takes the lines of a sign out of a stream."""

    def __init__(self, sign: Sign | None):
        self._sign = sign
        self._kept = b""

    def __call__(self, data: bytes, last: bool = False) -> bytes:
        """What to hand on of the stream; what may be the beginning of a line is kept back until the next call.

        Args:
            data: the next part.
            last: whether none comes after it.
        """
        if self._sign is None:
            return data
        data = self._kept + data
        for line in self._sign.lines:
            if line in data:
                self._sign.hear(line)
                data = data.replace(line, b"")
        begin = data.rfind(b"\x1e")
        cut = len(data)
        if begin >= 0 and not last and any(line.startswith(data[begin:]) for line in self._sign.lines):
            cut = begin
        self._kept = data[cut:]
        return data[:cut]


class _Asked:
    """What the launcher has asked of this process, and whether it has come to its end: `give` is called by Python as
    the process ends, which hands nothing along.

    Attributes:
        text: empty: nothing.
        stderr: a copy of its own, as the script may put another file in its place.
        reached: the process for which the end is known, before `give` is called; one that it forks has none.
    """

    text, stderr, reached = "", 2, 0


_asked = _Asked()


def take() -> None:
    """Before the script of a rank: see what the launcher wants to hear, and take it out of the environment, so that
    nothing that the script starts says it."""
    _asked.text = os.environ.pop(VARIABLE, "")
    if _asked.text:
        _asked.stderr = os.dup(2)  # what the script prints may go elsewhere
        atexit.register(give)  # what the script registers runs before


def of_job() -> str:
    """What its launcher calls the job of this rank, see `Sign.job`; empty where it has none that listens."""
    word = _asked.text.partition(":")[0]
    return _content(_NAME, word).decode() if word else ""


def reach() -> None:
    """The script has come to its end on all ranks that are left, and this is the first of them."""
    _asked.reached = os.getpid()


def give() -> None:
    """At the end of this process, after all that the script has left to be done: give the sign where it is due."""
    if _asked.reached == os.getpid():
        _give(END)


def up() -> None:
    """From now on the ranks go on when a host is lost, and this is the first of them."""
    _give(UP)


def is_up(variable: str) -> bool:
    """Whether ranks go on when a host is lost, for a process on the launcher's machine. Args: variable: its text."""
    word, _, path = variable.partition(":")
    return _exchange(path, word, "") in (_content(UP, word), _content(END, word))


def _give(what: str) -> None:
    word, _, path = _asked.text.partition(":")
    if _WORD.fullmatch(word) and not _exchange(path, word, what):
        os.write(_asked.stderr, _line(what, word))


def _exchange(path: str, word: str, what: str) -> bytes:
    """What is in the launcher's file, after a sign is written to it if `what` says which; empty where that fails."""
    known = [_content(each, word) for each in ("", UP, END)]
    if not path:
        return b""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and os.pread(file, 100, 0) in known:
                if what:
                    os.pwrite(file, _content(what, word), 0)
                return os.pread(file, 100, 0)
        finally:
            os.close(file)
    return b""
