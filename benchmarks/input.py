"""What input costs each rank: bytes that its pipeline makes, and the time of an epoch that does nothing else.

Each kind of data is given to a plain `fit` of a model whose step does nothing, on 1, 2 and 4 ranks. Images of
64 × 64 × 3 bytes; the tf.data pipeline enlarges and standardizes each, the PyDataset scales whole batches. `records`
(TFRecord, parse, decode JPEG, augment, batch), `loop` (the same in a loop of the script's own), `directory`
(`image_dataset_from_directory`), `augmented` (a PyDataset that decodes JPEGs with Pillow), `generator`
(`from_generator` of Python that decodes them, and a map that enlarges) and `csv` (`make_csv_dataset`) are half as many
rows. Of those the JPEGs are as large as ImageNet's and made 224 × 224, `--batch` of them in a batch, and the CSV has 32
lines for each, in batches of 1,024. With `-whole`, `-source`, `-shard` and `-autoshard` each rank runs the whole
pipeline, has it dealt out by `--data source`, by `shard` in the script, or by MultiWorkerMirroredStrategy. A first
epoch, which is not measured, shows whether the batches are those of one rank, bit for bit.

CPU time is compared with that of one rank while as many jobs of one rank run side by side as there are ranks: so both
share cores and caches with as many others. `ratio` is the time of the rank that took most over that of one rank, `all
ranks` the time of all of them together. Of kinds that are measured in both ways a line compares the work divided with
the whole of it on every rank. `ready` is as many steps on a batch of JPEGs that is there already.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import input_loop, input_peer, launching, peers, tables
from benchmarks.input_data import BATCH, data_of, write

KINDS = (
    "ready", "arrays", "shard", "pydataset", "exact", "exact-whole", "exact-source", "records", "records-whole",
    "records-source", "records-shard", "records-autoshard", "loop", "loop-whole", "directory", "directory-whole",
    "csv", "csv-whole", "augmented", "augmented-whole", "generator", "generator-whole",
)  # fmt: skip
TITLES = {
    "arrays": "arrays",
    "shard": "DataSet shard",
    "pydataset": "PyDataset",
    "exact": "tf.data over arrays",
    "ready": "batches that are ready",
    "records": "TFRecord, JPEG, augment",
    "loop": "TFRecord, JPEG, augment, own loop",
    "directory": "image_dataset_from_directory",
    "csv": "make_csv_dataset",
    "augmented": "PyDataset, JPEG, augment",
    "generator": "from_generator, JPEG, map",
}
WAYS = {"whole": ", --data whole", "source": ", --data source", "shard": ", shard() in the script"}
WAYS["autoshard"] = ", MultiWorkerMirrored's autoshard (TF 2.15)"


def idle_model() -> Any:
    """A model whose step reads its rows, and does nothing with them; it counts their bytes."""
    import keras
    import tensorflow as tf

    class Idle(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.seen = tf.Variable(0, dtype=tf.int64, trainable=False)

        def call(self, x: Any) -> Any:
            return x

        def train_step(self, data: Any) -> dict[str, Any]:
            leaves = tf.nest.flatten(data[0])
            self.seen.assign_add(tf.add_n([tf.size(leaf, out_type=tf.int64) * leaf.dtype.size for leaf in leaves]))
            return {"loss": tf.constant(0.0)}

    model = Idle()
    model.compile(loss="mse", jit_compile=False)
    return model


class Fetched:
    """Counts the bytes of inputs that this rank's pipeline has made, for itself and for others."""

    def __init__(self) -> None:
        import tensorflow as tf

        from matex_tf.patches.data import batches
        from matex_tf.patches.data.local_batch import LocalBatch

        self.bytes, self._of_row = 0, 0
        original = batches.fetch

        def fetch(iterator: Any, count: int) -> list[Any]:
            batches = original(iterator, count)
            for batch in batches:
                inputs = tf.nest.flatten((batch.data if isinstance(batch, LocalBatch) else batch)[0])
                if not self._of_row:  # once: for each of 40 columns it would take as long as the step
                    self._of_row = sum(int(np.prod(leaf.shape[1:])) * leaf.dtype.size for leaf in inputs)
                self.bytes += self._of_row * inputs[0].shape[0]
            return batches

        batches.fetch = fetch


