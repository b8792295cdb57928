"""What input costs each rank: bytes that its pipeline makes, and the time of an epoch that does nothing else.

Each kind of data is given to a plain `fit` of a model whose step does nothing, on 1, 2 and 4 ranks. Images of
64 × 64 × 3 bytes; the tf.data pipeline enlarges and standardizes each, the PyDataset scales whole batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jobs

KINDS = ("arrays", "shard", "pydataset", "exact", "source")
TITLES = {
    "arrays": "arrays",
    "shard": "DataSet shard",
    "pydataset": "PyDataset",
    "exact": "tf.data, --data exact",
    "source": "tf.data, --data source",
}
SHAPE = (64, 64, 3)
BATCH = 128


def write(folder: Path, rows: int) -> None:
    """Images and labels, as files."""
    random = np.random.RandomState(0)
    np.save(folder / "x.npy", random.randint(0, 256, (rows, *SHAPE)).astype(np.uint8))
    np.save(folder / "y.npy", random.randint(0, 10, rows))


def data_of(kind: str, folder: Path) -> dict[str, Any]:
    """The arguments of `fit`, as a script would give them."""
    import keras
    import tensorflow as tf

    if kind == "shard":
        from matex_tf import DataSet

        shard = DataSet.open(str(folder / "x.npy"), y="y.npy")
        return {"x": shard.data.astype("float32"), "y": shard.labels, "batch_size": BATCH}
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    if kind == "arrays":
        return {"x": x.astype("float32"), "y": y, "batch_size": BATCH}
    if kind == "pydataset":

        class Scaled(keras.utils.PyDataset):
            def __len__(self) -> int:
                return -(-len(x) // BATCH)

            def __getitem__(self, number: int) -> Any:
                here = slice(number * BATCH, (number + 1) * BATCH)
                return x[here].astype("float32") / 255, y[here]

        return {"x": Scaled()}

    def enlarge(image: Any, label: Any) -> Any:
        return tf.image.per_image_standardization(tf.image.resize(image, (96, 96))), label

    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).map(enlarge).batch(BATCH).prefetch(2)}


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
            self.seen.assign_add(tf.size(data[0], out_type=tf.int64) * data[0].dtype.size)
            return {"loss": tf.constant(0.0)}

    model = Idle()
    model.compile(loss="mse", jit_compile=False)
    return model


class Fetched:
    """Counts the bytes of inputs that this rank's pipeline has made, for itself and for others."""

    def __init__(self) -> None:
        from matex_tf.patches.data import batches
        from matex_tf.patches.data.array_sharding import LocalBatch

        self.bytes = 0
        original = batches.fetch

        def fetch(iterator: Any, count: int) -> list[Any]:
            batches = original(iterator, count)
            for batch in batches:
                inputs = (batch.data if isinstance(batch, LocalBatch) else batch)[0]
                self.bytes += int(np.prod(inputs.shape)) * inputs.dtype.size
            return batches

        batches.fetch = fetch


def rank_main(kind: str, folder: Path, epochs: int) -> None:
    """One rank, as a script under matex_tf: trains, and lets rank 0 print what all took."""
    import keras

    from matex_tf.core import world

    ranks = world.current()
    fetched = Fetched() if not ranks.is_single else None
    model, given = idle_model(), data_of(kind, folder)
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
    everyone = np.array(ranks.allgather(taken[1:], "compare epochs"))  # ranks × epochs × 4
    if ranks.rank == 0:
        seconds = everyone[:, :, 0].max(axis=0)
        result = {
            "seconds": statistics.median(seconds),
            "spread": [float(seconds.min()), float(seconds.max())],
            "cpu": statistics.median(everyone[:, :, 1].max(axis=0)),
            "fetched": int(everyone[:, 0, 2].max()),
            "used": [int(bytes_) for bytes_ in everyone[:, 0, 3]],
        }
        jobs.tell(result)


def measure(kind: str, folder: Path, ranks: int, epochs: int) -> dict[str, Any]:
    """Train on some ranks; returns what rank 0 printed."""
    words = ["-m", "matex_tf", "--notes", "off", "--seed", "1", *(["--data", "source"] if kind == "source" else [])]
    words += [__file__, "--as-rank", kind, str(folder), "--epochs", str(epochs)]
    return dict(jobs.on_ranks(ranks, words, environ={"TF_CPP_MIN_LOG_LEVEL": "3"}))


def show(figures: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table."""
    columns = ["data", "ranks", "MB fetched", "of one rank's", "CPU s", "of one rank's", "seconds", "spread"]
    rows = []
    one: dict[str, Any] = {}
    for figure in figures:
        one = figure if figure["ranks"] == 1 else one
        parts = [f"{figure[name] / one[name]:.3f}" if one else "" for name in ("fetched", "cpu")]
        low, high = figure["spread"]
        rows.append(
            (
                TITLES[figure["kind"]], str(figure["ranks"]), f"{figure['fetched'] / 1e6:.1f}", parts[0],
                f"{figure['cpu']:.2f}", parts[1], f"{figure['seconds']:.2f}", f"{low:.2f} to {high:.2f}",
            )
        )  # fmt: skip
    jobs.table(title, columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench input", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=4096, help="images (default 4096)")
    parser.add_argument("--epochs", type=int, default=7, help="of which the median counts (default 7), behind one more")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)} (default all)")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks (default 1,2,4)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        rank_main(options.as_rank[0], Path(options.as_rank[1]), options.epochs)
        return
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.rows)
        for kind in options.kinds.split(","):
            for ranks in map(int, options.ranks.split(",")):
                figure = measure(kind, Path(folder), ranks, options.epochs)
                figures.append({"kind": kind, "ranks": ranks, "rows": options.rows, **figure})
                alone = next((one for one in figures if one["kind"] == kind and one["ranks"] == 1), figure)
                if ranks > 1 and sum(figure["used"]) != sum(alone["used"]):
                    sys.exit(f"{kind}: {ranks} ranks use {figure['used']} bytes, one rank uses {alone['used']}")
    show(figures, f"an epoch of {options.rows} images, batches of {BATCH}: the rank that took most")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
