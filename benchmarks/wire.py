"""One rank that sums over emulated hosts, and reads at the host's link what went over the wire.

python -m benchmarks.wire 1M,10M,100M 5      (under mpirun, on hosts of benchmarks/hosts.py)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import launching
from matex_tf.core import world
from matex_tf.core.world import World
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan

UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


def bytes_of(text: str) -> int:
    """10M is 10,000,000."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def sent() -> int:
    """Bytes that have left this host so far, with all headers."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("eth0:"))


def measure(ranks: World, size: int, repeats: int) -> dict[str, Any]:
    """Sum `size` bytes of float32 by matex_tf and by MPI in turn; the same on every rank.

    Returns:
        Seconds are medians of the slowest rank, bytes the mean of one sum of the host that sent most.
    """
    mine = np.ones(max(1, size // 4), np.float32)
    total = np.empty_like(mine)
    plan = BucketPlan("benchmark", ["array"], [mine.shape], [mine.dtype], size)
    comm = ranks.split_all()
    ways: dict[str, Callable[[], Any]] = {
        "matex_tf": lambda: process_group.sum_planned(ranks, plan, [mine]),
        "MPI_Allreduce": lambda: comm.allreduce(mine, total),
    }
    rounds: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way, work in ways.items():
            ranks.barrier("begin")
            before, begin = sent(), time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
            ranks.barrier("read the links")  # its few hundred bytes belong to what is counted, once
            if number:
                rounds[way].append((seconds, sent() - before))
    comm.free()
    result: dict[str, Any] = {"bytes": 4 * mine.size}
    for way, own in rounds.items():
        everyone = np.array(ranks.allgather(own, "compare sums"))
        slowest = everyone[:, :, 0].max(axis=0)
        result[way] = {
            "seconds": statistics.median(slowest),
            "spread": [float(slowest.min()), float(slowest.max())],
            "sent": float(everyone[:, :, 1].mean(axis=1).max()),
        }
    return result


def main() -> None:
    ranks = world.init()
    figures = [measure(ranks, bytes_of(size), int(sys.argv[2])) for size in sys.argv[1].split(",")]
    if ranks.rank == 0:
        launching.tell(figures)


if __name__ == "__main__":
    main()
