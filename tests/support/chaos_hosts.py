"""The trainings of `chaos` on three emulated hosts with two ranks each: ranks die, all ranks of a host, or its link.

Run by scripts/chaos --hosts; needs root. Ranks are started cold, as on real hosts, so a training takes longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import chaos
from jobs import LAUNCHER, Job
from on_hosts import left
from places import PLACES

from benchmarks.hosts import Hosts

RANKS, EACH = 6, 2
#: Seconds in which a silent host counts as dead.
SILENT = 15


def plan(number: int, seed: int) -> chaos.Run:
    """A run: in turn one or two ranks that die by time or by place, all ranks of a host, a link that is cut."""
    chance = random.Random(f"{seed} {number} hosts")
    kind = ("ranks", "host", "link")[number % 3]
    after, deaths = chance.uniform(0, 6), []
    if kind == "ranks":
        for rank in chance.sample(range(RANKS), chance.randint(1, 2)):
            place = chance.choice(["time", *(name for name in PLACES if rank == 0 or name != "writing")])
            count = chance.randint(1, PLACES[place][1]) if place in PLACES else 0
            deaths.append({"rank": rank, "place": place, "count": count, "delay": 0, "after": after})
    else:
        host = chance.randrange(RANKS // EACH)
        ranks = range(host * EACH, (host + 1) * EACH)
        place = "time" if kind == "host" else "link"
        deaths = [{"rank": rank, "place": place, "count": 0, "delay": 0, "after": after} for rank in ranks]
    return chaos.Run(number, RANKS, deaths)


def execute(run: chaos.Run, expected: list[dict[str, Any]]) -> chaos.Run:
    """Train once; what is amiss is in `run.failures`. `expected` is that of `chaos.execute`."""
    folder = Path(tempfile.mkdtemp(prefix="matex-chaos-"))
    (folder / "train.py").write_text(chaos.SCRIPT)
    shutil.copy(Path(chaos.__file__).with_name("places.py"), folder)
    flags = ["-n", str(RANKS), "--hosts", ",".join(f"h{n}:{EACH}" for n in range(1, RANKS // EACH + 1)), "-x", "CHAOS"]
    flags += ["--faults", "shrink", "--bucket-mb", "1", "--stall-abort-seconds", str(SILENT), *run.flags]
    kind = chaos.kind(run.number)
    flags += [word for name in kind for word in ("-x", name)]
    by_place = [death for death in run.deaths if death["place"] in PLACES]
    begin = time.monotonic()
    with Hosts(RANKS // EACH) as hosts:
        line = [*hosts.on(folder=folder), LAUNCHER, "run", *flags, "train.py"]
        job = Job(line, folder, CHAOS=json.dumps(by_place), TF_NUM_INTRAOP_THREADS="1", **kind, **hosts.environ)
        cut = _disturb(run, folder, hosts, job)
        log = ""
        try:
            if cut:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(chaos.SECONDS)
                for host in cut:
                    hosts.kill(host)  # its prted cannot hear of the end, and holds the output open
            ended = job.end(chaos.SECONDS)
            log = ended.out + ended.err
            if ended.code:
                run.failures.append(f"the job ended with code {ended.code}")
        except AssertionError as error:
            log = str(error)
            run.failures.append(f"still running after {chaos.SECONDS} s")
        run.seconds = time.monotonic() - begin
        # TensorFlow leaves the code that it has generated when it is killed.
        if found := [path for path in left(hosts, job, 10) if "__autograph_generated_file" not in path]:
            run.failures.append(f"left behind: {found}")
    chaos.judge(run, folder, expected[run.number % 2])
    if run.failures:
        print(f"{run}\n  {'; '.join(run.failures)}\n  {folder}\n{log[-3000:]}")
    else:
        shutil.rmtree(folder)
    return run


def _disturb(run: chaos.Run, folder: Path, hosts: Hosts, job: Job) -> list[str]:
    """Kill ranks, or cut links, so many seconds after all have begun; returns the hosts that are cut off."""
    timed = [death for death in run.deaths if death["place"] in ("time", "link")]
    limit = time.monotonic() + chaos.SECONDS
    while not all((folder / f"pid.{rank}").exists() for rank in range(RANKS)):
        if not timed or job.process.poll() is not None or time.monotonic() > limit:
            return []
        time.sleep(0.01)
    time.sleep(timed[0]["after"] if timed else 0)
    for death in timed:
        host = f"h{death['rank'] // EACH + 1}"
        with contextlib.suppress(KeyError, ProcessLookupError):
            pid = _ranks_of(hosts, host)[death["rank"]]  # a KeyError where it has ended
            with open(folder / f"died.{death['rank']}", "a", encoding="ascii") as file:
                file.write(f"{time.time()}\n")
            if death["place"] == "link":
                hosts.unplug(host)
            else:
                os.kill(pid, signal.SIGKILL)
    return sorted({f"h{death['rank'] // EACH + 1}" for death in timed if death["place"] == "link"})


def _ranks_of(hosts: Hosts, name: str) -> dict[int, int]:
    """The process of each rank on a host."""
    found = {}
    for pid, command in hosts.processes(name).items():
        if "-m matex_tf" in command:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks = [int(word.split(b"=")[1]) for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
                found.update({rank: pid for rank in ranks})
    return found
