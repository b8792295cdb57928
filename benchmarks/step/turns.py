"""Jobs side by side in one run: all stay alive, and one at a time has the cores.

A rank connects to the coordinator's socket, says who it is and what it can run, and then waits for its turn in a read
that costs nothing. Between its turns a job is stopped (SIGSTOP) where it has threads that never rest. A turn begins
with steps that do not count, which warm the caches.

This file runs in the environments of the peers too, and needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

LOCK_STEP = "lock step"  # what every exchange is compared with
SOCKET = "STEP_TURNS"  # the environment variable with the coordinator's socket, in the directory of the run
_SECONDS_TO_START = 300
_SPIN_SECONDS = 0.02  # more than ranks are apart where they have cores of their own
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Be killed when the parent process ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Job:
    """A job of some ranks.

    Args:
        name: shown where it fails.
        command: starts all ranks.
        environ: its variables.
        directory: of the run; what the job prints goes to a file in it.
        ranks: how many.
        rests: whether it sleeps by itself between its turns, and need not be stopped.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        directory: Path,
        ranks: int,
        rests: bool = False,
    ):
        self.name = name
        self._rests = rests
        self._log = directory / f"{name}.log"
        path = str(directory / f"{name}.socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(ranks)
        self._server.settimeout(1)
        self._connections: dict[int, Any] = {}
        self._pids: list[int] = []
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                env={**environ, SOCKET: path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # mpirun ends its whole process group where a rank is killed
                preexec_fn=die_with_parent,
            )
        self.contestants = self._meet(ranks)

    def _meet(self, ranks: int) -> list[str]:
        """Wait for all ranks, then until they are ready to run; what they can run."""
        end = time.monotonic() + _SECONDS_TO_START
        while len(self._connections) < ranks:
            if self._process.poll() is not None or time.monotonic() > end:
                self._fail()
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            connection.settimeout(_SECONDS_TO_START)
            # The pid as this process counts them: a rank on an emulated host counts its own.
            self._pids.append(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
            stream = connection.makefile("rw")
            self._connections[json.loads(stream.readline())["rank"]] = stream
        ready = [self._read(rank) for rank in range(ranks)]
        self._signal(signal.SIGSTOP)
        return list(ready[0]["contestants"])

    def parameters(self) -> int:
        """How many weights its model has."""
        return int(self._ask({"parameters": True})[0]["parameters"])

    def turn(self, contestant: str, steps: int) -> float:
        """Seconds of a step, the mean of some, of the slowest rank."""
        return float(max(answer["seconds"] for answer in self._ask({"run": contestant, "steps": steps})))

    def _ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        self._signal(signal.SIGCONT)
        for stream in self._connections.values():
            stream.write(json.dumps(request) + "\n")
            stream.flush()
        answers = [self._read(rank) for rank in sorted(self._connections)]
        self._signal(signal.SIGSTOP)
        return answers

    def _read(self, rank: int) -> dict[str, Any]:
        try:
            line = self._connections[rank].readline()
        except OSError:
            line = ""
        return dict(json.loads(line)) if line else self._fail()

    def _signal(self, number: int) -> None:
        if self._rests:
            return
        for pid in self._pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                self._fail()

    def _fail(self) -> NoReturn:
        self.end()
        sys.exit(f"the job {self.name} failed:\n{self._log.read_text(errors='replace')[-6000:]}")

    def end(self) -> None:
        """End it: no process of it is left."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._pids = []
        self._server.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Rank:
    """A rank's side of the turns.

    Attributes:
        rank, size: of this process in its job.
    """

    def __init__(self) -> None:
        die_with_parent()
        self.rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        self.size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
        path = os.environ[SOCKET]
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self._stream = connection.makefile("rw")
        self._say({"rank": self.rank})
        self.barrier: Callable[[], None] = Barrier(path + ".barrier", self.rank, self.size)

    def _say(self, answer: dict[str, Any]) -> None:
        self._stream.write(json.dumps(answer) + "\n")
        self._stream.flush()

    def lock_step(self, step: Callable[[], Any]) -> Callable[[], None]:
        """The same step, with the ranks meeting after it."""

        def locked() -> None:
            step()
            self.barrier()

        return locked

    def serve(self, contestants: Mapping[str, Callable[[], Any]], parameters: int) -> NoReturn:
        """Run steps when asked for, until the coordinator ends this process.

        Args:
            contestants: runs one step; in the same order on every rank.
            parameters: how many weights the model has.
        """
        for step in contestants.values():
            for _ in range(3):
                step()
        self._say({"contestants": list(contestants)})
        for line in self._stream:
            request = json.loads(line)
            if "parameters" in request:
                self._say({"parameters": parameters})
                continue
            step, steps = contestants[request["run"]], request["steps"]
            for _ in range(max(1, steps // 5)):
                step()
            self.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            self._say({"seconds": (time.perf_counter() - begin) / steps})
        os._exit(0)


class Barrier:
    """The cheapest meeting of processes that there is: a counter of each in a file that all have mapped.

    A rank that waits keeps its core, which would go to another program for milliseconds; only where ranks share cores
    does it give it away at each turn. It sleeps where that takes long. All lock steps use it.
    """

    def __init__(self, path: str, rank: int, size: int):
        with open(path, "a+b") as file:
            file.truncate(64 * size)
            self._counters = memoryview(mmap.mmap(file.fileno(), 64 * size)).cast("q")
        self._mine, self._others = 8 * rank, [8 * other for other in range(size) if other != rank]
        self._crowded = size > (os.cpu_count() or 1)
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        self._counters[self._mine] = self._count
        begin = time.perf_counter()
        for other in self._others:
            while self._counters[other] < self._count:
                if self._crowded:
                    os.sched_yield()
                if time.perf_counter() - begin > _SPIN_SECONDS:
                    time.sleep(2e-4)
