"""HDF5 files: the ranks' rows are the file's, and what is wrong with a file is said on every rank."""

import os
import shutil
from fractions import Fraction

import array_files
import h5py
import numpy as np
import pytest
from array_checks import check_bytes, check_changes, check_damage, check_refused, check_shards
from array_files import Sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from matex_tf.core import row_partition
from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.formats import registry
from matex_tf.readers.formats.hdf5 import table as hdf5
from matex_tf.readers.tables.table import ReadOptions


def test_shards(bare_ranks, seven_ranks, tmp_path):
    """Every layout, filter and dtype."""
    check_shards(array_files.hdf5(tmp_path), bare_ranks, seven_ranks)


def by_class(path, counts, inner=""):
    """A file with a dataset for each class, and the rows in the order of turns, worked out one by one."""
    content = {name: array_files.rows("f4", 3, count=count, seed=count) for name, count in counts.items()}
    with h5py.File(path, "w") as file:
        for name, rows in content.items():
            file[name + inner] = rows
    names = sorted(counts, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    order = sorted(
        ((i + 0.5) / counts[name], label, i) for label, name in enumerate(names) for i in range(counts[name])
    )
    x = np.array([content[names[label]][i] for _, label, i in order])
    return Sample(path.stem, [str(path)], x, np.array([label for _, label, _ in order])), names


def test_a_dataset_for_each_class(bare_ranks, seven_ranks, tmp_path):
    """Classes take turns, in the proportion of their sizes; names that are numbers are sorted as numbers."""
    made = [
        by_class(tmp_path / "numbers.h5", {"10": 31, "9": 7, "2": 20}),
        by_class(tmp_path / "animals.h5", {"dog": 12, "cat": 12, "2": 12, "wolf": 1}, "/samples"),
    ]
    check_shards([sample for sample, _ in made], bare_ranks, seven_ranks)
    for sample, names in made:
        assert hdf5.open(sample.paths, ReadOptions(), World()).classes == tuple(names)
    inputs = hdf5.open(made[0][0].paths, ReadOptions(y=False, dtype=np.dtype("f8")), World()).read(3, 9)
    assert inputs[1] is None and np.array_equal(inputs[0], made[0][0].x[3:9].astype("f8"))


def test_not_a_dataset_for_each_class(tmp_path):
    """Where it could be another layout, names are asked for."""
    for number, content in enumerate(
        [{"a": np.zeros((4, 2)), "b": np.zeros((4, 3))}, {"a": np.zeros(4), "b": np.zeros(4)},
         {"a": np.zeros((4, 2)), "data": np.zeros((4, 2))}, {"a/1": np.zeros((4, 2)), "a/2": np.zeros((4, 2))}]
    ):  # fmt: skip
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for name, value in content.items():
                file[name] = value
        with pytest.raises(DataError, match="which datasets are inputs and labels"):
            hdf5.open([str(tmp_path / f"{number}.h5")], ReadOptions(), World())


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any), st.data())
def test_turns(counts, data):
    """The rows of all shards, or classes, in the order of their places, of equal ones the lower shard's first."""
    row = data.draw(st.integers(0, sum(counts)))
    places = sorted((Fraction(2 * i + 1, 2 * count), shard) for shard, count in enumerate(counts) for i in range(count))
    wanted = np.bincount([shard for _, shard in places[:row]], minlength=len(counts))
    assert row_partition.Interleaving(counts).before(row).tolist() == wanted.tolist()


def test_turns_of_many_classes():
    """Also where a class has nearly all rows, and where there are thousands of classes."""
    counts = np.ones(3000, np.int64)
    counts[7] = 100_000
    turns = row_partition.Interleaving(counts)
    whole, _ = turns.sorted(np.zeros_like(counts), counts)
    for row in (1, 499, 51_500, 102_998):
        assert turns.before(row).tolist() == np.bincount(whole[:row], minlength=3000).tolist()


