"""Jobs of their own: start a launcher, wait for its end, and see what it left behind."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from warm import MARK

BIN = Path(sys.executable).parent
LAUNCHER = str(BIN / "matex-tf")
SHARED_MEMORY = Path("/dev/shm")

#: A script: the ranks meet for ever, but for what one of them does once they have. To fill in: that rank, that line.
MEET = """
import os, signal, sys, time
import matex_tf
world = matex_tf.init()
world.barrier("start")
if world.rank == %d:
    open("pid", "w").write(str(os.getpid()))
    %s
while True:
    world.barrier("take a step")
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    code: int
    out: str
    err: str
    seconds: float


class Job:
    """A running job.

    Args:
        command: what to start.
        folder: its working directory; its temporary files go into folder/tmp.
        environ: more environment variables.
    """

    def __init__(self, command: Sequence[str], folder: Path, **environ: str):
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self._segments = set(SHARED_MEMORY.iterdir())
        self._on_hosts = "--hosts" in command
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MATEX_", "OMP_", "TF_NUM"))}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, "TMPDIR": str(self.temporary), MARK: self.mark, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def end(self, seconds: float = 60, given: str = "") -> Ended:
        """Wait for its end."""
        begin = time.monotonic()
        try:
            out, err = self.process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            out, err = self.process.communicate()
            raise AssertionError(f"still running after {seconds} s\n{out}\n{err}") from None
        return Ended(self.process.returncode, out, err, time.monotonic() - begin)

    def stop(self) -> None:
        """Kill every process of this job."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """The processes of this job that are alive."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = (
                    process.environ().get(MARK) == self.mark or process.name() == self.mark[:15]
                )  # from a warm server
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def await_file(self, path: Path, seconds: float = 30) -> str:
        """What a file of the script holds, once it holds anything."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if path.exists() and path.read_text():
                return path.read_text()
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        ended = self.end(1)
        raise AssertionError(f"no {path.name}\n{ended.out}\n{ended.err}")

    def left(self, seconds: float = 10) -> list[str]:
        """Processes, shared memory and temporary files of this job that are still there after so many seconds."""
        limit = time.monotonic() + seconds
        while True:
            left = [f"{process}" for process in self.processes()]
            left += [str(path) for path in self.temporary.iterdir()]
            left += [str(path) for path in self._unused_segments()]
            if not left or time.monotonic() > limit:
                return left
            time.sleep(0.1)

    def _unused_segments(self) -> list[Path]:
        """New shared memory that no process has mapped; other jobs, and directories of other tests, may be beside it.

        Open MPI names its files sm_segment.HOST.USER.JOB.RANK. Those of emulated hosts are other tests', which kill
        such hosts; a JOB that ends in 0000 had no mpirun.
        """
        new = set(SHARED_MEMORY.iterdir()) - self._segments
        new = {path for path in new if path.is_file() and not re.fullmatch(r"sm_segment\..*0000\.\d+", path.name)}
        if not self._on_hosts:
            here = f"sm_segment.{socket.gethostname()}."
            new = {path for path in new if path.name.startswith(here) or not path.name.startswith("sm_segment.")}
        if not new:
            return []
        mapped = []
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                mapped.append(maps.read_text(errors="replace"))
        text = "\n".join(mapped)
        return [path for path in new if path.exists() and str(path) not in text]
