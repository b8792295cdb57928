"""What a job on emulated hosts has left behind."""

from __future__ import annotations

import subprocess
import time

from jobs import Job

from benchmarks.hosts import Hosts


def left(hosts: Hosts, job: Job, seconds: float) -> list[str]:
    """What a job has left behind after so many seconds, on the machine and on its hosts."""
    limit = time.monotonic() + seconds
    while True:
        found = job.left(0)
        for name in hosts.up:
            found += [f"{name}: {command}" for command in hosts.processes(name).values()]
            find = [*hosts.on(name), "find", "/dev/shm", "/run/tmp", "-mindepth", "1"]
            found += [f"{name}: {path}" for path in subprocess.check_output(find, text=True).splitlines()]
        if not found or time.monotonic() > limit:
            return found
        time.sleep(0.1)
