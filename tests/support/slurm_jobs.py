"""Jobs in an emulated Slurm cluster: handed in, awaited, ended, and what became of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import slurm_cluster
from slurm_cluster import Cluster

UNAVAILABLE = slurm_cluster.unavailable()

#: A test that is run wherever a cluster can be made.
where_slurm_is = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE or "can run")


def needs_slurm(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that is run with `--slurm`."""
    return pytest.mark.slurm(where_slurm_is(test))


class Batch:
    """A job that was handed in.

    Args:
        cluster: where.
        folder: its working directory.
        line: what hands it in, and prints its number.
        log: what the job prints.
    """

    def __init__(self, cluster: Cluster, folder: Path, line: list[str], log: str = "out"):
        self.cluster, self.folder, self.log = cluster, folder, folder / log
        cluster.idle()
        environ = {**os.environ, **cluster.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [*cluster.on(folder), *line], env=environ, capture_output=True, text=True, timeout=60, restore_signals=False
        )
        assert done.returncode == 0, done
        self.number = done.stdout.split()[-1]

    def await_files(self, pattern: str, count: int, seconds: float = 90) -> None:
        """Wait until the job has written so many files."""
        limit = time.monotonic() + seconds
        while len(list(self.folder.glob(pattern))) < count:
            assert time.monotonic() < limit, f"{self.said()}\n{self.state()}\n{self.cluster.logs()}"
            time.sleep(0.05)

    def said(self) -> str:
        """What the job has printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def await_words(self, words: str, seconds: float = 90) -> str:
        """What the job has printed, once these words are among it."""
        limit = time.monotonic() + seconds
        while words not in self.said():
            assert time.monotonic() < limit, f"{self.said()}\n{self.state()}\n{self.cluster.logs()}"
            time.sleep(0.1)
        return self.said()

    def state(self) -> dict[str, str]:
        """What Slurm knows of the job, by its names: JobState, Restarts, ExitCode, NodeList…"""
        words = self.cluster.ask("scontrol", "show", "job", self.number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def end(self, seconds: float = 90) -> dict[str, str]:
        """The state of the job, once Slurm has it as ended."""
        limit = time.monotonic() + seconds
        while True:
            state = self.state()
            if state["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING"):
                return state
            if state["JobState"] == "PENDING" and state["Restarts"] != "0":  # Slurm waits two minutes by itself
                with contextlib.suppress(subprocess.SubprocessError):
                    self.cluster.ask("scontrol", "update", f"jobid={self.number}", "starttime=now")
            if time.monotonic() > limit:
                self.cluster.ask("scancel", self.number)
                raise AssertionError(f"not over after {seconds} s\n{state}\n{self.said()}\n{self.cluster.logs()}")
            time.sleep(0.2)

    def await_requeue(self, seconds: float = 60) -> None:
        """Wait until Slurm has queued the job again; for a moment meanwhile it says that the job has failed."""
        limit = time.monotonic() + seconds
        while (state := self.state())["Restarts"] == "0" or state["JobState"] == "FAILED":
            assert time.monotonic() < limit, f"{self.state()}\n{self.said()}\n{self.cluster.logs()}"
            time.sleep(0.1)

    def kill_rank(self, host: str) -> None:
        """SIGKILL for a rank on a host."""
        ranks = [
            pid for pid, line in self.cluster.hosts.processes(host).items() if "-m matex_tf" in line.split(".py")[0]
        ]
        ranks = [pid for pid in ranks if not _is_launcher(pid)]
        os.kill(ranks[0], signal.SIGKILL)

    def left(self, seconds: float = 15) -> list[str]:
        """What still runs for the job on the nodes after so many seconds."""
        limit = time.monotonic() + seconds
        while True:
            left = [
                line
                for name in self.cluster.hosts.names
                for line in self.cluster.hosts.processes(name).values()
                if "slurmd" not in line.split(" ")[0] and "slurmstepd" not in line
            ]
            if not left or time.monotonic() > limit:
                return left
            time.sleep(0.2)


def _is_launcher(pid: int) -> bool:
    """Whether a process only starts ranks, as srun, prted and mpirun do, whose command lines have that of a rank."""
    name = ""
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    return not name.startswith("python")


def sbatch(command: str, *options: str, log: str = "out", folder: Path) -> list[str]:
    """A line that hands in a job of one command, after which it prints how that has ended."""
    (folder / "job.sh").write_text(f"#!/bin/bash\n{command}\necho ended with $?\n")
    return ["sbatch", "--parsable", *options, f"--output={log}", f"--chdir={folder}", str(folder / "job.sh")]
