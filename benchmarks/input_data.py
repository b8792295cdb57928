"""The data of `benchmarks/input.py`: files of images and of numbers, and what a script makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SHAPE = (64, 64, 3)
JPEG = (375, 500)  # of ImageNet, on average; about 110 KB
IMAGE = (224, 224)
DISTINCT = 256  # images; where there are more rows, they come again
BATCH = 128
COLUMNS, LINES, BATCH_OF_LINES = 40, 32, 1024  # of the CSV: columns, and lines for each image


def write(folder: Path, rows: int) -> None:
    """Images and labels, as files."""
    random = np.random.RandomState(0)
    np.save(folder / "x.npy", random.randint(0, 256, (rows, *SHAPE)).astype(np.uint8))
    np.save(folder / "y.npy", random.randint(0, 10, rows))
    write_files(folder, rows // 2, random)


def write_files(folder: Path, rows: int, random: Any) -> None:
    """JPEG images as TFRecords and in directories, and a CSV."""
    import tensorflow as tf

    for label in range(4):
        (folder / "images" / str(label)).mkdir(parents=True)
    jpegs: list[bytes] = []
    for _ in range(min(rows, DISTINCT)):
        coarse = tf.constant(random.randint(0, 256, (94, 125, 3)).astype(np.float32))
        jpegs.append(tf.io.encode_jpeg(tf.cast(tf.image.resize(coarse, JPEG), tf.uint8)).numpy())
    with tf.io.TFRecordWriter(str(folder / "images.tfrecord")) as file:
        for row in range(rows):
            jpeg = jpegs[row % DISTINCT]
            (folder / "images" / str(row % 4) / f"{row}.jpg").write_bytes(jpeg)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[row % 4])),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    numbers = random.normal(size=(LINES * rows, COLUMNS))
    names = ",".join([*(f"c{column}" for column in range(COLUMNS)), "label"])
    lines = [",".join([*(f"{number:.6f}" for number in line), str(place % 4)]) for place, line in enumerate(numbers)]
    (folder / "table.csv").write_text("\n".join([names, *lines]) + "\n")


def of_files(kind: str, way: str, folder: Path, batch: int) -> Any:
    """The data sets that read what `write_files` has written. Args: batch: images of a batch."""
    import keras
    import tensorflow as tf

    if kind == "directory":
        images = str(folder / "images")
        return keras.utils.image_dataset_from_directory(
            images, image_size=IMAGE, batch_size=batch, seed=1, verbose=False
        )
    if kind == "csv":
        lines = tf.data.experimental.make_csv_dataset
        return lines(str(folder / "table.csv"), BATCH_OF_LINES, label_name="label", num_epochs=1, shuffle_seed=1)
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, spec)
        return parsed["image"], parsed["label"]

    def decode(number: Any, example: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(example[0], channels=3), (256, 256))
        seed = tf.stack([number, 7])
        image = tf.image.stateless_random_flip_left_right(image, seed)
        image = tf.image.stateless_random_crop(
            tf.image.stateless_random_brightness(image, 0.2, seed), (*IMAGE, 3), seed
        )
        return tf.image.per_image_standardization(image), example[1]

    data = tf.data.TFRecordDataset(str(folder / "images.tfrecord"))
    if way == "shard":
        from matex_tf.core import world

        ranks = world.current()
        data, batch = data.shard(ranks.size, ranks.rank), batch // ranks.size
    examples = data.shuffle(256, seed=1).map(parse, num_parallel_calls=tf.data.AUTOTUNE).enumerate()
    return examples.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)


def _jpegs(folder: Path) -> list[Path]:
    """The JPEGs of `write_files`, in the order of their numbers."""
    return sorted((folder / "images").glob("*/*.jpg"), key=lambda path: int(path.stem))


def augmented(folder: Path, batch: int) -> Any:
    """A PyDataset that reads the JPEGs of `write_files`, and crops, turns round, lightens and standardizes them."""
    import keras

    paths = _jpegs(folder)

    class Augmented(keras.utils.PyDataset):
        def __len__(self) -> int:
            return -(-len(paths) // batch)

        def __getitem__(self, number: int) -> Any:
            here, random = paths[number * batch : (number + 1) * batch], np.random.RandomState(number)
            images = np.stack([self.image(path, random) for path in here])
            return images, np.array([int(path.parent.name) for path in here])

        @staticmethod
        def image(path: Path, random: np.random.RandomState) -> np.ndarray:
            image = np.asarray(keras.utils.load_img(path, target_size=(256, 256)), np.float32)
            (y, x), flip = random.randint(0, 33, 2), random.rand() < 0.5
            image = image[y : y + IMAGE[0], x : x + IMAGE[1]][:, :: -1 if flip else 1] + 50 * random.rand()
            return (image - image.mean()) / image.std()

    return Augmented()


def generator(folder: Path, batch: int) -> Any:
    """A Python generator that decodes the JPEGs of `write_files`, with a map behind."""
    import keras
    import tensorflow as tf

    paths = _jpegs(folder)

    def images() -> Any:
        for path in paths:
            yield np.asarray(keras.utils.load_img(path, target_size=(256, 256)), np.uint8), int(path.parent.name)

    def enlarge(image: Any, label: Any) -> Any:
        return tf.image.per_image_standardization(tf.image.resize(image, (320, 320))[:224, :224]), label

    signature = tf.TensorSpec((256, 256, 3), tf.uint8), tf.TensorSpec((), tf.int32)
    data = tf.data.Dataset.from_generator(images, output_signature=signature)
    return data.map(enlarge, num_parallel_calls=tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)


def data_of(kind: str, folder: Path, batch: int) -> dict[str, Any]:
    """The arguments of `fit`, as a script would give them. Args: batch: images of a batch of JPEGs."""
    import keras
    import tensorflow as tf

    kind, _, way = kind.partition("-")
    if kind in ("records", "loop", "directory", "csv"):
        return {"x": of_files(kind, way, folder, batch)}
    if kind == "augmented":
        return {"x": augmented(folder, batch)}
    if kind == "generator":
        return {"x": generator(folder, batch)}
    if kind == "ready":
        labels = tf.zeros(batch, tf.int64)
        ready = tf.data.Dataset.from_tensors((tf.zeros((batch, *IMAGE, 3)), labels))
        return {"x": ready.repeat(-(-len(_jpegs(folder)) // batch)).prefetch(tf.data.AUTOTUNE)}
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
