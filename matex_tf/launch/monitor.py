"""What an mpirun on several hosts says about the end of its job, for want of an exit code that can be trusted.

Open MPI 5.0.11 ends with code 0 where it has lost a host, and when ranks of several hosts abort at once it has been
seen to wait for ever. Both times it has said so on stderr.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import tempfile
import threading
import time

from matex_tf.core import namespaces
from matex_tf.core.sign import ENDS_WITHOUT, Sign, Strip
from matex_tf.launch import lifetime
from matex_tf.launch.output_filter import OutputFilter

LOST_DAEMON = rb"^(?:PRTE|ORTE) has lost communication with a remote daemon"

#: Lines of Open MPI (5 and, as ORTE, 4) after which the job cannot end well.
FAILED = re.compile(
    LOST_DAEMON + rb"|^(?:A daemon|An ORTE daemon) .*failed to report back"
    rb"|^MPI_ABORT was invoked on rank "
    rb"|\*\*\* MPI_ERRORS_ARE_FATAL "
    rb"|^(?:prterun|mpirun\S*) (?:noticed that process|has exited due to process) rank ",
    re.MULTILINE,
)

#: The same in a job whose ranks go on when one dies. A host whose daemon is gone is the end of it all the same.
GIVEN_UP = re.compile(
    rb"^MPI_ABORT was invoked on rank |\*\*\* MPI_ERRORS_ARE_FATAL |" + LOST_DAEMON,
    re.MULTILINE,
)
_OVER = re.compile(b"^" + ENDS_WITHOUT.encode(), re.MULTILINE)
_LOST = re.compile(LOST_DAEMON, re.MULTILINE)
#: What has died: "rank 3 on node17", or a host.
_RANK = re.compile(
    rb"^(?:prterun|mpirun\S*) noticed that process rank (\d+) with PID \d+ on node (\S+) exited on", re.MULTILINE
)
_HOST = re.compile(rb"^ *Remote daemon: *\[.*\] on node (\S+)", re.MULTILINE)
#: What ssh says of a host on which mpirun cannot start its daemon.
_UNREACHED = re.compile(
    rb"^ssh: (?:Could not resolve hostname|connect to host) ([^\s:]+)|^(?:\S+@)?(\S+): Permission denied \(",
    re.MULTILINE,
)
_CODE = re.compile(rb"^ *Errorcode: (\d+)", re.MULTILINE)

_LONGEST_LINE = 4096
#: Seconds that a process which was killed has to be gone.
_SECONDS_TO_DIE = 2.0
#: Seconds for which an mpirun without ranks has had nothing to do, after which it does not end by itself.
_IDLE_SECONDS = 2.0


class MpirunMonitor:
    """Copies what mpirun says on stderr, and looks for its end.

    Attributes:
        source: the file descriptor that mpirun writes to; the caller closes its copy once mpirun has it.
        code: what a rank has said that the job shall end with; 0 where the job has ended well but for ranks that are
            out of reach; 1 otherwise.
        lost_host: whether mpirun has lost a host, with which it ends a job that would have gone on.
        dead: what has died, in words, in the order in which mpirun has named them.
        unreached: hosts that ssh does not reach.
        stopped: the signal that this process was told to end by; 0 where it was not.
    """

    def __init__(self, survive: bool = False, sign: Sign | None = None) -> None:
        """Args: survive: whether ranks go on when one dies. sign: what to look for, and not to copy."""
        self._failed = GIVEN_UP if survive else FAILED
        self._survive = survive
        self._strip = Strip(sign)
        self._quiet = OutputFilter()
        self.code = 1
        self.lost_host = False
        self.dead: list[str] = []
        self.unreached: list[str] = []
        self.stopped = 0
        self._from, self.source = os.pipe()
        self._failed_at: float | None = None
        self._thread = threading.Thread(target=self._copy, daemon=True)
        # A signal to this process is for the thread that waits for it: here it would end the process by itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def seconds(self) -> float:
        """How long ago mpirun said that the job has failed, or a rank that it is over; -1 where nobody has."""
        return -1.0 if self._failed_at is None else time.monotonic() - self._failed_at

    def close(self, seconds: float = 1.0) -> None:
        """Wait until all that mpirun said is copied; not for ever, as an ssh that hangs may hold the other end."""
        self._thread.join(seconds)

    def _copy(self) -> None:
        held = b""
        while data := os.read(self._from, 1 << 16):
            held = (held + data.replace(b"\r", b"\n"))[-_LONGEST_LINE - len(data) :]
            if self._failed_at is None and self._survive and _OVER.search(held):
                self._failed_at, self.code = time.monotonic(), 0
            if self._failed_at is None and self._failed.search(held):
                self._failed_at = time.monotonic()
                self.lost_host = self._survive and bool(_LOST.search(held))
            if said := _CODE.search(held):
                self.code = int(said[1]) or 1
            self.dead += [f"rank {rank.decode()} on {node.decode()}" for rank, node in _RANK.findall(held)]
            self.dead += [f"host {node.decode()}" for node in _HOST.findall(held)]
            self.unreached += [(name or by_user).decode() for name, by_user in _UNREACHED.findall(held)]
            held = held[held.rfind(b"\n") + 1 :]
            self._hand_on(self._quiet(self._strip(data)))
        self._hand_on(self._quiet(self._strip(b"", last=True), last=True))
        os.close(self._from)

    @staticmethod
    def _hand_on(data: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            while data:
                data = data[os.write(2, data) :]


class LeftRunning:
    """Whether an mpirun, whose ranks are all on this machine, waits for nothing but programs that they have started.

    It waits until nobody can write to what the ranks wrote to, and a program that has inherited that can. Python would
    not wait. Where ranks end with an error, Open MPI does not either.
    """

    def __init__(self, mpirun: int, sign: Sign):
        """Args: mpirun: its number. sign: of the end of the script."""
        self._mpirun, self._sign = mpirun, sign
        self._idle = 0.0

    def look(self, seconds: float) -> bool:
        """Look again; whether all is over but for mpirun. Args: seconds: since the last look."""
        over = self._sign.given and not children(self._mpirun)
        # With output of a rank to hand on mpirun would not sleep, however busy it is here.
        idle = over and namespaces.stat(self._mpirun)[:1] == ["S"] and _taken(1) and _taken(2)
        self._idle = self._idle + seconds if idle else 0.0
        return self._idle >= _IDLE_SECONDS

    def who_still_runs(self) -> str:
        """What to say of it; nothing if there is no such program, as where mpirun itself is slow on a busy machine."""
        found = _holders(self._mpirun)
        names = ", ".join(f"{name} (process {number})" for number, name in found)
        verb = "run" if len(found) > 1 else "runs"
        if not names:
            return ""
        return f"the job ends, and {names}, which the script has started, still {verb}"


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split() if namespaces.stat(word)[:1] not in ([], ["Z"])]
    return found


def _taken(descriptor: int) -> bool:
    """Whether somebody takes what is written: a pager that stands still does not, and then mpirun has more to write."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(0))


