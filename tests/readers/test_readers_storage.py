"""Rows that are not there are never made up: storage outside of an HDF5 file, virtual datasets, unwritten chunks."""

import os
import shutil

import h5py
import netCDF4
import numpy as np
import pytest
from array_checks import check_refused

from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions

X = np.arange(53 * 3, dtype="f4").reshape(53, 3) + 1


def source(path, rows=53, name="x", **options):
    """A file with the first rows of X."""
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=X[:rows], **options)
    return path


def virtual(path, *mappings, rows=53, columns=3, fillvalue=None, name="x", maxshape=None):
    """A file with a virtual dataset. Args: mappings: where in it; file, name, shape of the source; what of it."""
    layout = h5py.VirtualLayout((rows, columns), "f4", maxshape=maxshape)
    for where, file, inner, shape, selection in mappings:
        layout[where] = h5py.VirtualSource(str(file), inner, shape, maxshape=shape)[selection]
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset(name, layout, fillvalue=fillvalue)
    return path


def read(path, **wanted):
    table = registry.open_table([str(path)], None, ReadOptions(**wanted), World())
    return table.read(0, table.rows)[0], table.notes


def external(path, raw, *pieces):
    """A file whose dataset lies in others. Args: raw: their directory; pieces: rows of each."""
    bytes_ = [(str(raw / f"raw{number}"), 7, rows * 12) for number, rows in enumerate(pieces)]
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape=X.shape, dtype="f4", external=bytes_)[:] = X
    return path


def test_external_storage_that_is_cut_short(bare_ranks, tmp_path):
    """It would read as zeros: refused on every rank with the file, the dataset, the rows and the other file."""
    path = external(tmp_path / "some.h5", tmp_path, 20, 33)
    np.testing.assert_array_equal(read(path)[0], X)
    os.truncate(tmp_path / "raw1", 7 + 10 * 12 + 5)
    refused = {"cut": (([str(path)], None, {}), [str(path), "dataset x", "raw1", "rows 30 to 53"])}
    check_refused(refused, bare_ranks)
    (tmp_path / "raw0").unlink()
    with pytest.raises(DataError, match=r"some.h5: dataset x is stored in .*raw0, which cannot be read \(No such file"):
        read(path)


def test_external_storage_that_changes(tmp_path):
    """Between opening and reading."""
    path = external(tmp_path / "some.h5", tmp_path, 53)
    table = registry.open_table([str(path)], None, ReadOptions(), World())
    os.truncate(tmp_path / "raw0", 100)
    with pytest.raises(DataError, match="raw0 changed while it was read"):
        table.read(0, 53)


def test_virtual_datasets_that_are_whole(tmp_path):
    """Sources beside the file, in turn, in the same file, of other sources, with unlimited rows: read as they are."""
    first, second = source(tmp_path / "a.h5", 20), tmp_path / "b.h5"
    with h5py.File(second, "w") as file:
        file.create_dataset("x", data=X[20:])
    halves = [(slice(0, 20), "a.h5", "x", (20, 3), ...), (slice(20, 53), "b.h5", "x", (33, 3), ...)]
    both = virtual(tmp_path / "both.h5", *halves)
    np.testing.assert_array_equal(read(both)[0], X)
    nested = virtual(tmp_path / "nested.h5", (slice(None), both, "x", (53, 3), ...))
    np.testing.assert_array_equal(read(nested)[0], X)
    whole = source(tmp_path / "whole.h5")
    columns = [(np.s_[:, c], whole, "x", (53, 3), np.s_[:, c]) for c in range(3)]
    np.testing.assert_array_equal(read(virtual(tmp_path / "columns.h5", *columns))[0], X)
    turns = [(np.s_[k::4], whole, "x", (53, 3), np.s_[k::4]) for k in range(4)]
    np.testing.assert_array_equal(read(virtual(tmp_path / "turns.h5", *turns))[0], X)
    shutil.copy(first, tmp_path / "same.h5")
    with h5py.File(tmp_path / "same.h5", "r+", libver="latest") as file:
        layout = h5py.VirtualLayout((20, 3), "f4")
        layout[:] = h5py.VirtualSource(file["x"])
        file.create_virtual_dataset("again", layout)
    np.testing.assert_array_equal(read(tmp_path / "same.h5", x="again", y=False)[0], X[:20])


