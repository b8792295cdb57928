"""What input costs each rank: bytes that its pipeline makes, and the time of an epoch that does nothing else.

Each kind of data is given to a plain `fit` of a model whose step does nothing, on 1, 2 and 4 ranks. Images of
64 × 64 × 3 bytes; the tf.data pipeline enlarges and standardizes each, the PyDataset scales whole batches. `records`
(TFRecord, parse, decode JPEG, augment, batch), `loop` (the same in a loop of the script's own), `directory`
(`image_dataset_from_directory`), `csv` (`make_csv_dataset`) and `augmented` (a PyDataset) are files of a quarter as
many rows, larger images among them. With `-whole`, `-source` and `-shard` each rank runs the whole pipeline, has it
dealt out by `--data source`, or by `shard` in the script. A first epoch, which is not measured, shows whether the
batches are those of one rank, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import input_loop, jobs, tables

KINDS = (
    "arrays", "shard", "pydataset", "exact", "exact-whole", "exact-source", "records", "records-whole",
    "records-source", "records-shard", "loop", "loop-whole", "directory", "directory-whole", "csv", "augmented",
    "augmented-whole",
)  # fmt: skip
TITLES = {
    "arrays": "arrays",
    "shard": "DataSet shard",
    "pydataset": "PyDataset",
    "exact": "tf.data over arrays",
    "records": "TFRecord, JPEG, augment",
    "loop": "TFRecord, JPEG, augment, own loop",
    "directory": "image_dataset_from_directory",
    "csv": "make_csv_dataset",
    "augmented": "PyDataset that augments",
}
WAYS = {"whole": ", --data whole", "source": ", --data source", "shard": ", shard() in the script"}
SHAPE = (64, 64, 3)
JPEG = (384, 384, 3)
BATCH = 128
SMALL = 64  # rows of a batch of files
COLUMNS = 40


def write(folder: Path, rows: int) -> None:
    """Images and labels, as files."""
    random = np.random.RandomState(0)
    np.save(folder / "x.npy", random.randint(0, 256, (rows, *SHAPE)).astype(np.uint8))
    np.save(folder / "y.npy", random.randint(0, 10, rows))
    write_files(folder, rows // 4, random)


def write_files(folder: Path, rows: int, random: Any) -> None:
    """JPEG images as TFRecords and in directories, and a CSV."""
    import tensorflow as tf

    for label in range(4):
        (folder / "images" / str(label)).mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / "images.tfrecord")) as file:
        for row in range(rows):
            coarse = tf.constant(random.randint(0, 256, (96, 96, 3)).astype(np.float32))
            jpeg = tf.io.encode_jpeg(tf.cast(tf.image.resize(coarse, JPEG[:2]), tf.uint8)).numpy()
            (folder / "images" / str(row % 4) / f"{row}.jpg").write_bytes(jpeg)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[row % 4])),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    numbers = random.normal(size=(16 * rows, COLUMNS))
    names = ",".join([*(f"c{column}" for column in range(COLUMNS)), "label"])
    lines = [",".join([*(f"{number:.6f}" for number in line), str(place % 4)]) for place, line in enumerate(numbers)]
    (folder / "table.csv").write_text("\n".join([names, *lines]) + "\n")


def of_files(kind: str, way: str, folder: Path) -> Any:
    """The data sets that read what `write_files` has written."""
    import keras
    import tensorflow as tf

    if kind == "directory":
        size = JPEG[:2]
        return keras.utils.image_dataset_from_directory(
            str(folder / "images"), image_size=(size[0] // 3, size[1] // 3), batch_size=SMALL, seed=1, verbose=False
        )
    if kind == "csv":
        path = str(folder / "table.csv")
        return tf.data.experimental.make_csv_dataset(path, 4 * SMALL, label_name="label", num_epochs=1, shuffle_seed=1)
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, spec)
        return parsed["image"], parsed["label"]

    def decode(number: Any, example: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(example[0], channels=3), (128, 128))
        seed = tf.stack([number, 7])
        image = tf.image.stateless_random_flip_left_right(image, seed)
        image = tf.image.stateless_random_crop(
            tf.image.stateless_random_brightness(image, 0.2, seed), (112, 112, 3), seed
        )
        return tf.image.per_image_standardization(image), example[1]

    data, batch = tf.data.TFRecordDataset(str(folder / "images.tfrecord")), SMALL
    if way == "shard":
        from matex_tf.core import world

        ranks = world.current()
        data, batch = data.shard(ranks.size, ranks.rank), SMALL // ranks.size
    examples = data.shuffle(256, seed=1).map(parse, num_parallel_calls=tf.data.AUTOTUNE).enumerate()
    return examples.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)


def data_of(kind: str, folder: Path) -> dict[str, Any]:
    """The arguments of `fit`, as a script would give them."""
    import keras
    import tensorflow as tf

    kind, _, way = kind.partition("-")
    if kind in ("records", "loop", "directory", "csv"):
        return {"x": of_files(kind, way, folder)}
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
    if kind == "augmented":

        class Augmented(keras.utils.PyDataset):
            def __len__(self) -> int:
                return len(x) // 4 // SMALL

            def __getitem__(self, number: int) -> Any:
                here, random = slice(number * SMALL, (number + 1) * SMALL), np.random.RandomState(number)
                images = x[here].astype("float32") / 255
                images = np.where(random.rand(len(images), 1, 1, 1) < 0.5, images[:, :, ::-1], images)
                noise = random.normal(0, 0.1, images.shape).astype("float32")
                return np.clip(np.sqrt(images) + noise, 0, 1), y[here]

        return {"x": Augmented()}

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
            for leaf in tf.nest.flatten(data[0]):
                self.seen.assign_add(tf.size(leaf, out_type=tf.int64) * leaf.dtype.size)
            return {"loss": tf.constant(0.0)}

    model = Idle()
    model.compile(loss="mse", jit_compile=False)
    return model


class Fetched:
    """Counts the bytes of inputs that this rank's pipeline has made, for itself and for others."""

    def __init__(self) -> None:
        import tensorflow as tf

        from matex_tf.patches.data import batches
        from matex_tf.patches.data.array_sharding import LocalBatch

        self.bytes = 0
        original = batches.fetch

        def fetch(iterator: Any, count: int) -> list[Any]:
            batches = original(iterator, count)
            for batch in batches:
                inputs = (batch.data if isinstance(batch, LocalBatch) else batch)[0]
                self.bytes += sum(int(np.prod(leaf.shape)) * leaf.dtype.size for leaf in tf.nest.flatten(inputs))
            return batches

        batches.fetch = fetch