def _holders(pid: int) -> list[tuple[int, str]]:
    """The processes, by number, that can write into what an mpirun reads from its ranks, and their names."""
    ends = {link for link in lifetime.opened(str(pid)) if link.startswith("pipe:")} - lifetime.opened("self")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fdinfo"):
            with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
                ends.update(f"/dev/pts/{line.split()[1]}" for line in file if line.startswith("tty-index:"))
    found = []
    for number in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        if number != pid and ends & lifetime.opened(str(number)):
            with contextlib.suppress(OSError), open(f"/proc/{number}/comm", encoding="utf-8", errors="replace") as file:
                found.append((number, file.read().strip()))
    return found


def kill(pid: int) -> None:
    """Kill an mpirun and what it has started on this machine, such as the ssh to a host that does not answer, which
    would keep the job's output open. Ranks cannot remove their shared memory then. Back once they have ended: for who
    looks for the files of jobs that are gone."""
    family = [pid, *children(pid)]
    ends = lifetime.ends(family)
    segments = set().union(*(lifetime.segments(str(one)) for one in family))
    for one in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    for path in segments:
        with contextlib.suppress(OSError):
            os.unlink(path)
    await_ends(ends)


def await_ends(ends: list[int]) -> None:
    """Wait until processes that are about to end have ended, and close their descriptors (`lifetime.ends`)."""
    limit = time.monotonic() + _SECONDS_TO_DIE
    for end in ends:
        select.select([end], [], [], max(0.0, limit - time.monotonic()))
        os.close(end)


def remove_session(pid: int) -> None:
    """Remove the directory of an mpirun of Open MPI 5 that has ended, where it has not done so itself.

    Not one of this name that belongs to another user, which root could remove.
    """
    path = os.path.join(tempfile.gettempdir(), f"ompi.{pid}")
    with contextlib.suppress(OSError):
        if os.lstat(path).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
