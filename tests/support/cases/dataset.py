"""`DataSet` over real files."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np

from matex_tf.core import world
from matex_tf.errors import DataError
from matex_tf.readers import DataSet, dataset


def _write(ranks, tmp, function):
    if ranks.rank == 0:
        function(Path(tmp))
    ranks.barrier("wait for the files")


def _csv(directory, rows=100):
    values = np.arange(rows * 3).reshape(rows, 3)
    text = "a,b,label\n" + "".join(f"{a},{b},{c % 4}\n" for a, b, c in values)
    (directory / "all.csv").write_text(text)
    for part in range(3):
        piece = values[part * rows // 3 : (part + 1) * rows // 3]
        (directory / f"part-{part}.csv").write_text("a,b,label\n" + "".join(f"{a},{b},{c % 4}\n" for a, b, c in piece))


def _joined(ranks, array):
    return ranks.allgather_rows(np.ascontiguousarray(array), "join")


def named(tmp, name="csv"):
    """DataSet("CSV") in any case, with parts held out by fraction: joined, they are the file."""
    ranks = world.current()
    _write(ranks, tmp, _csv)
    data = DataSet(name, train_file="all.csv", data_directory=tmp, valid_pct=0.2, test_pct=0.1, normalize=2,
                   train_batch_size=7, test_batch_size=4, one_hot=False)  # fmt: skip
    x = np.arange(300).reshape(100, 3)[:, :2] / 2
    parts = [(data.training_data, data.training_labels), (data.testing_data, data.testing_labels),
             (data.validation_data, data.validation_labels)]  # fmt: skip
    assert [sum(ranks.allgather(len(part), "count")) for part, _ in parts] == [70, 10, 20]
    assert (np.concatenate([_joined(ranks, part) for part, _ in parts]) == x).all()
    labels = np.concatenate([_joined(ranks, part) for _, part in parts])
    assert (labels == np.arange(2, 300, 3) % 4).all() and labels.dtype == np.int64
    sizes = [sum(ranks.allgather(len(data.next_train_batch()[0]), "count")) for _ in range(11)]
    assert sizes == [7] * 11 and sum(ranks.allgather(len(data.next_validation_batch()[0]), "count")) == 4
    assert sum(ranks.allgather(len(data.next_test_batch(3)[1]), "count")) == 3
    return True


def several_files(tmp):
    """A separate test file; a pattern, a directory and a list are one table."""
    ranks = world.current()
    _write(ranks, Path(tmp), _csv)
    data = DataSet("CSV", train_file="part-*.csv", test_file="part-0.csv", data_directory=tmp, one_hot=True)
    assert data.training.total_rows == 100 and data.testing.total_rows == 33 and data.validation is None
    assert data.validation_data is None and data.training_labels.shape[1:] == (4,)
    _write(ranks, Path(tmp) / "parts", lambda folder: (folder.mkdir(), _csv(folder), (folder / "all.csv").unlink()))
    one = DataSet.open(os.path.join(tmp, "all.csv"))
    for path in (
        os.path.join(tmp, "parts"),
        Path(tmp) / "part-?.csv",
        [os.path.join(tmp, f"part-{i}.csv") for i in range(3)],
    ):
        other = DataSet.open(path)
        assert other.total_rows == 100 and len(other.paths) == 3
        assert (other.data == one.data).all() and (other.labels == one.labels).all()
    some = DataSet.open(os.path.join(tmp, "all.csv"), x=["b"], y=False, rows=slice(10, 40, 3), dtype="float64")
    assert some.labels is None and some.data.dtype == np.float64
    assert (_joined(ranks, some.data)[:, 0] == np.arange(300).reshape(100, 3)[10:40:3, 1]).all()
    return True


def _digits(directory):
    random = np.random.RandomState(0)
    for part, rows in (("train", 30), ("t10k", 10)):
        images = random.randint(0, 256, (rows, 28, 28)).astype(np.uint8)
        for name, code, array in (("images-idx3", 3, images), ("labels-idx1", 1, images[:, 0, 0] % 10)):
            content = bytes([0, 0, 8, code]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()
            (directory / f"{part}-{name}-ubyte").write_bytes(content)


def _cifar(directory, classes):
    random = np.random.RandomState(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    folder = directory / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    folder.mkdir()
    for name in names:
        rows = random.randint(0, 256, (20, 3072)).astype(np.uint8)
        labels = (rows[:, 0] % classes).tolist()
        key = {10: {b"labels": labels}, 100: {b"fine_labels": labels, b"coarse_labels": [0] * 20}}[classes]
        (folder / name).write_bytes(pickle.dumps({b"data": rows, **key}, protocol=2))


def images(tmp, name="MNIST"):
    """MNIST and CIFAR by name, from a directory."""
    ranks = world.current()
    classes = 100 if name.endswith("100") else 10
    _write(ranks, tmp, _digits if name == "MNIST" else lambda directory: _cifar(directory, classes))
    data = DataSet(name, data_directory=tmp, normalize=255.0, valid_pct=0.1)
    shape = (28, 28, 1) if name == "MNIST" else (3072,)
    total = {"MNIST": 30, "CIFAR10": 100, "CIFAR100": 20}[name.upper()]
    assert data.training_data.shape[1:] == shape and data.training_data.dtype == np.float32
    assert data.training.total_rows + data.validation.total_rows == total
    assert data.testing.total_rows == (10 if name == "MNIST" else 20)
    first = np.round(data.training_data.reshape(len(data.training_data), -1)[:, 0] * 255).astype(int)
    assert data.training_labels.shape == (len(first), classes) and (data.training_labels.sum(axis=1) == 1).all()
    assert (data.training_labels.argmax(axis=1) == first % classes).all() and data.training_data.max() <= 1
    if name.upper().startswith("CIFAR"):  # the first rows are for validation
        held = len(_joined(ranks, data.validation_data))
        every = _joined(ranks, DataSet(name, data_directory=tmp, normalize=255.0).training_data)
        assert (_joined(ranks, data.validation_data) == every[:held]).all()
        assert (_joined(ranks, data.training_data) == every[held:]).all()
    return True


def as_matex_finds_them(tmp):
    """Without a directory: MNIST_data and CIFAR_data below the working directory."""
    ranks = world.current()
    _write(ranks, Path(tmp), lambda folder: ((folder / "MNIST_data").mkdir(), _digits(folder / "MNIST_data")))
    _write(ranks, Path(tmp), lambda folder: ((folder / "CIFAR_data").mkdir(), _cifar(folder / "CIFAR_data", 10)))
    before, dataset._MNIST_TRAINING = os.getcwd(), 24
    os.chdir(tmp)
    try:
        mnist, cifar = DataSet("MNIST"), DataSet("CIFAR10")
    finally:
        os.chdir(before)
        dataset._MNIST_TRAINING = 50_000
    assert (mnist.training.total_rows, mnist.validation.total_rows, mnist.testing.total_rows) == (24, 6, 10)
    assert mnist.training_data.dtype == np.uint8 and mnist.dataset == "MNIST" and mnist.data_directory is None
    assert (cifar.training.total_rows, cifar.validation, cifar.testing.total_rows) == (100, None, 20)
    return True


def higgs(tmp):
    """A CSV file without names as UCI has HIGGS: the label first, as a float; and one with -1 and 1."""
    ranks = world.current()
    x = np.arange(60.0).reshape(20, 3)
    labels = np.arange(20) % 3 == 0

    def write(folder):
        np.savetxt(folder / "HIGGS.csv", np.column_stack([labels, x]), delimiter=",")
        np.savetxt(folder / "signs.csv", np.column_stack([labels * 2 - 1, x]), delimiter=",", fmt="%g")
        np.savetxt(folder / "values.csv", np.column_stack([x[:, 0] + 0.5, x]), delimiter=",", fmt="%g")
        (folder / "all" / "more").mkdir(parents=True)
        np.savetxt(folder / "all" / "a.txt", x[:12], delimiter=";")
        np.savetxt(folder / "all" / "more" / "b.txt", x[12:], delimiter=";")

    _write(ranks, Path(tmp), write)
    for name in ("HIGGS.csv", "signs.csv"):
        data = DataSet("CSV", ",", train_file=os.path.join(tmp, name), valid_pct=0.25, train_batch_size=6)
        assert data.training.total_rows == 15 and data.training_labels.shape[1:] == (2,)
        assert (_joined(ranks, data.training_labels).argmax(axis=1) == labels[:15]).all()
        assert (_joined(ranks, data.training_data) == x[:15]).all()
        assert (_joined(ranks, data.validation_labels).argmax(axis=1) == labels[15:]).all()
        data.training_data = data.training_data / 2  # attributes, of which batches are taken
        batch, vectors = data.next_train_batch()
        assert (_joined(ranks, batch).sum() == x[data.training.order(6)[:6]].sum() / 2).all() and len(vectors) == len(
            batch
        )
    values = DataSet("CSV", train_file=os.path.join(tmp, "values.csv"))
    assert (_joined(ranks, values.training_labels) == x[:, 0] + 0.5).all() and values.validation_data is None
    every = DataSet("CSV", ";", data_directory=os.path.join(tmp, "all"))
    assert (_joined(ranks, every.training_data) == x).all() and every.training_labels is None
    return True


def refused(tmp, how):
    """What DataSet says of bad arguments and files."""
    ranks = world.current()
    _write(ranks, tmp, _csv)
    path = os.path.join(tmp, "all.csv")
    if how == "name":
        DataSet("IMAGENET", train_file=path)
    elif how == "no file":
        DataSet("CSV")
    elif how == "missing":
        DataSet("HDF5", train_file="none.h5", data_directory=tmp)
    elif how == "pattern":
        DataSet.open(os.path.join(tmp, "*.parquet"))
    elif how == "fraction":
        DataSet("CSV", train_file=path, valid_pct=20)
    elif how == "nothing left":
        DataSet("CSV", train_file=path, valid_pct=0.5, test_pct=0.5)
    elif how == "both":
        DataSet("CSV", train_file=path, valid_pct=0.5, validation_file=path)
    elif how == "batch":
        DataSet("CSV", train_file=path).next_train_batch()
    elif how == "no test":
        DataSet("CSV", train_file=path).next_test_batch(3)
    elif how == "positional":
        DataSet("CSV", 64, train_file=path)
    elif how == "rows":
        DataSet.open(path, rows=slice(200, 300))
    elif how == "format":
        DataSet.open(path, format="excel")
    elif how == "other format":
        DataSet("HDF5", train_file=path)
    elif how == "not downloaded":
        DataSet("MNIST", data_directory=tmp)
    elif how == "one rank":
        if ranks.rank == 1:
            path += ".not-here"
        DataSet("CSV", train_file=path)
    elif how == "cut":
        with gzip.open(path + ".gz", "wb") as file:
            file.write(Path(path).read_bytes() * 50)
        ranks.barrier("wait for the file")
        if ranks.rank == 0:
            os.truncate(path + ".gz", 200)
        ranks.barrier("wait for the cut")
        DataSet("CSV", train_file=path + ".gz")
    raise AssertionError("it was taken")


def other_names():
    """`matex.datasets` and `datasets` have it, and nothing else is in the way."""
    import importlib

    from matex_tf.patches.imports import dataset_alias

    dataset_alias.install()
    import matex_tf

    for name in ("matex.datasets", "datasets"):
        assert importlib.import_module(name).DataSet is DataSet
    assert matex_tf.DataSet is DataSet
    assert DataError is matex_tf.readers.DataError
    return True
