"""What DataSet says of the files that it opens, and what it takes for `rows`."""

import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_files import idx_bytes
from there import case

import matex_tf
from matex_tf import DataSet, settings
from matex_tf.core.world import World
from matex_tf.errors import DataError, MissingPackage
from matex_tf.readers import dataset
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions
from matex_tf.settings import Settings

WORDS = "matex_tf: the labels are words, which a model cannot use: give one_hot=True, or number them by shard.classes\n"


def line(capsys, path, **wanted):
    """What is said of a file, and its shard."""
    shard = DataSet.open(path, **wanted)
    return capsys.readouterr().err, shard


def test_several_ranks(tmp_path, capsys):
    """One line says what was found and that each rank has a part of it. Files like it have no line of their own."""
    (tmp_path / "a.csv").write_text("height,label\n1,3\n")
    line(capsys, tmp_path / "a.csv")
    said = []
    table = registry.open_table([str(tmp_path / "a.csv")], None, ReadOptions(), World())
    dataset.say(table, table.rows, SimpleNamespace(rank=0, size=3, log=said.append))
    assert len(said) == 1 and said[0].endswith("label 'label' (by its name); each of 3 ranks has its part")
    (tmp_path / "b.csv").write_text("height,label\n1,3\n2,4\n")
    (tmp_path / "c.csv").write_text("width,label\n1,3\n")
    for name in "bc":  # a file like the first, and one with another column
        table = registry.open_table([str(tmp_path / f"{name}.csv")], None, ReadOptions(), World())
        dataset.say(table, table.rows, SimpleNamespace(rank=0, size=3, log=said.append))
    assert [each[:5] for each in said] == ["a.csv", "c.csv"]


def test_csv(tmp_path, capsys):
    """Format, rows, columns, which column is the label and why, and rows that lack an input."""
    (tmp_path / "a.csv").write_text("height,label,width\n1,3,4\n,4,5\n2,5,\n3,1,1\n")
    said, shard = line(capsys, tmp_path / "a.csv")
    assert said == (
        "matex_tf: a.csv: csv, 4 rows, 2 inputs ('height', 'width'), label 'label' (by its name); "
        "2 rows lack an input (NaN)\n"
    )
    assert shard.columns == ("height", "width") and shard.classes is None
    said, shard = line(capsys, tmp_path / "a.csv", missing="median")
    assert said.endswith("; 2 rows lack an input (becomes the median of its column)\n")
    assert shard.data.tolist() == [[1, 4], [2, 5], [2, 4], [3, 1]]
    (tmp_path / "b.csv").write_text("1,2,x\n3,4,y\n5,6,x\n")
    said, shard = line(capsys, tmp_path / "b.csv", rows=2)
    assert said == (
        "matex_tf: b.csv: csv, 2 of 3 rows, 2 inputs (0, 1), label 2 (the last column, as the file has no names: y= "
        "names another)\n" + WORDS
    )
    assert shard.columns == (0, 1) and shard.classes.tolist() == ["x", "y"]
    assert np.searchsorted(shard.classes, shard.labels).tolist() == [0, 1]
    assert "no labels (y=False)" in line(capsys, tmp_path / "b.csv", x=[0], y=False)[0]
    assert "label 0 (as y= says)" in line(capsys, tmp_path / "b.csv", x=[1], y=0)[0]
    said = line(capsys, tmp_path / "b.csv", x=[0, 1], y=2, one_hot=True)[1].classes.tolist()
    assert said == ["x", "y"]


def test_other_formats(tmp_path, capsys):
    """What the inputs and labels are, and why; NaN is counted where rows are read."""
    np.savez(tmp_path / "a.npz", data=np.zeros((5, 2), "f4"), labels=np.arange(5))
    said, shard = line(capsys, tmp_path / "a.npz")
    assert said == (
        "matex_tf: a.npz: numpy, 5 rows, input data (2 a row, float32) by its name, "
        "labels labels (one value a row, int64) by its name\n"
    )
    assert shard.columns == ("data",)
    x = np.zeros((6, 2, 2))
    x[[1, 4]] = np.nan
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, ["a", "b"] * 3
    said, shard = line(capsys, tmp_path / "a.h5", x="x", y="y")
    assert (
        "hdf5, 6 rows, input x (2 x 2 a row, float64) as x= says, labels y (one value a row, text) as y= says" in said
    )
    assert said.endswith(WORDS) and shard.classes.tolist() == ["a", "b"]
    assert shard.data is not None
    assert capsys.readouterr().err == "matex_tf: a.h5: 2 of the 6 rows of rank 0 lack an input (NaN)\n"
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["cat"], file["dog"] = np.zeros((2, 3)), np.zeros((1, 3))
    said, shard = line(capsys, tmp_path / "b.h5")
    assert "one dataset of inputs for each of 2 classes (cat, dog), labels from 0 in this order" in said
    assert shard.classes.tolist() == ["cat", "dog"]


def test_a_data_set_by_name(tmp_path, capsys):
    """The shape that its rows are given in is told as well."""
    for name, array in {"images-idx3": np.zeros((6, 28, 28), "u1"), "labels-idx1": np.arange(6).astype("u1")}.items():
        for part in ("train", "t10k"):
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(idx_bytes(array))
    DataSet("MNIST", data_directory=tmp_path)
    assert "input train-images-idx3-ubyte (28 x 28 a row, uint8)" in (said := capsys.readouterr().err)
    assert "; rows are given as 28 x 28 x 1\n" in said


def test_chunks_that_were_never_written(tmp_path, capsys):
    """Said of the file."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(20, 2), chunks=(5, 2))[:9] = 1
    assert (
        "a.h5: dataset x: of rows 10 to 20, 10 were not written, or not in full" in line(capsys, tmp_path / "a.h5")[0]
    )


def test_nothing_is_said(tmp_path, capsys):
    """With --notes off."""
    (tmp_path / "a.csv").write_text("a,b\n1,x\n2,y\n")
    before = settings.use(Settings(notes=False))
    try:
        assert line(capsys, tmp_path / "a.csv")[0] == ""
    finally:
        settings.use(before)


@pytest.mark.parametrize(
    ("rows", "first"), [(3, [0, 1, 2]), (range(2, 4), [2, 3]), (np.int64(1), [0]), (slice(7, 9), [7, 8])]
)
def test_rows(tmp_path, rows, first):
    """So many of the first, a range, a slice."""
    np.save(tmp_path / "a.npy", np.arange(9))
    assert DataSet.open(tmp_path / "a.npy", rows=rows).data.tolist() == first


@pytest.mark.parametrize("rows", [True, -2, [1, 2], 2.5, "all", range(5, 2, -1), 0])
def test_rows_that_are_refused(tmp_path, rows):
    """In words."""
    np.save(tmp_path / "a.npy", np.arange(9))
    with pytest.raises(DataError, match="give a slice, a range, or how many|takes none of them, or goes backwards"):
        DataSet.open(tmp_path / "a.npy", rows=rows)


@pytest.mark.parametrize(
    ("name", "missing"), [("a.csv", "pyarrow"), ("a.h5", "h5py"), case("parquet", "a.parquet", "pyarrow")]
)
def test_a_package_that_is_missing(tmp_path, monkeypatch, name, missing):
    """It is named, with what to install."""
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "a.parquet")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(3)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingPackage, match=rf"{name} is read with {missing}, .* pip install 'matex_tf\[data\]'"):
        DataSet.open(tmp_path / name)


def test_names_of_the_package():
    """What `dir` shows, without an import of what they need."""
    assert {"DataSet", "average", "rank"} <= set(dir(matex_tf))