def blocks(path, rows):
    """A virtual dataset of any number of rows, made of the files block-0.h5, block-1.h5 and so on, ten rows each."""
    space, inner = h5py.h5s.create_simple((rows, 3), (h5py.h5s.UNLIMITED, 3)), h5py.h5s.create_simple((10, 3))
    space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (10, 1), (10, 3))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_virtual(space, b"block-%b.h5", b"x", inner)
    with h5py.File(path, "w", libver="latest") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, space, plist)
    return path


def test_numbered_sources(tmp_path):
    """Files named by the number of the block."""
    path = blocks(tmp_path / "all.h5", 30)
    for number in range(3):
        with h5py.File(tmp_path / f"block-{number}.h5", "w") as file:
            file["x"] = X[number * 10 :][:10]
    np.testing.assert_array_equal(read(path)[0], X[:30])
    source(tmp_path / "block-1.h5", 4)
    with pytest.raises(
        DataError,
        match=r"takes rows 10 to 20 from dataset x of block-1.h5, which has 12 values, shape \(4, 3\), and 30 are due",
    ):
        read(path)


VIRTUAL = {
    "no file": ([(slice(None), "gone.h5", "x", (53, 3), ...)], ["rows 0 to 53", "gone.h5", "not there"]),
    "no dataset": ([(slice(None), "whole.h5", "z", (53, 3), ...)], ["dataset z of whole.h5", "not there"]),
    "a group": ([(slice(None), "group.h5", "g", (53, 3), ...)], ["dataset g of group.h5", "no dataset"]),
    "too small": ([(slice(None), "small.h5", "x", (53, 3), ...)], ["small.h5", "(20, 3)", "159 are due"]),
    "too few dimensions": ([(slice(None), "flat.h5", "x", (53, 3), ...)], ["flat.h5", "53 values"]),
    "a part": ([(slice(0, 30), "whole.h5", "x", (53, 3), slice(0, 30))], ["no source has all of rows 30 to 53"]),
    "a gap": (
        [(slice(0, 9), "whole.h5", "x", (53, 3), slice(9)), (slice(30, 53), "whole.h5", "x", (53, 3), slice(30, 53))],
        ["no source has all of rows 9 to 30"],
    ),
    "a column": ([(np.s_[:, :2], "whole.h5", "x", (53, 3), np.s_[:, :2])], ["no source has all of rows 0 to 53"]),
    "every other": ([(np.s_[::2], "whole.h5", "x", (53, 3), np.s_[::2])], ["no source has all of rows 1 to 2"]),
    "behind another": (
        [(slice(None), "short.h5", "x", (53, 3), ...)],
        ["short.h5", "itself is virtual", "rows 20 to 53"],
    ),
    "external behind it": ([(slice(None), "outside.h5", "x", (53, 3), ...)], ["outside.h5", "raw0", "rows 9 to 53"]),
    "never written": ([(slice(None), "unwritten.h5", "x", (53, 3), ...)], ["unwritten.h5", "never written"]),
    "no HDF5": ([(slice(None), "text.h5", "x", (53, 3), ...)], ["text.h5", "cannot be read"]),
    "itself": ([(slice(None), "itself.h5", "x", (53, 3), ...)], ["takes rows from itself"]),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Sources of virtual datasets, most of them with something wrong."""
    directory = tmp_path_factory.mktemp("sources")
    source(directory / "whole.h5")
    source(directory / "small.h5", 20)
    with h5py.File(directory / "group.h5", "w") as file:
        file["g/x"] = X
    with h5py.File(directory / "flat.h5", "w") as file:
        file["x"] = X[:, 0]
    virtual(directory / "short.h5", (slice(0, 20), "small.h5", "x", (20, 3), ...))
    external(directory / "outside.h5", directory, 53)
    os.truncate(directory / "raw0", 7 + 9 * 12)
    with h5py.File(directory / "unwritten.h5", "w") as file:
        file.create_dataset("x", shape=(53, 3), dtype="f4", chunks=(10, 3))
    (directory / "text.h5").write_text("no HDF5")
    virtual(directory / "itself.h5", (slice(None), "itself.h5", "x", (53, 3), ...))
    return directory


def test_virtual_datasets_with_rows_that_are_nowhere(bare_ranks, sources):
    """They would read as the fill value, one of the user's too: refused, with file, dataset, rows and the source."""
    cases = {}
    for number, (name, (mappings, words)) in enumerate(VIRTUAL.items()):
        path = virtual(sources / f"of {number}.h5", *mappings, fillvalue=-1 if number % 2 else None)
        cases[name] = (([str(path)], None, {}), [str(path), "dataset x is virtual", *words])
    check_refused(cases, bare_ranks)


def test_a_virtual_dataset_of_one_source_that_changes(tmp_path):
    """A source is watched as the file itself is."""
    path = virtual(tmp_path / "some.h5", (slice(None), source(tmp_path / "a.h5"), "x", (53, 3), ...))
    table = registry.open_table([str(path)], None, ReadOptions(), World())
    source(tmp_path / "a.h5", 20)
    with pytest.raises(DataError, match="a.h5 changed while it was read"):
        table.read(0, 53)


def test_a_large_virtual_dataset_in_a_small_file(tmp_path):
    """What it can hold is told by its sources."""
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("x", shape=(300_000, 256), dtype="f4", chunks=(30_000, 256), compression="gzip")
        for row in range(0, 300_000, 30_000):
            file["x"][row] = 1
    path = virtual(tmp_path / "v.h5", (slice(None), "large.h5", "x", (300_000, 256), ...), rows=300_000, columns=256)
    table = registry.open_table([str(path)], None, ReadOptions(), World())
    assert table.rows == 300_000 and table.read(30_000, 30_001)[0].sum() == 256


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (10, 2)}, {"chunks": (10, 2), "fillvalue": 7, "compression": "gzip"}]
)
def test_a_dataset_that_was_never_written(tmp_path, options):
    """All of its values would be made up."""
    with h5py.File(tmp_path / "some.h5", "w") as file:
        file.create_dataset("x", shape=(53, 3), dtype="f4", **options)
    with pytest.raises(
        DataError, match=rf"dataset x was made and never written: every .* {options.get('fillvalue', 0)}"
    ):
        read(tmp_path / "some.h5")