def digest_of(kind: str, folder: Path) -> int:
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
    model.fit(**{**data_of(kind, folder), "shuffle": False}, epochs=1, verbose=0)
    everyone = world.current().allgather(found, "compare batches")
    batches = [
        [total for total, _ in parts[:1]] + sum((rows for _, rows in parts), [])
        for parts in zip(*everyone, strict=True)
    ]
    return zlib.crc32(repr(batches).encode())


def rank_main(kind: str, folder: Path, epochs: int) -> None:
    """One rank, as a script under matex_tf: trains, and lets rank 0 print what all took."""
    import keras

    from matex_tf.core import world

    ranks = world.current()
    keras.utils.set_random_seed(1)
    if kind.startswith("loop"):
        _tell(*input_loop.epochs(data_of(kind, folder)["x"], epochs + 1))
        return
    digest = digest_of(kind, folder)
    keras.utils.set_random_seed(1)
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
            "fetched": int(everyone[:, 0, 2].max()),
            "used": [int(bytes_) for bytes_ in everyone[:, 0, 3]],
            "digest": digest,
        }
        jobs.tell(result)


def _options(kind: str) -> list[str]:
    way = kind.partition("-")[2]
    return ["--data", way] if way in ("whole", "source") else []


def title_of(kind: str) -> str:
    """A kind of data in words."""
    name, _, way = kind.partition("-")
    return TITLES[name] + WAYS.get(way, "")


def measure(kind: str, folder: Path, ranks: int, epochs: int) -> dict[str, Any]:
    """Train on some ranks; returns what rank 0 printed."""
    words = ["-m", "matex_tf", "--notes", "off", "--seed", "1", *_options(kind)]
    words += [__file__, "--as-rank", kind, str(folder), "--epochs", str(epochs)]
    return dict(jobs.on_ranks(ranks, words, environ={"TF_CPP_MIN_LOG_LEVEL": "3"}))


def show(figures: Sequence[dict[str, Any]], title: str, note: str) -> None:
    """Print the table."""
    columns = ["data", "ranks", "MB fetched", "of one rank's", "CPU s", "of one rank's", "seconds", "spread", "batches"]
    less, spreads = ["MB fetched", "CPU s", "seconds"], {"seconds": "spread"}
    rows = []
    one: dict[str, Any] = {}
    for figure in figures:
        one = figure if figure["ranks"] == 1 else one
        parts = [f"{figure[name] / one[name]:.3f}" if one else "" for name in ("fetched", "cpu")]
        low, high = figure["spread"]
        rows.append(
            (
                title_of(figure["kind"]), str(figure["ranks"]), f"{figure['fetched'] / 1e6:.1f}", parts[0],
                f"{figure['cpu']:.2f}", parts[1], f"{figure['seconds']:.2f}", f"{low:.2f} to {high:.2f}",
                "" if not one else "the same" if figure["digest"] == one["digest"] else "other rows",
            )
        )  # fmt: skip
    tables.show(title, columns, rows, labels=2, less=less, spreads=spreads, note=note)


def main() -> None:
    parser = tables.parser("input", __doc__)
    parser.add_argument("--rows", type=int, default=4096, help="images (default 4096)")
    parser.add_argument("--epochs", type=int, default=7, help="of which the median counts (default 7), after one more")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)} (default all)")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks (default 1,2,4)")
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    options = tables.parse(parser)
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
                if ranks > 1 and "source" not in kind and sum(figure["used"]) != sum(alone["used"]):
                    sys.exit(f"{kind}: {ranks} ranks use {figure['used']} bytes, one rank uses {alone['used']}")
    note = f"median of {options.epochs}"
    show(figures, f"an epoch of {options.rows} images, batches of {BATCH}: the rank that took most", note)
    tables.keep(figures)


if __name__ == "__main__":
    main()
