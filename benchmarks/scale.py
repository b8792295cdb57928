"""What more ranks cost: time to start, memory of each beyond plain TensorFlow, and the time of a meeting.

Ranks of a tiny training, on this machine and on emulated hosts with a rank each (root), where all share the cores of
this machine. Plain TensorFlow is the same script in as many processes that mpirun starts and that know nothing of one
another. On this machine ranks are started in both ways, with imports of their own and with `--warm-imports on`. Memory
is the proportional set size, in which a page that k processes share counts 1/k in each, and the private part of it,
both from /proc/PID/smaps_rollup after the first steps. A rank that a server has forked is counted with its part of the
server, and with what stands in for it.

A meeting of p ranks should take a + b log2 p; the two are fitted, and carried to ranks that this machine has no room
for. Where ranks share cores they also wait for their turn on a core, and the fit has that in it: it says more than a
meeting would take where each rank has a core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import hosts as emulated
from benchmarks import launching, tables
from benchmarks.step.turns import Barrier

#: To so many ranks the cost of a meeting is carried.
CARRIED = 4096
#: How ranks begin: as plain TensorFlow, with imports of their own, or forked by the server of their node.
PLAIN, OWN, WARM = "plain TensorFlow", "matex_tf", "--warm-imports on"
#: GiB that a rank may take, by how it begins, and that are left to others: of what is free before a size is begun.
EACH_GIB, SPARE_GIB = {PLAIN: 0.45, OWN: 0.45, WARM: 0.15}, 2.0
_ROUND_SECONDS = 0.2


def now() -> float:
    """Seconds of a clock that is the same in all processes and on all emulated hosts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def free_gib() -> float:
    """Memory that is there without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 2**20


def memory(process: int | str = "self") -> np.ndarray:
    """Of a process, megabytes: the proportional set size, and what is private."""
    fields = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024 / 1e6
    return np.array([fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]])


def beside(launcher: str) -> np.ndarray:
    """The same of all processes of this node that are no ranks: the server, and what stands in for ranks.

    Args:
        launcher: the process that has started the ranks.
    """
    found = [os.getppid()]
    for task in os.listdir(f"/proc/{launcher}/task"):
        found += map(int, Path(f"/proc/{launcher}/task/{task}/children").read_text().split())
    return sum((memory(process) for process in found), np.zeros(2))


def rank_main(folder: Path, plain: bool, rounds: int) -> None:
    """One rank; writes what it found into a file of the folder."""
    import keras

    found: dict[str, Any] = {"began": now()}
    x, y = np.random.RandomState(0).rand(256, 784).astype("float32"), np.arange(256) % 10
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=128, verbose=0)
    found["stepped"] = now()
    meet: Callable[[], None]
    if plain:
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        meet = Barrier(str(folder / "barrier"), rank, int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    else:
        from matex_tf.core import world

        rank, meet = world.current().rank, lambda: world.current().barrier("measure memory")
    meet()  # all are there, and share what they share
    found["memory"] = memory().tolist()
    if rank == 0 and (launcher := os.environ.get("MATEX_PARENT")):
        found["beside"] = beside(launcher).tolist()
    meet()
    if not plain:
        found["meetings"] = meetings(rounds)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def meetings(rounds: int) -> dict[str, list[float]]:
    """Microseconds of a barrier and of a sum of 1 KB, by round, as this rank has them."""
    from matex_tf.core import world

    ranks, one = world.current(), np.ones(256, np.float32)
    ways: dict[str, Callable[[], Any]] = {
        "barrier": lambda: ranks.barrier("meet"),
        "sum": lambda: ranks.allreduce(one, "sum 1 KB"),
    }
    spent: dict[str, list[float]] = {}
    for name, meet in ways.items():
        begin = now()
        for _ in range(10):
            meet()
        times = ranks.broadcast(max(10, int(10 * _ROUND_SECONDS / (now() - begin))), "how many meetings")
        spent[name] = []
        for _ in range(rounds):
            ranks.barrier("begin")
            begin = now()
            for _ in range(times):
                meet()
            spent[name].append(1e6 * (now() - begin) / times)
    return spent


def measure(count: int, rounds: int, how: str, hosts: emulated.Hosts | None = None) -> dict[str, Any]:
    """Figures of a job of `count` ranks, one on each host where there are hosts."""
    plain = how == PLAIN
    with tempfile.TemporaryDirectory() as name:
        words = ["-m", "benchmarks.scale", "--as-rank", name, "--rounds", str(rounds)]
        warm = ["--warm-imports", "on" if how == WARM else "off"]
        words = [*words, "--plain"] if plain else ["-m", "matex_tf", "--notes", "off", *warm, *words]
        begin = now()
        launching.start(count, words, hosts, environ={"TF_CPP_MIN_LOG_LEVEL": "3"})
        found = [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(count)]
    result: dict[str, Any] = {"ranks": count, "hosts": len(hosts.names) if hosts else 1, "how": how}
    result["forked"] = "beside" in found[0]
    for moment in ("began", "stepped"):
        result[moment] = max(one[moment] for one in found) - begin
    each = np.mean([one["memory"] for one in found], axis=0) + np.array(found[0].get("beside", [0.0, 0.0])) / count
    result["pss"], result["private"] = each.tolist()
    if not plain:
        by_round = {way: zip(*(one["meetings"][way] for one in found), strict=True) for way in ("barrier", "sum")}
        result["meetings"] = {way: [max(times) for times in rounds_] for way, rounds_ in by_round.items()}
    return result


def fit(ranks: Sequence[int], cost: Sequence[float]) -> tuple[float, float, float]:
    """a and b of a + b log2 p by least squares, and the most by which a figure is off, as a part of it."""
    steps = np.log2(ranks)
    b, a = np.polyfit(steps, cost, 1)
    off = np.abs(a + b * steps - cost) / cost
    return float(a), float(b), float(off.max())


def show_ranks(found: Sequence[dict[str, Any]]) -> None:
    """Time to start, and memory."""
    rows = []
    for one in (figure for figure in found if figure["hosts"] == 1):
        plain = next((other for other in found if other["how"] == PLAIN and other["ranks"] == one["ranks"]), None)
        cells = [str(one["ranks"]), one["how"], f"{one['began']:.1f}", f"{one['stepped']:.1f}"]
        cells += [f"{one['pss']:.0f}", f"{one['private']:.0f}"]
        if one["how"] == PLAIN or plain is None:
            cells += ["", "", ""]
        else:
            cells += [f"{one['stepped'] / plain['began']:.2f}", f"{one['pss'] - plain['pss']:.0f}"]
            cells += [f"{one['private'] - plain['private']:.0f}"]
        rows.append(cells)
    columns = ["ranks", "how", "imported, s", "first steps, s", "PSS, MB", "private, MB"]
    columns += ["first steps / plain imports", "PSS beyond plain, MB", "private beyond, MB"]
    less = ["imported, s", "first steps, s", "PSS, MB", "private, MB"]
    if rows:
        title = "a rank on this machine: until all are there, and its memory"
        tables.show(title, columns, rows, labels=2, less=less)


def show_meetings(found: Sequence[dict[str, Any]]) -> None:
    """Each size, and what that comes to where there are more ranks."""
    cores = len(os.sched_getaffinity(0))
    rows, fits = [], []
    for apart in (False, True):
        by_size: dict[int, dict[str, Any]] = {}  # however ranks began, they meet alike
        for one in found:
            if "meetings" in one and (one["hosts"] > 1) == apart:
                by_size.setdefault(one["ranks"], one)
        mine = list(by_size.values())
        where = "emulated hosts" if apart else "this machine"
        for one in mine:
            cells = [where, str(one["ranks"]), f"{one['ranks'] / cores:g}"]
            for way in ("barrier", "sum"):
                times = one["meetings"][way]
                cells += [f"{statistics.median(times):.1f}", f"{min(times):.1f} to {max(times):.1f}"]
            rows.append(cells)
        sizes = [one["ranks"] for one in mine]
        for way in ("barrier", "sum") if len(mine) > 1 else ():
            a, b, off = fit(sizes, [statistics.median(one["meetings"][way]) for one in mine])
            crowded = [str(size) for size in sizes if size > cores]
            fits.append(
                [where, way, f"{a:.1f}", f"{b:.1f}", f"{100 * off:.0f} %" if len(sizes) > 2 else "two sizes alone",
                 f"{a + b * np.log2(CARRIED):.0f}",
                 f"{', '.join(crowded)} ranks on {cores} cores" if crowded else "none"]
            )  # fmt: skip
    columns = ["where", "ranks", "ranks a core", "barrier, µs", "spread", "1 KB, µs", "spread of 1 KB"]
    spreads = {"barrier, µs": "spread", "1 KB, µs": "spread of 1 KB"}
    if rows:
        tables.show("a meeting of all ranks", columns, rows, labels=2, less=[*spreads], spreads=spreads)
    if fits:
        columns = ["where", "meeting", "a, µs", "b, µs", "off by at most", f"{CARRIED} ranks, µs", "oversubscribed"]
        tables.show("a + b log2 p", columns, fits, labels=2)


def no_room(count: int, how: str) -> str:
    """Why so many ranks are not started, in a line; empty where there is room."""
    need, free = count * EACH_GIB[how] + SPARE_GIB, free_gib()
    if need <= free:
        return ""
    return f"{count} ranks are left out ({how}): they need {need:.0f} GiB, and {free:.0f} are free"


def main() -> int:
    parser = tables.parser("scale", __doc__)
    parser.add_argument("--ranks", default="2,4,8,16", help="on this machine (default 2,4,8,16)")
    parser.add_argument("--hosts", default="2,4,8", help="emulated, with a rank each (root); none (default 2,4,8)")
    parser.add_argument("--rounds", type=int, default=7, help="of meetings, of which the median counts (default 7)")
    parser.add_argument(
        "--ways", default="plain,own,warm", help="how ranks of this machine begin (default plain,own,warm)"
    )
    parser.add_argument("--as-rank", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.as_rank:
        rank_main(Path(options.as_rank), options.plain, options.rounds)
        return 0
    found: list[dict[str, Any]] = []
    sizes = [int(count) for count in options.ranks.split(",") if count != "none"]
    on_hosts = [int(count) for count in options.hosts.split(",") if count != "none"]
    if on_hosts and (reason := emulated.unavailable()):
        print(f"scripts/bench scale: hosts skipped, {reason}.")
        on_hosts = []
    ways = [how for name, how in {"plain": PLAIN, "own": OWN, "warm": WARM}.items() if name in options.ways.split(",")]
    wanted = [(count, how, False) for count in sizes for how in ways]
    for count, how, apart in [*wanted, *((count, OWN, True) for count in on_hosts)]:
        if reason := no_room(count, how):
            print(f"scripts/bench scale: {reason}.", flush=True)
            continue
        with emulated.Hosts(count) if apart else contextlib.nullcontext() as hosts:
            found.append(measure(count, options.rounds, how, hosts))
        if how == WARM and not found[-1]["forked"]:
            sys.exit(f"scripts/bench scale: of {count} ranks with {WARM} the first has imported for itself.")
        print(f"  {count} {'hosts' if apart else 'ranks'} are measured, {how}", file=sys.stderr, flush=True)
        tables.keep(found)
    show_ranks(found)
    show_meetings(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