def digest_of(kind: str, folder: Path, batch: int) -> int:
    """A checksum over all batches of an epoch: their rows, in their order, over all ranks."""
    import keras
    import tensorflow as tf

    from matex_tf.core import world
    from matex_tf.patches.common import batch_share

    found: list[tuple[int, list[int]]] = []

    def note(rows: Any, total: Any, *leaves: Any) -> None:
        found.append(
            (int(total), [zlib.crc32(b"".join(leaf[row].tobytes() for leaf in leaves)) for row in range(rows)])
        )

    class Noting(keras.Model):
        def call(self, x: Any) -> Any:
            return x

        def train_step(self, data: Any) -> dict[str, Any]:
            leaves, part = tf.nest.flatten(data), batch_share.of_step()
            rows = tf.shape(leaves[0])[0] if part is None else part.rows
            tf.numpy_function(note, [rows, rows if part is None else part.total, *leaves], [])
            return {"loss": tf.constant(0.0)}

    model = Noting()
    model.compile(loss="mse", jit_compile=False)
    model.fit(**{**data_of(kind, folder, batch), "shuffle": False}, epochs=1, verbose=0)
    everyone = world.current().allgather(found, "compare batches")
    # In a step that is rebuilt for rows Python gets the whole batch, on every rank.
    batches = [
        [total, *(rows if len(rows) == total else sum((rows for _, rows in parts), []))]
        for parts in zip(*everyone, strict=True)
        for total, rows in parts[:1]
    ]
    return zlib.crc32(repr(batches).encode())


def rank_main(kind: str, folder: Path, epochs: int, batch: int) -> None:
    """One rank, as a script under matex_tf: trains, and lets rank 0 print what all took."""
    import keras

    from matex_tf.core import world

    ranks = world.current()
    keras.utils.set_random_seed(1)
    if kind.startswith("loop"):
        _tell(*input_loop.epochs(data_of(kind, folder, batch)["x"], epochs + 1))
        return
    digest = digest_of(kind, folder, batch)
    keras.utils.set_random_seed(1)
    fetched = Fetched() if not ranks.is_single else None
    model, given = idle_model(), data_of(kind, folder, batch)
    taken: list[tuple[float, float, int, int]] = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begin = time.perf_counter(), time.process_time(), fetched.bytes if fetched else 0, int(model.seen)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen = int(model.seen)
            end = time.perf_counter(), time.process_time(), fetched.bytes if fetched else seen, seen
            begin = self.begin if fetched else (*self.begin[:2], self.begin[3], self.begin[3])
            taken.append(tuple(after - before for after, before in zip(end, begin, strict=True)))  # type: ignore[arg-type]

    model.fit(**given, epochs=epochs + 1, callbacks=[Clock()], verbose=0)
    _tell(taken, digest)


def _tell(taken: list[tuple[float, float, int, int]], digest: int) -> None:
    """Let rank 0 say what the epochs took on all ranks, but for the first one."""
    from matex_tf.core import world

    ranks = world.current()
    everyone = np.array(ranks.allgather(taken[1:], "compare epochs"))  # ranks × epochs × 4
    if ranks.rank == 0:
        seconds = everyone[:, :, 0].max(axis=0)
        result = {
            "seconds": statistics.median(seconds),
            "spread": [float(seconds.min()), float(seconds.max())],
            "cpu": statistics.median(everyone[:, :, 1].max(axis=0)),
            "cpu_of_all": statistics.median(everyone[:, :, 1].sum(axis=0)),
            "fetched": int(everyone[:, 0, 2].max()),
            "used": [int(bytes_) for bytes_ in everyone[:, 0, 3]],
            "digest": digest,
        }
        launching.tell(result)


def _options(kind: str) -> list[str]:
    way = kind.partition("-")[2]
    return ["--data", way] if way in ("whole", "source") else []


def title_of(kind: str) -> str:
    """A kind of data in words."""
    name, _, way = kind.partition("-")
    return TITLES[name] + WAYS.get(way, "")


def measure(kind: str, folder: Path, ranks: int, epochs: int, batch: int) -> dict[str, Any]:
    """Train on some ranks; returns what rank 0 printed."""
    if kind.endswith("-autoshard"):
        return input_peer.measure(folder, ranks, epochs, batch)
    words = ["-m", "matex_tf", "--notes", "off", "--seed", "1", *_options(kind)]
    words += [__file__, "--as-rank", kind, str(folder), "--epochs", str(epochs), "--batch", str(batch)]
    return dict(launching.on_ranks(ranks, words, environ={"TF_CPP_MIN_LOG_LEVEL": "3"}))


