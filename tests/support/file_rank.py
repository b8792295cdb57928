"""A rank of a job without MPI, connected by the transport of docs/contributing.md: its module is on the command line.

Prints what came of the collectives.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.transport import registry
from matex_tf.errors import RanksDisagree
from matex_tf.exchange import process_group
from matex_tf.exchange.collectives import Collectives


def main(module: str) -> dict[str, Any]:
    """Run on three ranks; the last one counts as being on another host."""
    registry.TRANSPORTS["files"] = registry.Transport(["FILES_RANK"], f"{module}:connect")
    ranks = world.init()
    found = {
        "sum": ranks.allreduce(np.arange(3.0) + ranks.rank, "add").tolist(),
        "rows": ranks.allgather_rows(np.full((ranks.rank, 2), ranks.rank), "join").tolist(),
        "object": ranks.broadcast({"from": ranks.rank}, "share", root=1),
        "array": ranks.broadcast_array(np.full(3, ranks.rank)).tolist(),
        "own": ranks.scatter(["a", "b", "c"] if ranks.rank == 0 else None, "scatter"),
    }
    others = Collectives(ranks)
    found["swapped"] = others.alltoall(np.arange(3) + 10 * ranks.rank, [1, 1, 1])[0].tolist()
    others.free()
    hosts = ranks.subset(list(range(ranks.size)), host="aab"[ranks.rank])
    assert hosts is not None
    for name, count in (("few", 3), ("many", 300_000)):  # which go by other algorithms
        mine = np.arange(count, dtype=np.float32) * (ranks.rank + 1)
        (total,) = process_group.sum_arrays(hosts, [mine], "add", [name])
        found[name] = bool(np.array_equal(total, np.arange(count) * np.float32(6)))
    hosts.free()
    try:
        ranks.barrier("stop" if ranks.rank == 0 else "go on")
    except RanksDisagree as error:
        found["error"] = str(error)
    return {**found, "mpi4py": "mpi4py" in sys.modules}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
