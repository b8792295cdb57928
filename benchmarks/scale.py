"""What more ranks cost: time to start, memory of each beyond plain TensorFlow, and the time of a meeting.

Ranks of a tiny training, on this machine and on emulated hosts with a rank each (root), where all share the cores of
this machine. Plain TensorFlow is the same script in as many processes that mpirun starts and that know nothing of one
another. Memory is the proportional set size, in which a page that k processes share counts 1/k in each, and the private
part of it, both from /proc/PID/smaps_rollup after the first steps.

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
from benchmarks import jobs, tables
from benchmarks.step.turns import Barrier

#: To so many ranks the cost of a meeting is carried.
CARRIED = 4096
#: GiB that a rank may take, and that are left to others: of what is free before a size is begun.
EACH_GIB, SPARE_GIB = 0.45, 2.0
_ROUND_SECONDS = 0.2


def now() -> float:
    """Seconds of a clock that is the same in all processes and on all emulated hosts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def free_gib() -> float:
    """Memory that is there without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 2**20


def memory() -> tuple[float, float]:
    """Of this process, megabytes: the proportional set size, and what is private."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024 / 1e6
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]


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
    found["pss"], found["private"] = memory()
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


def measure(count: int, rounds: int, hosts: emulated.Hosts | None = None, plain: bool = False) -> dict[str, Any]:
    """Figures of a job of `count` ranks, one on each host where there are hosts."""
    with tempfile.TemporaryDirectory() as name:
        words = ["-m", "benchmarks.scale", "--as-rank", name, "--rounds", str(rounds)]
        words = [*words, "--plain"] if plain else ["-m", "matex_tf", "--notes", "off", *words]
        begin = now()
        jobs.start(count, words, hosts, environ={"TF_CPP_MIN_LOG_LEVEL": "3"})
        found = [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(count)]
    result: dict[str, Any] = {"ranks": count, "hosts": len(hosts.names) if hosts else 1, "plain": plain}
    for moment in ("began", "stepped"):
        result[moment] = max(one[moment] for one in found) - begin
    for kind in ("pss", "private"):
        result[kind] = statistics.mean(one[kind] for one in found)
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
    for one in (figure for figure in found if figure["hosts"] == 1 and not figure["plain"]):
        plain = next(other for other in found if other["plain"] and other["ranks"] == one["ranks"])
        times = [one["began"], plain["began"], one["stepped"], plain["stepped"]]
        sizes = [one["pss"], plain["pss"], one["pss"] - plain["pss"], one["private"] - plain["private"]]
        rows.append([str(one["ranks"]), *(f"{each:.1f}" for each in times), *(f"{each:.0f}" for each in sizes)])
    columns = ["ranks", "imported, s", "plain", "first steps, s", "plain, s", "PSS, MB", "plain, MB"]
    columns += ["beyond plain, MB", "private beyond, MB"]
    less = ["imported, s", "first steps, s", "PSS, MB"]
    if rows:
        tables.show("a rank on this machine: until all are there, and its memory", columns, rows, less=less)


def show_meetings(found: Sequence[dict[str, Any]]) -> None:
    """Each size, and what that comes to where there are more ranks."""
    cores = len(os.sched_getaffinity(0))
    rows, fits = [], []
    for apart in (False, True):
        mine = [one for one in found if not one["plain"] and (one["hosts"] > 1) == apart]
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


def no_room(count: int) -> str:
    """Why so many ranks are not started, in a line; empty where there is room."""
    need, free = count * EACH_GIB + SPARE_GIB, free_gib()
    return f"{count} ranks are left out: they need {need:.0f} GiB, and {free:.0f} are free" if need > free else ""


def main() -> int:
    parser = tables.parser("scale", __doc__)
    parser.add_argument("--ranks", default="2,4,8,16", help="on this machine (default 2,4,8,16)")
    parser.add_argument("--hosts", default="2,4,8", help="emulated, with a rank each (root); none (default 2,4,8)")
    parser.add_argument("--rounds", type=int, default=7, help="of meetings, of which the median counts (default 7)")
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
    for count, apart in [*((count, False) for count in sizes), *((count, True) for count in on_hosts)]:
        if reason := no_room(count):
            print(f"scripts/bench scale: {reason}.", flush=True)
            continue
        with emulated.Hosts(count) if apart else contextlib.nullcontext() as hosts:
            found.append(measure(count, options.rounds, hosts))
        if not apart:
            found.append(measure(count, options.rounds, plain=True))
        print(f"  {count} {'hosts' if apart else 'ranks'} are measured", file=sys.stderr, flush=True)
        tables.keep(found)
    show_ranks(found)
    show_meetings(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