def show(figures: Sequence[dict[str, Any]], title: str, note: str) -> None:
    """Print the table."""
    columns = ["data", "ranks", "MB fetched", "CPU s", "one rank's", "ratio", "× ranks", "all ranks"]
    columns += ["seconds", "spread", "batches"]
    less, spreads = ["MB fetched", "CPU s", "ratio", "all ranks", "seconds"], {"seconds": "spread"}
    rows = []
    for figure in figures:
        ranks, ratio, (low, high) = figure["ranks"], figure["cpu"] / figure["one_rank"], figure["spread"]
        rows.append(
            (
                title_of(figure["kind"]), str(ranks), f"{figure['fetched'] / 1e6:.1f}", f"{figure['cpu']:.2f}",
                f"{figure['one_rank']:.2f}", f"{ratio:.3f}", f"{ratio * ranks:.2f}",
                f"{figure['cpu_of_all'] / figure['one_rank']:.2f}", f"{figure['seconds']:.2f}",
                f"{low:.2f} to {high:.2f}", "the same" if figure["same"] else "other rows",
            )
        )  # fmt: skip
    tables.show(title, columns, rows, labels=2, less=less, spreads=spreads, note=note)


def say_pairs(figures: Sequence[dict[str, Any]]) -> None:
    """Print what a rank takes if the work is divided, as a part of what it takes if every rank does all of it."""
    of = {(figure["kind"], figure["ranks"]): figure for figure in figures}
    for (kind, ranks), divided in of.items():
        whole = of.get((f"{kind}-whole", ranks))
        if whole is not None and ranks > 1:
            cpu, seconds = (divided[name] / whole[name] for name in ("cpu", "seconds"))
            of_whole = f"divided / whole {cpu:.2f} of the CPU time, {seconds:.2f} of the seconds"
            print(f"{title_of(kind)}, {ranks} ranks: {of_whole}")


def main() -> None:
    parser = tables.parser("input", __doc__)
    parser.add_argument("--rows", type=int, default=4096, help="images (default 4096)")
    parser.add_argument("--batch", type=int, default=64, help="JPEGs of a batch, of all ranks (default 64)")
    parser.add_argument("--epochs", type=int, default=3, help="of which the median counts (default 3), after one more")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)} (default all)")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks (default 1,2,4)")
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.as_rank:
        rank_main(options.as_rank[0], Path(options.as_rank[1]), options.epochs, options.batch)
        return
    figures: list[dict[str, Any]] = []
    measured = functools.partial(measure, epochs=options.epochs, batch=options.batch)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.rows)
        for kind in options.kinds.split(","):
            if kind.endswith("-autoshard") and not peers.TENSORFLOW.ready:
                print(f"{kind} is left out: scripts/bench peers makes its environment")
                continue
            for ranks in map(int, options.ranks.split(",")):
                figure = measured(kind, Path(folder), ranks)
                with ThreadPoolExecutor(ranks) as side_by_side:
                    jobs_of_one = [
                        side_by_side.submit(measured, kind, Path(folder), 1) for _ in range(ranks if ranks > 1 else 0)
                    ]
                    alone = [figure] if ranks == 1 else [job.result() for job in jobs_of_one]
                figures.append({"kind": kind, "ranks": ranks, "rows": options.rows, "batch": options.batch, **figure})
                figures[-1]["one_rank"] = statistics.median([one["cpu"] for one in alone])
                figures[-1]["same"] = figure["digest"] == alone[0]["digest"]
                # A step that is rebuilt for rows counts the bytes of all ranks on each rank; others count their own.
                of_all = {sum(figure["used"]), min(figure["used"])}
                if "source" not in kind and sum(alone[0]["used"]) not in of_all:
                    sys.exit(f"{kind}: {ranks} ranks use {figure['used']} bytes, one rank uses {alone[0]['used']}")
    note = f"median of {options.epochs}"
    show(
        figures,
        f"an epoch of {options.rows} images, batches of {BATCH}, of JPEGs {options.batch}: the rank that took most",
        note,
    )
    say_pairs(figures)
    tables.keep(figures)


if __name__ == "__main__":
    main()
