"""The process of mpirun: started, watched and ended, and what its end means."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from matex_tf.core import starting
from matex_tf.core.sign import Sign
from matex_tf.launch import lifetime, loopback
from matex_tf.launch.monitor import LeftRunning, MpirunMonitor, await_ends, children, kill, remove_session
from matex_tf.layer import leftovers

#: In the environment of a local job: where rank 0 finds the standard input of the launcher.
STDIN = "MATEX_STDIN"

_PAUSE = 0.5
_SECONDS_TO_STOP = 6.0
_SECONDS_TO_SAVE = 60.0
_SECONDS_TO_SAVE_AND_STOP = 20.0  # Slurm sends SIGKILL 30 seconds after SIGTERM
_SSH_LOST = 255
_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

#: What to say where `run` has missed the sign.
NO_SIGN = (
    "mpirun has ended with code 0, but no rank has said that the script came to its end. Likely reasons: a host or a "
    "node of the batch job was lost, all ranks have died, or the script left by os._exit or os.exec. What the script "
    "has saved is left: start it again (--faults restart does so by itself, from its last checkpoint)."
)

_LOST_HOST = (
    "mpirun has lost its daemon (prted) on a host, and then Open MPI ends all ranks, --faults shrink or not. What the "
    "script has saved is left: start it again, without that host if it is gone."
)


def run(
    command: Sequence[str],
    local: bool = True,
    survive: bool = False,
    watch: MpirunMonitor | None = None,
    sign: Sign | None = None,
    saves: bool = False,
) -> int:
    """Run mpirun to its end, with this process's stdin, passing signals on; returns the exit code.

    Ctrl-C in a terminal reaches mpirun by itself; a signal that was sent to this process alone is sent on, and where
    this process is killed mpirun gets SIGTERM (`lifetime`): call it from a thread that lives as long. Open MPI 5
    never tells rank 0 that its input has ended, and garbles what is longer than a pipe (openpmix/prrte #2579): so
    rank 0 of a local job opens a file or a pipe by itself, see `matex_tf.job.run`.

    Args:
        command: the mpirun line.
        local: whether rank 0 is on this machine for sure.
        survive: whether ranks go on when one dies; mpirun then ends with code 0 whatever else happens.
        watch: looks at what mpirun says; one is made where it is needed and not given.
        sign: what rank 0 gives at the end of the script; without it code 0 becomes 1, and `missed` is set. None
            where mpirun's own code is enough.
        saves: whether SIGUSR1 is for the ranks, which then save a checkpoint and end, and SIGTERM too, in whose place
            they get SIGUSR2; if they have not ended after a minute, or 20 seconds, mpirun is told to end them. A batch
            system may send SIGTERM to all processes, so that mpirun must not hear of it: SIGINT stands for it.
    """
    # What the script has left running is told from ranks by what rank 0 gives, also where mpirun's code is enough.
    with Sign() if sign is None and local else contextlib.nullcontext(sign) as told:
        environ = {name: value for name, value in os.environ.items() if name not in ("MATEX_TF", STDIN)}
        environ[starting.OF_THE_USER] = " ".join(name for name in environ if name.startswith(starting.BEGINNINGS))
        starting.settle_hashes(environ)
        direct = local and os.path.exists("/proc/self/fd/0") and not os.isatty(0)
        if direct:
            begin = 0
            with contextlib.suppress(OSError):  # of a pipe
                begin = os.lseek(0, 0, os.SEEK_CUR)
            environ[STDIN] = f"{begin}:/proc/{os.getpid()}/fd/{_can_be_opened(0)}"
        if watch is None and (survive or not local or sign):
            watch = MpirunMonitor(survive, sign)
        heard = _STOPS | {signal.SIGCHLD} | ({signal.SIGUSR1} if saves else set())
        deaf = {signal.SIGTERM} if saves else set()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        try:
            job = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL if direct else None,
                stderr=watch.source if watch else None,
                restore_signals=False,  # SIGPIPE would end mpirun as it cleans up, once this process is gone
                preexec_fn=lifetime.begin_tied(
                    lambda: signal.pthread_sigmask(signal.SIG_SETMASK, {*before, *deaf}),
                    signal.SIGINT if saves else signal.SIGTERM,
                ),
            )
            if local and loopback.INTERFACE in itertools.takewhile("-n".__ne__, command):
                loopback.narrow_when_up(job.pid)
            if watch:
                os.close(watch.source)
            left = LeftRunning(job.pid, told) if told and local else None
            end = _wait(job, heard, watch, lambda: survive and sign is not None and sign.given, left)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    remove_session(job.pid)  # of one that was killed, or whose daemons on a lost host still wrote there
    leftovers.tidy()
    if local and job.returncode:
        lifetime.remove_unused_segments()
    if watch:
        watch.close()
        watch.stopped = end.stopped or end.asked
    return _code(job.returncode, end, local, survive, watch, sign)


def _code(ended: int, end: _End, local: bool, survive: bool, watch: MpirunMonitor | None, sign: Sign | None) -> int:
    """The exit code of a job. Args: ended: that of mpirun, or the signal that has ended it; the others: see `run`."""
    if end.asked == signal.SIGTERM and ended:
        end.stopped = end.asked
    if end.stopped:
        return 128 + end.stopped
    # Where the ssh to the daemon ends before its connection does, mpirun says so on stdout, and has the code of ssh.
    if watch and (watch.lost_host or (survive and not local and ended == _SSH_LOST)):
        print(f"matex_tf: error: {_LOST_HOST}", file=sys.stderr, flush=True)
    if watch and watch.unreached and ended:
        hosts = ", ".join(dict.fromkeys(watch.unreached))
        print(
            f"matex_tf: error: ssh does not reach {hosts}, and no rank was started: "
            "check the names in --hosts, and that `ssh HOST true` ends without asking for a password (docs/hosts.md).",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    code = ended if ended >= 0 else 128 - ended
    if watch and watch.seconds >= 0 and ended in (0, -signal.SIGKILL):
        code = watch.code
    elif end.over and ended == -signal.SIGKILL:
        code = 0
    if survive and sign and sign.given:
        return 0  # whoever was killed meanwhile
    if code == 0 and sign and not sign.given:
        sign.missed = True
        return 1
    return code


@dataclasses.dataclass
class _End:
    """How mpirun came to its end.

    Attributes:
        stopped: the signal that has stopped it; 0 for none.
        asked: the signal by which the ranks are asked to save and end; 0 for none.
        give_up: when they should have done so, by the monotonic clock.
        over: whether all was over, but for mpirun.
    """

    stopped: int = 0
    asked: int = 0
    give_up: float = math.inf
    over: bool = False


def _can_be_opened(given: int) -> int:
    """What is open there, such that another process of this user can open it by its path. A socket cannot, nor a pipe
    that another user has made: `cat` passes on what comes by them."""
    with contextlib.suppress(OSError):
        os.close(os.open(f"/proc/self/fd/{given}", os.O_RDONLY | os.O_NONBLOCK))
        return given
    reads, writes = os.pipe()
    subprocess.Popen(["cat"], stdin=given, stdout=writes, preexec_fn=lifetime.begin_tied())
    os.close(writes)
    return reads


def _wait(
    job: subprocess.Popen[bytes],
    heard: set[signal.Signals],
    watch: MpirunMonitor | None,
    is_over: Callable[[], bool],
    left: LeftRunning | None,
) -> _End:
    """Wait for mpirun to end, and pass signals on.

    Args:
        heard: the signals to wait for, which are blocked; with SIGUSR1 the ranks save a checkpoint, see `run`.
        is_over: whether the script has come to its end, and nobody has to wait for ranks that have not.
        left: looks whether mpirun waits for programs alone; None where that cannot be seen.
    """
    end, waited, ranks = _End(), 0.0, list[int]()
    saves = signal.SIGUSR1 in heard
    stops = signal.SIGINT if saves else signal.SIGTERM
    while job.poll() is None:
        ranks = children(job.pid) or ranks
        info = signal.sigtimedwait(heard, _PAUSE)
        if not end.stopped and time.monotonic() > end.give_up:
            end.stopped = end.asked
            job.send_signal(stops)
        if info is None:
            if left and left.look(_PAUSE):
                if words := left.who_still_runs():
                    print(f"matex_tf: {words}", file=sys.stderr, flush=True)
                end.over = True
                kill(job.pid)
                job.wait()
                continue
            end.over = is_over()  # mpirun may wait for ranks of a lost host
            waited += _PAUSE if end.stopped or end.over or (watch and watch.seconds >= 0) else 0.0
            if waited >= _SECONDS_TO_STOP:
                kill(job.pid)  # its daemons on other hosts end the ranks there, and themselves
        elif saves and info.si_signo in (signal.SIGUSR1, signal.SIGTERM) and not end.asked and not end.stopped:
            quick = info.si_signo == signal.SIGTERM
            end.asked = info.si_signo
            end.give_up = time.monotonic() + (_SECONDS_TO_SAVE_AND_STOP if quick else _SECONDS_TO_SAVE)
            with contextlib.suppress(ProcessLookupError):
                job.send_signal(signal.SIGUSR2 if quick else signal.SIGUSR1)
        elif info.si_signo in _STOPS:
            # A terminal that is closed tells its first process alone, which may be this one.
            from_terminal = info.si_code > 0 and info.si_signo != signal.SIGHUP
            if not end.stopped and not from_terminal:
                with contextlib.suppress(ProcessLookupError):
                    job.send_signal(signal.SIGINT if info.si_signo == signal.SIGINT else stops)
            end.stopped = end.stopped or info.si_signo
    await_ends(lifetime.ends(ranks))  # on two signals in turn mpirun leaves them behind, and each ends by itself
    return end
