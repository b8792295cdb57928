"""What --shard saves and costs: bytes of a rank, and the time of a step beside ranks that hold all whole.

One job for each number of ranks trains a model of each way, in turn, in blocks of steps; the least block of each, as
whatever else the machine does comes on top. Resident bytes are what a rank's own memory (RssAnon) has grown by when a
model was built and trained; the most is what it has grown by at any time of a block of steps after that. Sent is what a
rank sends of rows, sums and parts in a step, if every other one is on another node.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import launching, tables

WAYS = ("none", "state", "gradients", "weights")
MODELS = {
    "mlp": "MLP, Adam",
    "transformer": "transformer, 4 blocks, AdamW",
    "table": "table of 500,000 × 64, Adam",
}
_CODES, _IDS = 500_000, 8  # rows of the table, and how many of them a row of the batch names
_WIDTH, _LENGTH, _STEPS = 1024, 32, 10  # of layers, of sequences; steps of a block
_BATCHES = {"mlp": 64, "transformer": 16, "table": 256}  # rows


def _model(name: str) -> Any:
    import keras
    from keras import layers

    if name == "mlp":
        wide = [layers.Dense(_WIDTH, activation="relu") for _ in range(8)]
        model = keras.Sequential([keras.Input((_WIDTH,)), *wide, layers.Dense(10, activation="softmax")])
        model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", jit_compile=False)
        return model
    if name == "table":
        pooled = [layers.Embedding(_CODES, 64), layers.GlobalAveragePooling1D()]
        body = [*pooled, layers.Dense(64, activation="relu"), layers.Dense(10, activation="softmax")]
        model = keras.Sequential([keras.Input((_IDS,), dtype="int32"), *body])
        model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", jit_compile=False)
        return model
    inputs = hidden = keras.Input((_LENGTH, _WIDTH // 2))
    for _ in range(4):
        hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(8, _WIDTH // 16)(hidden, hidden))
        wide = layers.Dense(_WIDTH // 2)(layers.Dense(2 * _WIDTH, activation="gelu")(hidden))
        hidden = layers.LayerNormalization()(hidden + wide)
    outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.AdamW(1e-4), "sparse_categorical_crossentropy", jit_compile=False)
    return model


@contextlib.contextmanager
def _watching(found: list[int]) -> Iterator[None]:
    """Note what is resident, every few milliseconds."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            found.append(_now())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def _counting(sent: list[float]) -> Iterator[None]:
    """Add up the bytes that this rank would send if each rank were a node, by the formulas of the collectives."""
    from matex_tf.core import world
    from matex_tf.exchange.process_group import ProcessGroup

    others = world.current().size - 1

    def summed(plan: Any, number: int, *_: Any) -> float:
        return 2 * others / (1 + others) * plan.buckets[number].nbytes

    def gives_some(array: Any, splits: Any, _: str) -> float:
        return array.nbytes * (1 - splits[world.current().rank] / max(1, len(array)))

    counts: list[tuple[Any, str, Any]] = [
        (world.World, "allgather_rows", lambda array, _: others * array.nbytes),
        (world.World, "alltoall_rows", gives_some),
        (ProcessGroup, "_sum", summed),
        (ProcessGroup, "sum_apart", lambda _, *of: summed(*of)),
        (ProcessGroup, "join", lambda _, parts, __: others * sum(part.nbytes for part in parts)),
    ]
    before = [(kind, name, getattr(kind, name)) for kind, name, _ in counts]

    def noting(call: Any, count: Any) -> Any:
        def noted(self: Any, *given: Any) -> Any:
            sent.append(count(*given))
            return call(self, *given)

        return noted

    for (kind, name, count), (*_, call) in zip(counts, before, strict=True):
        setattr(kind, name, noting(call, count))
    try:
        yield
    finally:
        for kind, name, call in before:
            setattr(kind, name, call)


