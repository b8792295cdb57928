"""Whose output is shown: points file descriptors 1 and 2 of a rank where the setting `output` says.

File descriptors and not `sys.stdout`, so that what TensorFlow's C++ prints goes the same way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from matex_tf.core import starting
from matex_tf.errors import SettingError, harmless

#: In the environment of the ranks where the user's stderr is a terminal: how many columns it has.
TERMINAL = "MATEX_TERMINAL"

#: In the environment of the ranks, the numbers of the standard streams that the launcher was started without.
CLOSED = "MATEX_CLOSED"
_STREAMS = ("stdin", "stdout", "stderr")

_PUMP_SECONDS = 5.0
#: Who can write to the directory could make a link of a log, to a file of this user.
_LOG = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
#: The names of processes of Open MPI, on the user's machine, that give each rank a terminal of its own to write to.
_STARTERS = ("prterun", "prte", "orterun", "mpirun", "mpiexec")


class Output:
    """The output of this rank, from `redirect` to `restore`."""

    def __init__(self) -> None:
        self._real = (os.dup(1), os.dup(2))
        self._pump: subprocess.Popen[bytes] | None = None
        self._silent = False

    def redirect(self, where: str, rank: int) -> None:
        """Send the output of this rank where the setting says.

        Args:
            where: "first", "all" or a directory.
            rank: this rank.

        Raises:
            SettingError: the directory cannot be written to.
        """
        self._silent = where == "first" and rank != 0
        if where == "first":
            if rank != 0:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                self._point(nowhere, nowhere)
                os.close(nowhere)
            else:
                _doubt_the_terminal()
        elif where == "all":
            self._start_pump(f"[{rank}] ")
        else:
            try:
                Path(where).mkdir(parents=True, exist_ok=True)
                log = os.open(Path(where) / f"rank.{rank}.log", _LOG, 0o666)  # less the user's umask
            except OSError as error:
                reason = "the log would be a symbolic link" if error.errno == errno.ELOOP else error.strerror
                raise SettingError(f"--output {where}: {reason}.") from None
            self._point(log, log)
            os.close(log)

    @property
    def stderr(self) -> int:
        """Where the launcher reads what is not to be missed, from whichever rank."""
        return self._real[1]

    def say(self, line: str) -> None:
        """Print a line that is not to be missed, from whichever rank, wherever its output goes."""
        self.flush()
        os.write(self._real[1], f"matex_tf: {harmless(line)}\n".encode(errors="replace"))

    def speak_up(self) -> None:
        """This rank is the first now: where only the first rank's output is shown, show it."""
        if self._silent:
            self._silent = False
            self._point(*self._real)
            _doubt_the_terminal()

    def finish(self) -> None:
        """The script has ended well. Where only the first rank's output is shown, that is so to the end of the process:
        Python has yet to call what was registered with `atexit`."""
        self.flush()
        if not self._silent:
            self.restore()

    def restore(self) -> None:
        """Flush what was printed and point the descriptors back; returns when every line is out."""
        self.flush()
        os.dup2(self._real[0], 1)
        os.dup2(self._real[1], 2)
        if self._pump is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._pump.wait(_PUMP_SECONDS)
            self._pump = None

    @staticmethod
    def flush() -> None:
        """Flush Python's buffers."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def _point(self, stdout: int, stderr: int) -> None:
        self.flush()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def _start_pump(self, prefix: str) -> None:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        ends = (out_read, self._real[0], err_read, self._real[1])
        pump = Path(__file__).with_name("_pump.py")
        self._pump = subprocess.Popen(
            [sys.executable, "-I", "-S", str(pump), prefix, *map(str, ends)],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal that ends the rank must not take the last lines with it
        )
        self._point(out_write, err_write)
        for end in (out_read, err_read, out_write, err_write):
            os.close(end)


def open_closed() -> None:
    """Put /dev/null where this process was started without a standard stream: the next file would get its number, and
    be read or written as that stream. The ranks are told, see `close_as_told`."""
    closed = ""
    for number, name in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
            closed += str(number)
    if closed:
        os.environ[CLOSED] = closed


def close_as_told() -> None:
    """Let the script find no stdin and no stdout where the launcher had none, as Python does.

    It finds a stderr, which nobody reads: what is printed to none at all would come out on stdout.
    """
    for number in os.environ.pop(CLOSED, "").replace("2", ""):
        setattr(sys, _STREAMS[int(number)], None)
        setattr(sys, f"__{_STREAMS[int(number)]}__", None)


def write_to_the_user() -> None:
    """On the rank whose output is shown, write to the terminal or the pipe that Open MPI's starter has, if it is the
    parent: what comes by that starter is handed on in whole lines, and a progress bar or a question is none."""
    if _parent_name() not in _STARTERS:
        return
    for number in (1, 2):
        with contextlib.suppress(OSError):  # the terminal of another user, or a socket
            theirs = f"/proc/{starting.parent()}/fd/{number}"
            mode = os.stat(theirs).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):  # of a file this would be another place in it
                opened = os.open(theirs, os.O_WRONLY | os.O_NOCTTY)
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal would stop what is not in its foreground
                os.dup(number)  # and that is not closed: the starter would take this rank to have ended its output
                os.dup2(opened, number)
                os.close(opened)


def _doubt_the_terminal() -> None:
    """Let `sys.stdout.isatty()` say no where the user's stdout is not a terminal."""
    # Python's word only: a pipe in the terminal's place would need a process that hands on its lines.
    if _only_seems_a_terminal():
        with contextlib.suppress(AttributeError):
            sys.stdout.isatty = lambda: False  # type: ignore[method-assign]


def _only_seems_a_terminal() -> bool:
    """Whether Open MPI's terminal stands where the user has a file or a pipe; False where that cannot be seen."""
    if not os.isatty(1):
        return False
    try:
        theirs = os.stat(f"/proc/{starting.parent()}/fd/1")
        nowhere = theirs.st_rdev == os.stat(os.devnull).st_rdev
        return _parent_name() in _STARTERS and (nowhere or not stat.S_ISCHR(theirs.st_mode))
    except OSError:
        return False


def _parent_name() -> str:
    """The name of the process that has started this rank; "" where that cannot be seen."""
    try:
        return Path(f"/proc/{starting.parent()}/comm").read_text().strip()
    except OSError:
        return ""