def test_chunks_that_were_never_written(tmp_path):
    """Legal, and said: sparse data are written so."""
    with h5py.File(tmp_path / "some.h5", "w") as file:
        file.create_dataset("x", shape=(53, 3), dtype="f4", chunks=(10, 2))[:15] = X[:15]
        file["x"][50:] = X[50:]
    x, notes = read(tmp_path / "some.h5")
    np.testing.assert_array_equal(x[20:50], 0)
    assert notes == ("dataset x: of rows 20 to 50, 30 were not written, or not in full: what is not there is 0.0",)


def test_netcdf(tmp_path):
    """The same below netCDF-4; and a variable that has fewer rows than the others of its dimension."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("row", None)
        file.createDimension("column", 3)
        file.createVariable("features", "f4", ("row", "column"))[:] = X
        file.createVariable("target", "i1", ("row",))[:40] = 1
        file.createVariable("later", "f4", ("row",))
    with pytest.raises(DataError, match="a.nc: variable target was written up to row 40 of 53"):
        read(tmp_path / "a.nc")
    with pytest.raises(DataError, match="variable later was written up to row 0 of 53"):
        read(tmp_path / "a.nc", x="later", y=False)
    path = virtual(tmp_path / "v.nc", (slice(0, 30), source(tmp_path / "w.h5"), "x", (53, 3), slice(0, 30)))
    with pytest.raises(DataError, match="v.nc"):
        read(path)
