"""Whole jobs, from the command to the exit: seconds by phase, and CPU seconds, of this package and of its peers.

Each job is a script that trains, evaluates and saves, started by a command as a user gives it: LeNet for 2,000 steps,
ResNet-20 on small images that are flipped and shifted, with a validation, a transformer that classifies texts, and a
network on the columns of a CSV file. All compute the same steps of the same global batches; the ranks of a peer take
batch/p rows each. In the ways `plain`, `matex_tf` and `jax` the script knows nothing of ranks; `plain` and `jax` are
one process with as many cores as the others have ranks. The table is read by `DataSet` on this package's ranks, each
its part, and elsewhere by pandas, whole.

    launch       from the command to the script's first line
    import       of the framework
    start        of the peer's own library: a group of processes, a strategy
    input        rows made, or the file read
    model        built and compiled
    first step   of `fit`; most of it traces
    steps        the others, with what an epoch costs
    evaluation   within `fit`, or behind it
    saving       of the model
    exit         from the script's last line to the end of the command

Peers need environments of their own (`scripts/bench peers`); those that are not there are left out, with a line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import hosts as emulated
from benchmarks import launching, peers, tables
from benchmarks.whole import clock, in_keras, tasks
from matex_tf.launch import mpirun_command

SCRIPTS = Path(__file__).parent / "whole"
PHASES = (*("launch", "import", "start", "input", "model", "first step", "steps", "evaluation", "saving", "exit"),)
WAYS = ("plain", "matex_tf", "jax", "horovod", "mirrored", "ddp")
_PEERS = {"horovod": peers.TENSORFLOW, "mirrored": peers.TENSORFLOW, "ddp": peers.TORCH}


def missing(way: str) -> str:
    """Why a way cannot be taken here; "" if it can."""
    if way == "jax":
        there = subprocess.run([sys.executable, "-c", "import jax"], capture_output=True).returncode == 0
        return "" if there else "needs JAX: pip install 'jax>=0.10'"
    peer = _PEERS.get(way)
    return "" if peer is None or peer.ready else f"scripts/bench peers --only {peer.name} makes its environment"


def command(way: str, ranks: int, hosts: emulated.Hosts | None) -> tuple[list[str], dict[str, str]]:
    """What starts a script, up to its name, and variables for it."""
    one = {name: str(ranks) for name in launching.THREADS}  # a process with as many threads
    if way in ("plain", "jax"):
        return [sys.executable], one | ({"KERAS_BACKEND": "jax"} if way == "jax" else {})
    where = launching.listed(hosts, -(-ranks // len(hosts.names))) if hosts else ""
    if way == "matex_tf":
        line = [str(Path(sys.executable).with_name("matex-tf")), "run", "-n", str(ranks), "--notes", "off"]
        return [*line, *(["--hosts", where] if where else [])], {}
    environ = dict(launching.THREADS)
    if way == "mirrored":
        environ[in_keras.PORTS] = ",".join(map(str, launching.free_ports(ranks)))
    if way == "ddp":
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launching.free_ports(1)[0])}
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, where, names=list(environ))
    return [*line, str(_PEERS[way].python)], environ


def measure(name: str, way: str, ranks: int, folder: Path, hosts: emulated.Hosts | None) -> dict[str, float]:
    """Run a job once: seconds by phase, "all", "CPU" of all its processes, and its score."""
    words, extra = command(way, ranks, hosts)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    script = SCRIPTS / ("in_torch.py" if way == "ddp" else "in_keras.py")
    line = [*(hosts.on() if hosts else []), *words, str(script), name, way, str(result), str(folder / "table.csv")]
    environ = {**os.environ, **(hosts.environ if hosts else {}), **extra, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ["PYTHONPATH"] = str(launching.ROOT)
    before, begin = _cpu(), clock.now()
    done = subprocess.run(line, env=environ, capture_output=True, text=True, errors="replace", cwd=folder)
    end = clock.now()
    if done.returncode or not result.exists():
        sys.exit(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(result.read_text())
    spent = {"launch": told["begun"] - begin, **told["spent"], "exit": end - told["ended"]}
    return {**spent, "all": end - begin, "CPU": _cpu() - before, "score": told["score"]}


def _cpu() -> float:
    """CPU seconds of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(name: str, found: Mapping[str, Sequence[Mapping[str, float]]], where: str, rounds: int) -> None:
    """Print the table of a job."""
    rows = []
    for way, each in found.items():
        medians = {what: statistics.median(one.get(what, 0.0) for one in each) for what in (*PHASES, "all", "CPU")}
        whole = [one["all"] for one in each]
        figures = [f"{medians[what]:.1f}" for what in (*PHASES, "all", "CPU")]
        rows.append([way, *figures, f"{min(whole):.1f} to {max(whole):.1f}", f"{each[-1]['score']:.2f}"])
    columns = ["", *PHASES, "all", "CPU", "spread", "accuracy"]
    title = f"{name}: seconds from the command to the exit, {where}"
    tables.show(title, columns, rows, less=["all", "CPU"], spreads={"all": "spread"}, note=f"median of {rounds}")


def main() -> int:
    parser = tables.parser("jobs", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tasks", default=",".join(tasks.TASKS), help="which (default %(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="which (default %(default)s)")
    parser.add_argument("-n", type=int, default=2, dest="ranks", help="ranks, and cores of one process (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="in which the ways take turns (default 3)")
    parser.add_argument("--mb", type=int, default=1000, help="size of the CSV file (default 1000)")
    parser.add_argument("--hosts", type=int, default=0, help="emulated hosts (root), for matex_tf, horovod and plain")
    parser.add_argument("--gbit", type=float, default=1.0, help="of their links (default 1)")
    options = tables.parse(parser)
    wanted, ways = options.tasks.split(","), options.ways.split(",")
    for option, given, known in (("--tasks", wanted, tasks.TASKS), ("--ways", ways, WAYS)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"{option}: {', '.join(unknown)} is none of {', '.join(known)}")
    if options.hosts:
        ways = [way for way in ways if way in ("plain", "matex_tf", "horovod")]
    for way in ways:
        if why := missing(way):
            print(f"  {way} is left out: {why}", file=sys.stderr, flush=True)
    ways = [way for way in ways if not missing(way)]
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "tabular" in wanted:
            tasks.write_table(f"{folder}/table.csv", options.mb)
        for name in wanted:
            kept[name] = compare(name, ways, options, Path(folder))
            tables.keep(kept)
    return 0


def compare(name: str, ways: Sequence[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure a job in each way, in turn; what was found, by way."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    where = f"{options.ranks} ranks"
    for number in range(options.rounds):
        for way in ways[:: -1 if number % 2 else 1]:
            if options.hosts and way != "plain":
                where = f"{options.ranks} ranks on {options.hosts} hosts, {options.gbit:g} Gbit/s"
                with emulated.Hosts(options.hosts, options.gbit) as hosts:
                    found[way].append(measure(name, way, options.ranks, folder, hosts))
            else:
                found[way].append(measure(name, way, options.ranks, folder, None))
    show(name, found, where, options.rounds)
    return found


if __name__ == "__main__":
    sys.exit(main())
