"""`matex-tf bench allreduce`: how fast sums over ranks are on this machine or cluster, beside MPI's and the limit.

The limit inside a node is that of its memory: every rank copies what it gives once, and reads and writes its share of
the sum, all ranks at the same time. Between nodes it is that of the wire: 2 (q-1)/q of the bytes for q nodes, at the
speed at which every node sends to the next.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.world import World
from matex_tf.errors import MatexError, SettingError
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.job import launching, suggestions
from matex_tf.job.command_line import Parser, whole
from matex_tf.launch import mpirun_command, mpirun_process, resources
from matex_tf.settings import Settings
from matex_tf.storage import atomic_file

SIZES = [10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9]
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_UNCOUNTED = 2


@dataclass
class Figure:
    """What was measured for one size; seconds are medians, ratios the medians of the ratios of each round. CPU seconds
    are those of a rank, the mean over ranks."""

    bytes: int
    seconds: float
    mpi_seconds: float
    limit_seconds: float
    mpi_over_ours: float
    ours_over_limit: float
    gigabytes_per_second: float
    cpu_seconds: float
    mpi_cpu_seconds: float


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf bench",
        "allreduce [-n N] [options]",
        "Time sums over ranks: matex_tf's, MPI_Allreduce, and the limit that memory or wire set, in turn, the median "
        "of each.",
        "docs/performance.md",
        refusal="matex-tf bench allreduce has no {flag}{near}; matex-tf bench --help lists all.",
        mixed=True,
    )
    launching.add_ranks(parser, "ranks", whole(2, "a number of ranks"))
    what = "what to measure"
    parser.add(
        what, "--sizes", metavar="1K,1M,100M", default=[], convert=_sizes,
        help="Bytes; K, M and G are powers of 1000 (default: 1 KB to 1 GB, as far as memory goes)",
    )  # fmt: skip
    parser.add(
        what, "--repeat", metavar="N", default=9, convert=whole(1),
        help="How often each is timed, after two rounds that are not counted (default: 9)",
    )  # fmt: skip
    parser.add("output", "--json", metavar="FILE", default="", help="Write the figures to a file as well")
    return parser


def _sizes(flag: str, given: str) -> list[int]:
    sizes = []
    for text in given.split(","):
        found = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
        if found is None or int(found[1]) == 0:
            raise SettingError(f"{flag} has {text!r}; it takes sizes such as 100K,1M,1G.")
        sizes.append(int(found[1]) * _UNITS[found[2]])
    return sizes


def command(given: argparse.Namespace) -> int:
    """Start the ranks, which run this module."""
    what, more = given.rest[:1], given.rest[1:]
    if what != ["allreduce"] or more:
        wrong = " ".join(more if what == ["allreduce"] else what) or "exchange was named"
        near = suggestions.nearest(wrong, ["allreduce"])
        raise SettingError(f"matex-tf bench has allreduce, and no {wrong}{near}: matex-tf bench allreduce.")
    atomic_file.require(given.json, "--json")
    ranks = given.ranks or max(2, resources.default_ranks(given.hosts))
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, given.hosts, 0)
    line += [sys.executable, "-m", "matex_tf.features.bench.command"]
    line += [f"--repeat={given.repeat}", f"--json={given.json}"]
    line += [f"--sizes={','.join(map(str, given.sizes))}"] if given.sizes else []
    return mpirun_process.run(line, local=not given.hosts and not resources.in_batch_system())


def main(words: Sequence[str]) -> int:
    """One rank of the benchmark."""
    given = parser().parse(words)
    assert given is not None  # no rank is asked for help
    sizes, path = given.sizes, given.json
    ranks = world.init()
    if ranks.is_single:
        raise MatexError("the benchmark needs two ranks or more: matex-tf bench allreduce -n 4.")
    if not sizes:
        room = min(ranks.allgather(_free_memory() // ranks.local_size, "compare free memory")) // 2
        sizes = [size for size in SIZES if 6 * size <= room]
    figures = [measure(ranks, size, given.repeat) for size in sizes]
    if ranks.rank == 0:
        _show(ranks, figures)
        if path:
            nodes = [len(node) for node in ranks.nodes]
            found = {"ranks_of_nodes": nodes, "figures": [asdict(figure) for figure in figures]}
            atomic_file.put_json(path, found, indent=1)
    return 0


def measure(ranks: World, size: int, repeat: int) -> Figure:
    """Time the sum over ranks of float32 arrays of one size. Collective; every rank gets the same figure.

    Args:
        ranks: all of which take part.
        size: bytes of each rank's array.
        repeat: rounds that count, after those that do not.
    """
    count = max(1, size // 4)
    mine, total = np.ones(count, np.float32), np.empty(count, np.float32)
    plan = BucketPlan("benchmark", ["array"], [mine.shape], [mine.dtype], size)
    comm = ranks.split_all()
    limit = _wire_limit(ranks, mine, total) if len(ranks.nodes) > 1 else _memory_limit(ranks.size, mine, total)
    rounds: list[tuple[float, ...]] = []
    for _ in range(_UNCOUNTED + repeat):
        ours = _timed(ranks, lambda: process_group.sum_planned(ranks, plan, [mine]))
        mpi = _timed(ranks, lambda: comm.allreduce(mine, total))
        ranks.barrier("begin")
        rounds.append((ours[0], mpi[0], limit(), ours[1], mpi[1]))
    comm.free()
    gathered = np.array(ranks.allgather(rounds[_UNCOUNTED:], "gather figures"))
    everyone = gathered[:, :, :3].max(axis=0)  # the slowest rank of a round
    ours, mpi, least = (statistics.median(column) for column in everyone.T)
    cpu, mpi_cpu = (statistics.median(column) for column in gathered[:, :, 3:].mean(axis=0).T)
    return Figure(
        4 * count,
        ours,
        mpi,
        least,
        statistics.median(everyone[:, 1] / everyone[:, 0]),
        statistics.median(everyone[:, 0] / everyone[:, 2]),
        4 * count / ours / 1e9,
        cpu,
        mpi_cpu,
    )


def _timed(ranks: World, work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and CPU seconds of this rank."""
    ranks.barrier("begin")
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def _memory_limit(size: int, source: np.ndarray, target: np.ndarray) -> Callable[[], float]:
    """Copy as much as moves: n bytes in, and a sum that reads n and writes n/p. A copy of n reads and writes n."""
    factor = 1 + (1 + 1 / size) / 2

    def copy() -> float:
        begin = time.perf_counter()
        np.copyto(target, source)
        np.copyto(target[: int(source.size * (factor - 1))], source[: int(source.size * (factor - 1))])
        return time.perf_counter() - begin

    return copy


