"""MultiWorkerMirroredStrategy's autoshard, for `benchmarks/input.py`: what the same pipeline costs each of its workers.

It runs with TensorFlow 2.15 and Keras 2, in the environment that `scripts/bench peers` makes: newer ones cannot train
with this strategy. A worker skips the elements of others in front of the first map, so batches hold other rows.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import launching, peers

_OUT, _PORTS = "INPUT_OUT", "INPUT_PORTS"


def measure(folder: Path, ranks: int, epochs: int, batch: int) -> dict[str, Any]:
    """Figures like those of `input.measure`.

    Args:
        ranks: how many workers.
        epochs: after one that does not count.
        batch: images of a batch of all workers.
    """
    ports = ",".join(map(str, launching.free_ports(ranks)))
    words = ["-m", "benchmarks.input_peer", str(folder), str(epochs), str(batch)]
    with tempfile.TemporaryDirectory() as out:
        environ = {_OUT: out, _PORTS: ports, "TF_CPP_MIN_LOG_LEVEL": "3"}
        launching.start(ranks, words, environ=environ, python=str(peers.TENSORFLOW.python))
        found = [json.loads(path.read_text()) for path in sorted(Path(out).glob("*.json"))]
    if len(found) != ranks:
        sys.exit(f"{len(found)} of {ranks} workers have told what they took")
    seconds = [max(epoch) for epoch in zip(*(one["seconds"] for one in found), strict=True)]
    return {
        "seconds": statistics.median(seconds),
        "spread": [min(seconds), max(seconds)],
        "cpu": statistics.median(max(epoch) for epoch in zip(*(one["cpu"] for one in found), strict=True)),
        "cpu_of_all": statistics.median(sum(epoch) for epoch in zip(*(one["cpu"] for one in found), strict=True)),
        "fetched": max(one["fetched"] for one in found),
        "used": [one["fetched"] for one in found],
        "digest": ranks,
    }


def main() -> None:
    """One worker."""
    folder, epochs, batch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    workers = [f"127.0.0.1:{port}" for port in os.environ[_PORTS].split(",")]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    from benchmarks import input_data

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = input_data.of_files("records", "", folder, batch).with_options(options)
    batches = strategy.experimental_distribute_dataset(data)
    taken: dict[str, Any] = {"seconds": [], "cpu": [], "fetched": 0}
    for epoch in range(epochs + 1):
        begun, cpu, fetched = time.perf_counter(), time.process_time(), 0
        for x, _ in batches:
            fetched += sum(
                part.shape.num_elements() * part.dtype.size for part in strategy.experimental_local_results(x)
            )
        if epoch:
            taken["seconds"].append(time.perf_counter() - begun)
            taken["cpu"].append(time.process_time() - cpu)
        taken["fetched"] = fetched
    (Path(os.environ[_OUT]) / f"{rank}.json").write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
