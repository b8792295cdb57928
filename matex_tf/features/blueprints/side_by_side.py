"""Jobs that run side by side, each on ranks of its own, and take one task after the other from a folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matex_tf.core import starting
from matex_tf.launch import lifetime

_PAUSE = 0.02  # seconds between looks at the jobs
_SECONDS_TO_END = 10.0
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_SHOWN = 1500  # characters of what a job has printed that has failed


@dataclass
class Task:
    """Something for a job to do.

    Attributes:
        name: unlike that of every other task.
        text: of the file that the job reads.
        result: the file that it writes.
        found: what was in that; {"failed": why} where the job ended without it.
    """

    name: str
    text: str
    result: str
    found: dict[str, Any] = field(default_factory=dict)


class SideBySide:
    """Some jobs, which are started when there is something to do and stay for the next tasks.

    Args:
        lines: the command line of each job, of the folder that it reads.
        folder: for the jobs' own folders and for what they print.
        shown: whether what a job prints goes to this process's output, and not into a file.
        threads: for each rank, where the environment does not say; 0 leaves that to the job, which knows no other.
    """

    def __init__(self, lines: Sequence[Callable[[str], list[str]]], folder: str, shown: bool = False, threads: int = 0):
        environ = {name: value for name, value in os.environ.items() if name != "MATEX_TF"}
        starting.settle_hashes(environ)
        if threads:
            for name, count in zip(_THREADS, (threads, threads, max(2, threads)), strict=True):
                environ.setdefault(name, str(count))
        self._jobs = [
            _Job(line, os.path.join(folder, f"group-{number}"), shown, environ) for number, line in enumerate(lines)
        ]

    def run(self, tasks: Sequence[Task]) -> None:
        """Have the tasks done, each by the first job that is free."""
        waiting, busy = list(tasks), [job for job in self._jobs if job.task]
        while waiting or busy:
            for job in self._jobs:
                if job.task is None and waiting:
                    job.begin(waiting.pop(0))
            for job in self._jobs:
                job.look()
            busy = [job for job in self._jobs if job.task]
            time.sleep(_PAUSE)

    def end(self) -> int:
        """Let the jobs end; the exit code of the last that failed, or 0."""
        codes = [job.end() for job in self._jobs]
        return next((code for code in codes if code), 0)

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for job in self._jobs:
            if kind is not None:
                job.stop()
            job.end()


class _Job:
    """A job, with the task that it is at."""

    def __init__(self, line: Callable[[str], list[str]], folder: str, shown: bool, environ: dict[str, str]):
        self._line, self._base, self._shown, self._environ = line, folder, shown, environ
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = self._tasks = 0
        self._folder = self._log = ""
        self.task: Task | None = None

    def begin(self, task: Task) -> None:
        """Start the job where it does not run, and give it a task."""
        if self._process is None:
            self._folder, self._tasks = f"{self._base}.{self._starts}", 0
            self._log = f"{self._folder}.log"
            self._starts += 1
            os.mkdir(self._folder)
            with open(self._log, "wb") as log:
                output = None if self._shown else log
                # In a session of its own, a Ctrl-C at the terminal reaches this process alone, which ends the jobs.
                self._process = lifetime.start(
                    self._line(self._folder), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._environ,
                    start_new_session=True,
                )  # fmt: skip
        self.task = task
        draft = Path(self._folder, f"{self._tasks}.draft")
        draft.write_text(task.text)
        os.replace(draft, os.path.join(self._folder, f"{self._tasks}.json"))
        self._tasks += 1

    def look(self) -> None:
        """See whether the task is done, or the job has ended."""
        if self.task is None or self._process is None:
            return
        ended = self._process.poll() is not None
        if os.path.exists(self.task.result):
            with open(self.task.result, encoding="utf-8") as file:
                found = self.task.found = json.load(file)
            self.task = None
            if "failed" in found:
                self.end()
        elif ended:
            self.task.found = {"failed": self._last_words()}
            self.task, self._process = None, None

    def _last_words(self) -> str:
        code = self._process.returncode if self._process else 0
        with open(self._log, encoding="utf-8", errors="replace") as file:
            said = file.read().strip()
        return f"its job ended with exit code {code}" + (f": {said[-_SHOWN:]}" if said else "")

    def end(self) -> int:
        """Let the job come to its end; its exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        Path(self._folder, "end").touch()
        try:
            code = process.wait(None if self._shown else _SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            _kill(process)
            code = process.wait()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """End the job now."""
        if self._process is not None:
            _kill(self._process)
            self._process.wait()
            self._process = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
