"""How a job ends: together, with one report, whatever happened on whichever rank."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NoReturn

import matex_tf
from matex_tf import errors
from matex_tf.core import mismatch, starting
from matex_tf.core import world as world_module
from matex_tf.core.output import Output
from matex_tf.core.world import World
from matex_tf.errors import MatexError
from matex_tf.faults import transactions
from matex_tf.job import tracebacks
from matex_tf.launch import lifetime
from matex_tf.state import run_state

_FIRST_WAIT = 0.5  # seconds in which rank 0 may report the error that this rank has too
_WAIT_PER_RANK = 0.2
_LONGEST_WAIT = 3.0
_WHILE_STARTING = 2.0  # times these waits: the machine is busy with the other ranks' starts, and the launcher late
_FOR_ANOTHER = 6.0  # seconds for a rank that has said that it reports the same error
_LAST_WORDS = 0.2  # seconds for the launcher to pass on what was printed
_FOR_THE_LAUNCHER = 2.0  # seconds for the launcher to see that a rank has died

_NOT_COVERED = (
    "another rank has died, in a loop of the script's own or elsewhere outside of fit, evaluate and predict, where "
    "--faults shrink cannot carry on, so the job ends; --faults restart starts it again"
)
_TOO_LARGE = (
    "memory was short: --shard lets each rank hold a part of what every rank holds now (docs/sharding.md); fewer ranks "
    "on a node leave more for each"
)
_OURS = os.path.dirname(os.path.abspath(matex_tf.__file__))


class Finalizer:
    """The end of this rank.

    Args:
        world: the ranks that must end together; None before MPI has started.
        output: the output of this rank, so that a report reaches the user and not a log.
    """

    def __init__(self, world: World | None = None, output: Output | None = None):
        self._world = world
        self._output = output

    def finished(self) -> None:
        """The script has ended here: wait until it has on every rank. Returns only if it has."""
        assert self._world is not None and self._output is not None
        self._output.flush()
        try:
            self._world.barrier("reach the end of the script")
        except BaseException as error:
            self.failed(error)
        self._output.finish()

    def failed_to_start(self, error: MatexError) -> int:
        """Report an error from before MPI started; returns the exit code."""
        rank = starting.rank_in_environment()
        if rank:
            time.sleep(_WHILE_STARTING * _wait_of(rank))
        print(f"matex_tf: error: {error}", file=sys.stderr, flush=True)
        if rank is not None:
            time.sleep(_LAST_WORDS)
        return 2 if isinstance(error, errors.SettingError) else 1

    @staticmethod
    def end_forked(error: BaseException | None = None) -> None:
        """In a process that the script has forked, end as Python would, but for MPI, which is the rank's to end. Comes
        back in a rank.

        Args:
            error: what the script was left by; None where it has come to its end.
        """
        if not world_module.forked():
            return
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if code and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif error is not None:
            code, tb = 1, own_traceback(error.__traceback__)
            sys.excepthook(type(error), error.with_traceback(tb), tb)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        Output.flush()
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code & 0xFF)

    def failed(self, error: BaseException) -> None:
        """Report an error of the script and end all ranks; returns only for `sys.exit(0)`."""
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        assert self._world is not None and self._output is not None
        code, report = self._report(error)
        if self._world.checkpoints is not None and not transactions.comes_from_a_death(error):
            self._world.checkpoints.end()
        elif self._world.checkpoints is not None:
            time.sleep(_FOR_THE_LAUNCHER)  # which names the rank that has died, and ends this one
        self._output.flush()
        if report and self._world.rank != 0:
            time.sleep(_wait_of(self._world.rank))
        if report and not claim(error):
            time.sleep(_FOR_ANOTHER)  # which reports the same, and ends this one
        self._output.restore()
        if report:
            os.write(2, report.encode(errors="replace"))
            time.sleep(_LAST_WORDS)
        self._abort(code)

    def _abort(self, code: int) -> NoReturn:
        assert self._world is not None
        lifetime.remove_own_segments()
        self._world.abort(code)
        os._exit(code)

    def _report(self, error: BaseException) -> tuple[int, str]:
        assert self._world is not None
        here = f"matex_tf: rank {self._world.rank} of {self._world.size} on {self._world.host}"
        if isinstance(error, KeyboardInterrupt):
            return 130, ""
        if isinstance(error, errors.EndsToResume):
            saved = f"matex_tf: the checkpoint of {error.where} is saved"
            return int(error.code or 0), f"{saved}, and the job ends, as {error.by.name} asks\n"
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else 1
            text = f"{error.code}\n" if not isinstance(error.code, int) else ""
            return code if 0 < code < 256 else 1, f"{text}{here}: sys.exit({error.code!r}) at {_place(error)}\n"
        uncovered = ""
        if self._world.guard is not None and transactions.comes_from_a_death(error):
            uncovered = f"{here}: {_NOT_COVERED}\n"
        ours = _own_error(error)
        if ours is not None:
            return 2 if isinstance(ours, errors.SettingError) else 1, f"matex_tf: error: {ours}\n{uncovered}"
        text = tracebacks.whole(error, own_traceback(error.__traceback__))
        # The last line says what went wrong, also where the error has more of them.
        again = f"{here} failed: {tracebacks.summary(error)}\n" if "\n" in tracebacks.message(error) else ""
        memory = f"{here}: {_TOO_LARGE}\n" if is_short_of_memory(error) else ""
        return 1, f"{here} failed:\n{text}{uncovered or again}{memory}"


@contextlib.contextmanager
def leaves_well(end: Callable[[], None]) -> Iterator[None]:
    """While the script runs inside, `os._exit(0)` is its end on this rank, and not that of others that run: without
    MPI_Finalize mpirun would end them. With another code, or from another thread, it ends the job at once.

    Args:
        end: what comes after the end of a script.
    """
    leave, process = os._exit, os.getpid()

    def left(status: int) -> None:
        if status == 0 and os.getpid() == process and threading.current_thread() is threading.main_thread():
            vars(os)["_exit"] = leave
            end()
            atexit._run_exitfuncs()  # ours, and before them the script's
            world_module.finalize()
        leave(status)

    vars(os)["_exit"] = left
    try:
        yield
    finally:
        vars(os)["_exit"] = leave


def is_short_of_memory(error: BaseException) -> bool:
    """Whether Python or TensorFlow got no memory."""
    return isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"


class _Claims(list[socket.socket]):
    """Of a run: held to the end of this process, which gives them back."""


def claim(error: BaseException) -> bool:
    """Whether this is the first rank of this node to report an error of these words; the first call counts.

    A name of the kernel's is bound, which nobody has to remove. Somebody else who has it only makes a report late.
    """
    job = starting.given("PMIX_NAMESPACE") or str(os.getppid())
    mark, detail = mismatch.fingerprint(f"{job} {os.geteuid()}", [errors.harmless(tracebacks.message(error))])
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0matex-report-{mark:08x}{detail:08x}")
    except OSError as taken:
        held.close()
        return taken.errno != errno.EADDRINUSE
    run_state.part(_Claims).append(held)
    return True


def own_traceback(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    first = tb
    while first is not None and _is_runner(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or tb


def _is_runner(filename: str) -> bool:
    return os.path.dirname(filename) in (_OURS, os.path.dirname(__file__)) or "runpy" in os.path.basename(filename)


def _own_error(error: BaseException) -> MatexError | None:
    """The MatexError that this error is, comes from, or is TensorFlow's wrapping of."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MatexError):
            last = errors.remembered()  # AutoGraph puts lines of its own around the words
            return last if isinstance(last, MatexError) and str(last) in str(seen) else seen
        seen = seen.__cause__
    if type(error).__module__.startswith("tensorflow") and isinstance(last := errors.remembered(), MatexError):
        return last
    return None


def _place(error: SystemExit) -> str:
    """Where the script asked to exit: the innermost frame that is not Python's own library."""
    library = sysconfig.get_path("stdlib")
    place = "the script"
    for frame in traceback.extract_tb(own_traceback(error.__traceback__)):
        in_library = frame.filename.startswith(library) and "site-packages" not in frame.filename
        if not in_library and not _is_runner(frame.filename):
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return place


def _wait_of(rank: int) -> float:
    return min(_FIRST_WAIT + _WAIT_PER_RANK * rank, _LONGEST_WAIT)