def test_refused(bare_ranks, tmp_path):
    """What is wrong with a file, or with what is asked of it, is said by name."""
    for_each = {}

    def case(name, words, wanted=None, format=None, path=None, **content):
        place = tmp_path / f"{name}.h5"
        if content:
            with h5py.File(place, "w") as file:
                for key, value in content.items():
                    file[key] = value
        for_each[name] = (([path or str(place)], format, wanted or {}), [*words, path or str(place)])

    x, y = np.zeros((5, 2)), np.arange(5)
    case("missing", ["no such file"], format="HDF5")
    case("not there", ["'depth'", "x, y"], {"x": "depth"}, x=x, y=y)
    case("position", ["number 7", "x, y"], {"x": 7}, x=x, y=y)
    case("no name", ["names no dataset"], {"x": 2.5}, x=x, y=y)
    case("lengths", ["x has 5 rows", "y has 4"], x=x, y=y[:4])
    case("ambiguous", ["x=", "y=", "a, b, c"], a=x, b=y, c=x)
    case("two pairs", ["data and labels", "images and labels"], data=x, images=x, labels=y)
    case("single", ["single value"], {"x": "x"}, x=1.0)
    case("no data", ["no data"], x=h5py.Empty("f4"))
    case("compound", ["compound", "one, two"], x=np.zeros(3, [("one", "f4"), ("two", "i4")]))
    case("references", ["references"], {"x": "x"})
    with h5py.File(tmp_path / "references.h5", "w") as file:
        file.create_dataset("x", shape=3, dtype=h5py.ref_dtype)
    case("dead link", ["dead", "/nowhere"], {"x": "dead"}, dead=h5py.SoftLink("/nowhere"), y=y)
    case("dead file", ["dead", "gone.h5"], {"x": "dead"}, dead=h5py.ExternalLink("gone.h5", "/x"), y=y)
    case("no rows", ["no rows"], x=x[:0], y=y[:0])
    case("words", ["text", "float32"], {"dtype": np.dtype("f4")}, x=[b"a", b"b"])
    case("nothing", ["no dataset at all"], path=str(tmp_path / "empty group.h5"))
    h5py.File(tmp_path / "empty group.h5", "w").close()
    (tmp_path / "empty.h5").write_bytes(b"")
    case("empty", ["is empty"])
    (tmp_path / "csv.h5").write_text("a,b\n1,2\n")
    case("csv", ["not an HDF5 file"], format="hdf5")
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((5, 2), "f8")
        layout[:] = h5py.VirtualSource("gone.h5", "x", (5, 2))
        file.create_virtual_dataset("x", layout)
    case("virtual", ["virtual", "gone.h5"])
    whole = (tmp_path / "not there.h5").read_bytes()
    (tmp_path / "truncated.h5").write_bytes(whole[:-100])
    case("truncated", ["cannot be read as HDF5", "truncated"])
    with h5py.File(tmp_path / "damaged.h5", "w") as file:
        file.create_dataset("x", data=array_files.rows("f4", 400), compression="gzip", chunks=(53, 400))
        place = file["x"].id.get_chunk_info(0).byte_offset
    with open(tmp_path / "damaged.h5", "r+b") as file:
        file.seek(place + 5000)
        file.write(b"\0" * 1000)
    case("damaged", ["cannot be read (rows 0 to 53)"])
    case("latin", ["UTF-8"], {"x": "x"}, x=np.array(["wört".encode("latin1")]))
    check_refused(for_each, bare_ranks)


def test_refused_on_one_rank(bare_ranks, tmp_path):
    """A file that one rank cannot see stops all of them, and the message says which."""
    array_files.hdf5(tmp_path)
    for rank in (0, 2):
        shutil.copy(tmp_path / "contiguous.h5", tmp_path / f"rank{rank}.h5")
    opened = [str(tmp_path / "rank{rank}.h5")], None, {}
    check_refused({"one rank": (opened, ["no such file", "rank1.h5", "on rank 1, host"])}, bare_ranks, (3,))


def test_changed_since_it_was_opened(bare_ranks, tmp_path):
    """A file that became another between opening and reading."""

    def write(directory):
        directory.mkdir()
        array_files.hdf5(directory)
        return [str(directory / name) for name in ("contiguous.h5", "chunks_gzip.h5")]

    check_changes(write, bare_ranks, tmp_path)


def test_bytes_read(bare_ranks, tmp_path):
    """A rank reads its part of the file and little more."""
    x, y = array_files.rows("f4", 100, count=50_000), np.arange(50_000)
    samples = []
    for name, options in {"contiguous": {}, "chunked": {"chunks": (250, 100), "compression": "gzip",
                          "compression_opts": 1}}.items():  # fmt: skip
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=x, **options)
            file.create_dataset("y", data=y)
        samples.append(Sample(name, [str(tmp_path / f"{name}.h5")], x, y))
    assert os.path.getsize(samples[0].paths[0]) > 20_000_000
    small = tmp_path / "small"
    small.mkdir()
    check_bytes(samples, array_files.hdf5(small)[:1], bare_ranks)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    x=arrays.arrays(
        arrays.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc" and dtype.itemsize in (1, 2, 4, 8)),
        arrays.array_shapes(min_dims=1, max_dims=4),
    ),
    chunked=st.booleans(),
    data=st.data(),
)
def test_what_was_written(tmp_path, x, chunked, data):
    """Any array of numbers is read back, and any range of it."""
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=x.shape if chunked else None)
    table = registry.open_table([str(path)], None, ReadOptions(), World())
    start = data.draw(st.integers(0, len(x)))
    stop = data.draw(st.integers(start, len(x)))
    got, labels = table.read(start, stop)
    assert labels is None and got.dtype == x.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, x[start:stop])


def test_damage(tmp_path):
    """Cuts and flips of bytes end in rows or in a DataError."""
    check_damage("hdf5", 2, tmp_path)
