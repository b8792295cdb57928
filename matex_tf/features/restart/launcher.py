"""`matex-tf run --faults restart`: when a rank dies, the job is started again, on the hosts that are left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from matex_tf.core.sign import Sign
from matex_tf.errors import EndsToResume, MatexError, SettingError
from matex_tf.features.restart import checkpoints
from matex_tf.features.restart.checkpoints import Checkpoints, begin
from matex_tf.features.restart.options import RestartOptions
from matex_tf.launch import lifetime, mpirun_command, mpirun_process, resources, slurm
from matex_tf.launch.monitor import MpirunMonitor, kill, remove_session
from matex_tf.launch.mpirun_command import Mpirun
from matex_tf.settings import Settings

_SECONDS_TO_ANSWER = 30.0  # in which a host must start a program
_SECONDS_TO_END = 5.0
_HERE = "matex_tf is here"
_TRIES = 2  # a host may still be busy with the end of the job before

__all__ = ["begin", "run"]

#: From ranks, hosts and more flags, the mpirun line of the job.
Line = Callable[[int, str, dict[str, str]], list[str]]


def run(
    line: Line,
    ranks: int,
    hosts: str,
    settings: Settings,
    script: str,
    mpirun: Mpirun,
    hosts_now: Callable[[], str] | None = None,
) -> int:
    """Run a job to its end, and again where a rank has died; returns the exit code of the last.

    Args:
        line: gives the mpirun line.
        ranks: how many at first.
        hosts: as given to `--hosts`; may be empty.
        settings: those of restarts, and `notes` of them.
        script: its name, or that of a module.
        mpirun: which one.
        hosts_now: gives what the file says by then from which the hosts are; raises `SettingError`. None without one.

    Raises:
        MatexError: another job has its checkpoints in the same directory.
    """
    asked = settings.of(RestartOptions)
    base = checkpoints.directory(asked.checkpoint_dir)
    kept = Checkpoints(base, script, asked.resume, lambda text: None)
    path = kept.path
    flags = {"checkpoint_dir": str(base)}
    os.environ[checkpoints.RESTARTS] = "0"
    # Slurm has daemons of mpirun on a node that does not answer still running, and would let no others start beside.
    os.environ.setdefault("SLURM_OVERLAP", "1")
    now, there, named = ranks, hosts, hosts
    with _locked(kept):
        for number in range(asked.max_restarts + 1):
            kept.forget_begin()
            begin = time.time()
            local = not hosts and not resources.in_batch_system()
            with Sign() as sign:
                watch = MpirunMonitor(sign=sign)
                code = mpirun_process.run(line(now, there, flags), local=local, watch=watch, sign=sign, saves=True)
            if watch.stopped == signal.SIGUSR1 and code:
                return _to_resume(code, kept, settings)
            if not _died(code, watch, kept):
                if sign.missed:
                    print(f"matex_tf: error: {mpirun_process.NO_SIGN}", file=sys.stderr, flush=True)
                break
            died = time.time()
            _say(settings, f"{' and '.join(watch.dead) or 'a rank'} died, {died - begin:.0f} s after the start")
            if number == asked.max_restarts:
                allowed = "1 restart was" if number == 1 else f"{number} restarts were"
                _say(settings, f"{allowed} allowed (--max-restarts)")
                break
            named = _named(hosts_now, named, settings)
            if first := hosts or slurm.hosts():  # also those that were left out before: they may be back
                left = _left(named or first, mpirun, settings)
                if not left:
                    _say(settings, "no host can be reached: start the job again with --resume on when hosts are back")
                    break
                now = max(1, ranks * resources.slots(left) // resources.slots(first))
                there = left if hosts or left != first else ""
            _say(settings, f"restart {number + 1} of {asked.max_restarts}, with {now} rank{'s' * (now > 1)}")
            flags["resume"] = "on"
            os.environ.update({checkpoints.RESTARTS: str(number + 1), checkpoints.DIED: str(died)})
        if code == 0 or kept.empty:
            kept.remove()
        else:
            _say(settings, f"the same command with --resume on continues from the checkpoints in {path}")
    return code


def _to_resume(code: int, kept: Checkpoints, settings: Settings) -> int:
    """The exit code of a job that SIGUSR1 has ended: whether there is a checkpoint to go on from."""
    if kept.empty:
        _say(settings, "SIGUSR1 has ended the job, and there is no checkpoint: nothing can be resumed")
        return code
    _say(settings, f"the same command with --resume on continues from the checkpoints in {kept.path}")
    return EndsToResume.CODE


def _died(code: int, watch: MpirunMonitor, kept: Checkpoints) -> bool:
    """Whether a job has ended because a rank has died, and not by itself, nor by a signal to this process."""
    if code == 0 or watch.stopped:
        return False
    return bool(watch.dead) or (kept.script_started and not kept.script_ended)


def _say(settings: Settings, text: str) -> None:
    if settings.notes:
        print(f"matex_tf: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _locked(kept: Checkpoints) -> Iterator[None]:
    """Keep other jobs away from the directory."""
    descriptor = _lock(kept)
    if descriptor is None:
        raise MatexError(
            f"another job has its checkpoints in {kept.path}: wait for its end, or give each a --checkpoint-dir."
        )
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(kept: Checkpoints) -> int | None:
    """The descriptor of a lock on the directory; None where another job has it."""
    try:
        while True:
            descriptor = kept.folder.lock_file(checkpoints.LOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                return descriptor  # a file system without locks
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)  # of a job that has just ended, and has removed the file
    except OSError as error:
        raise kept.unusable(error) from None


def _named(hosts_now: Callable[[], str] | None, before: str, settings: Settings) -> str:
    """The hosts that the next job may have; those of the one before where the file cannot be read."""
    try:
        return hosts_now() if hosts_now else before
    except SettingError as error:
        _say(settings, f"{error} The job continues on the hosts that it has")
        return before


def _left(hosts: str, mpirun: Mpirun, settings: Settings) -> str:
    """The hosts of the next job: without those that do not answer."""
    named = hosts.split(",")
    with ThreadPoolExecutor(min(len(named), 32)) as threads:
        answers = list(threads.map(lambda host: _answers(host.partition(":")[0], mpirun), named))
    left = ",".join(host for host, answer in zip(named, answers, strict=True) if answer)
    silent = [host.partition(":")[0] for host, answer in zip(named, answers, strict=True) if not answer]
    if silent and left:
        _say(settings, f"{', '.join(silent)} cannot be reached, and is left out")
    return left


def _answers(host: str, mpirun: Mpirun) -> bool:
    """Whether mpirun can start a program on a host."""
    command = [*mpirun_command.mpirun_line(mpirun, 1, f"{host}:1"), "echo", _HERE]
    return any(_says_so(command) for _ in range(_TRIES))


def _says_so(command: list[str]) -> bool:
    """Whether a program of an mpirun prints `_HERE`, in time. Some mpiruns of one that is so short do not end."""
    nothing, limit, said = subprocess.DEVNULL, time.monotonic() + _SECONDS_TO_ANSWER, b""
    job = lifetime.start(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing)
    assert job.stdout is not None
    with job.stdout as out:
        while _HERE.encode() not in said and select.select([out], [], [], max(0.0, limit - time.monotonic()))[0]:
            if not (data := os.read(out.fileno(), 1 << 12)):
                break
            said += data
    for stop in (job.terminate, lambda: kill(job.pid)):
        try:
            job.wait(_SECONDS_TO_END)
            break
        except subprocess.TimeoutExpired:
            stop()
    job.wait()
    remove_session(job.pid)
    return _HERE.encode() in said