def _wire_limit(ranks: World, source: np.ndarray, target: np.ndarray) -> Callable[[], float]:
    """Send n bytes to the next node, all nodes at once, all ranks of a node a part of them."""
    nodes, lanes = len(ranks.nodes), min(map(len, ranks.nodes))
    comm = ranks.split(ranks.local_rank if ranks.local_rank < lanes else None, ranks.node)
    part = slice(0, -(-source.size // lanes))

    def send() -> float:
        if comm is None:
            return 0.0
        here = comm.rank
        begin = time.perf_counter()
        comm.sendrecv(source[part], (here + 1) % nodes, target[part], (here - 1) % nodes)
        return (time.perf_counter() - begin) * 2 * (nodes - 1) / nodes

    return send


def _free_memory() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def _show(ranks: World, figures: Sequence[Figure]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    nodes = "+".join(str(len(node)) for node in ranks.nodes)
    title = f"allreduce, float32, {ranks.size} ranks ({nodes} on {len(ranks.nodes)} nodes), milliseconds"
    table = Table(box=box.SIMPLE_HEAD)
    for column in (
        "bytes",
        "matex_tf",
        "MPI_Allreduce",
        "limit",
        "MPI / ours",
        "ours / limit",
        "GB/s",
        "CPU",
        "MPI CPU",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for f in figures:
        times = [f"{1e3 * seconds:.3f}" for seconds in (f.seconds, f.mpi_seconds, f.limit_seconds)]
        ratios = [f"{f.mpi_over_ours:.2f}", f"{f.ours_over_limit:.2f}", f"{f.gigabytes_per_second:.2f}"]
        ratios += [f"{1e3 * f.cpu_seconds:.3f}", f"{1e3 * f.mpi_cpu_seconds:.3f}"]
        table.add_row(f"{f.bytes:,}", *times, *ratios)
    # The same in a file as on a narrow terminal; mpirun gives a rank a terminal whatever its own output is.
    console = Console(highlight=False, width=120, force_terminal=False)
    console.print(title)
    console.print(table)


if __name__ == "__main__":
    Settings.read()
    sys.exit(main(sys.argv[1:]))