def _resident() -> int:
    """Bytes of this process that are its own, and used."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _now()


def _now() -> int:
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def measure(name: str, ways: list[str], rounds: int) -> None:
    """On a rank: of each way bytes of weights and slots, resident bytes, ms of a step; the bytes of a model."""
    import keras
    import numpy as np

    from matex_tf import settings
    from matex_tf.core import world
    from matex_tf.patches.shards import variable

    random = np.random.RandomState(0)
    models: dict[str, Any] = {}
    found: dict[str, dict[str, int]] = {}
    batch = _BATCHES[name]

    def fit(way: str, x: Any, y: Any) -> float:
        settings.use(dataclasses.replace(settings.current(), shard=way))
        begun = time.perf_counter()
        models[way].fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        return 1000 * (time.perf_counter() - begun) / (len(x) / batch)

    first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    first.compile("adam", "mse")
    first.fit(np.zeros((8, 4)), np.zeros(8), verbose=0)  # what is made once
    shape = batch * _STEPS, *{"mlp": (_WIDTH,), "transformer": (_LENGTH, _WIDTH // 2), "table": (_IDS,)}[name]
    x = random.rand(*shape).astype("float32")
    if name == "table":  # a few ids are most of them
        x = np.minimum(random.zipf(1.2, shape), _CODES - 1).astype("int32")
    y = random.randint(0, 10, len(x))
    for way in ways:
        before = _resident()
        settings.use(dataclasses.replace(settings.current(), shard=way))
        keras.utils.set_random_seed(1)
        models[way] = _model(name)
        fit(way, x[: 2 * batch], y[: 2 * batch])
        slots = sum(map(variable.bytes_held, models[way].optimizer.variables))
        weights = sum(map(variable.bytes_held, models[way].variables))
        found[way] = {"weights": weights, "slots": slots, "resident": _resident() - before}
        seen: list[int] = []
        sent: list[float] = []
        with _watching(seen), _counting(sent):
            fit(way, x, y)
        found[way]["most"] = max(seen, default=before) - before
        found[way]["sent"] = int(sum(sent) / _STEPS)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + rounds):
        for way in ways:
            times[way].append(fit(way, x, y))
    whole = sum(np.asarray(one).nbytes for one in models[ways[0]].variables)
    mine = {way: {**found[way], "milliseconds": min(times[way][1:])} for way in ways}
    every = world.current().allgather(mine, "tell what was measured")
    kinds = ("weights", "slots", "resident", "most", "sent", "milliseconds")
    most = {way: {kind: max(one[way][kind] for one in every) for kind in kinds} for way in ways}
    launching.tell({"whole": whole, **most})


def limited(megabytes: int, ranks: int, words: list[str]) -> None:
    """Train `benchmarks.too_large` in processes that may have no more memory of their own, whole and in parts."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20,) * 2)

    script, run = ["-m", "benchmarks.too_large", *words], [str(Path(sys.executable).with_name("matex-tf")), "run"]
    ways = {"python": [sys.executable, *script]}
    ways |= {f"{ranks} ranks, --shard {way}": [*run, "-n", str(ranks), "--shard", way, *script] for way in WAYS}
    rows = []
    for name, line in ways.items():
        done = subprocess.run(line, preexec_fn=limit, cwd=launching.ROOT, capture_output=True, text=True)
        said = [text for text in done.stdout.splitlines() if " parameters, loss " in text]
        rows.append([name, said[0] if said and not done.returncode else f"ends with code {done.returncode}"])
    tables.show(f"each process has {megabytes} MB of its own at most", ["run by", "what it prints"], rows, labels=2)
    tables.keep([{"run": name, "found": found} for name, found in rows])


def main() -> int:
    parser = tables.parser("shards", __doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="with commas between: " + ", ".join(MODELS))
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas between (default 2,4)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each way that count (default 7)")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas between; steps are compared with the first")
    parser.add_argument("--limit", type=int, help="MB of its own that a process may have: show what trains then")
    parser.add_argument("--layers", default="6000,7", help="of that model: width and number (default 6000,7)")
    options = tables.parse(parser)
    if options.limit:
        limited(options.limit, int(options.ranks.split(",")[-1]), options.layers.split(","))
        return 0
    ways = options.ways.split(",")
    if options.rank:
        measure(options.rank, ways, options.rounds)
        return 0
    rows, figures = [], []
    for name in options.models.split(","):
        words = ["-m", "matex_tf", "-m", "benchmarks.shards", "--rank", name, "--rounds", str(options.rounds)]
        words += ["--ways", options.ways]
        for count in options.ranks.split(","):
            told = launching.on_ranks(int(count), words)
            figures.append({"model": name, "ranks": int(count), **told})
            for way in ways:
                one = told[way]
                row = [f"{one[kind] / 2**20:.1f}" for kind in ("weights", "slots", "resident", "most")]
                row += [f"{one['sent'] / 1000:.1f}"]
                row += [f"{one['milliseconds']:.1f}", f"{one['milliseconds'] / told[ways[0]]['milliseconds']:.2f}"]
                rows.append([f"{MODELS[name]}, {told['whole'] / 2**20:.1f} MB", f"{count} ranks", way, *row])
    columns = ["model, weights", "on", "--shard", "weights, MB", "slots", "resident", "the most", "sent, kB"]
    columns += ["step, ms", "ratio"]
    tables.show("megabytes of a rank; kB and milliseconds of a step", columns, rows, labels=3, less=columns[3:])
    tables.keep(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
