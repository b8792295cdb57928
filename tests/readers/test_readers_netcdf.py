"""NetCDF files: the ranks' rows are the file's, and what is wrong with a file is said on every rank."""

import array_files
import netCDF4
import numpy as np
import pytest
from array_checks import check_bytes, check_changes, check_damage, check_refused, check_shards
from array_files import Sample
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.io import netcdf_file

from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.formats import registry
from matex_tf.readers.formats.netcdf import table as netcdf
from matex_tf.readers.tables.table import ReadOptions

CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
ALL = (*CLASSIC, "NETCDF4", "NETCDF4_CLASSIC")


def write(path, format="NETCDF4", rows=None, **variables):
    """A file of variables, the first axis of each being the rows, unlimited where `rows` is None."""
    with netCDF4.Dataset(path, "w", format=format) as file:
        file.createDimension("row", rows)
        for name, (values, attributes) in variables.items():
            for number, size in enumerate(values.shape[1:]):
                file.createDimension(f"{name}{number}", size)
            dimensions = ("row", *(f"{name}{number}" for number in range(values.ndim - 1)))
            fill = attributes.pop("_FillValue", None)
            variable = file.createVariable(name, values.dtype, dimensions, fill_value=fill)
            variable.set_auto_maskandscale(False)
            variable.setncatts(attributes)
            variable[:] = values
    return str(path)


def test_shards(bare_ranks, seven_ranks, tmp_path):
    """Every format, unlimited and fixed rows, missing and packed values, text, groups."""
    check_shards(array_files.netcdf(tmp_path), bare_ranks, seven_ranks)


def test_written_by_another_library(tmp_path):
    """CDF-1 and CDF-2 of SciPy, with one record variable of two bytes a row, which is not padded."""
    x, y = array_files.rows("i2", 3), array_files.rows("i1")
    for version in (1, 2):
        for content in ({"data": x}, {"data": x, "labels": y}):
            path = str(tmp_path / f"{version}{len(content)}.nc")
            with netcdf_file(path, "w", version=version) as file:
                file.createDimension("row", None)
                file.createDimension("column", 3)
                for name, values in content.items():
                    file.createVariable(name, values.dtype, ("row", "column")[: values.ndim])[:] = values
            got, labels = netcdf.open([path], ReadOptions(), World()).read(2, 50)
            np.testing.assert_array_equal(got, x[2:50])
            if len(content) > 1:
                np.testing.assert_array_equal(labels, y[2:50])


def test_wide_records(tmp_path):
    """Rows that lie far apart are read one by one, and each variable's are its own."""
    x, y = array_files.rows("f4", 4, count=9), array_files.rows("f8", count=9)
    wide = array_files.rows("f4", 50_000, count=9)
    for format in CLASSIC:
        path = write(tmp_path / f"{format}.nc", format, x=(x, {}), between=(wide, {}), y=(y, {}), behind=(wide, {}))
        got, labels = netcdf.open([path], ReadOptions(), World()).read(1, 8)
        np.testing.assert_array_equal(got, x[1:8])
        np.testing.assert_array_equal(labels, y[1:8])


@pytest.mark.parametrize("format", ALL)
def test_missing_values(tmp_path, format):
    """Dtypes follow from attributes and not from values; the value of what was never written is no value."""
    number = np.arange(6)
    path = write(
        tmp_path / "gaps.nc", format,
        short=(number.astype("i2"), {"_FillValue": np.int16(2)}),
        wide=(number.astype("i4"), {"missing_value": np.int32(99)}),
        float=(np.where(number == 1, netCDF4.default_fillvals["f4"], number).astype("f4"), {}),
        nan=(np.where(number == 1, np.nan, number).astype("f8"), {"_FillValue": np.nan}),
        plain=(np.where(number == 1, netCDF4.default_fillvals["i4"], number).astype("i4"), {}),
    )  # fmt: skip
    names = ["short", "wide", "float", "nan"]
    table = netcdf.open([path], ReadOptions(x=names), World())
    whole, _ = table.read(0, 6)
    assert [x.dtype.str[1:] for x in whole] == ["f4", "f8", "f4", "f8"]
    for start in range(6):
        part, _ = table.read(start, start + 1)
        assert [x.dtype for x in part] == [x.dtype for x in whole]
    missing = [np.flatnonzero(np.isnan(x)).tolist() for x in whole]
    assert missing == [[2], [], [1], [1]]
    with pytest.raises(DataError, match="variable plain: row 1 of it has no value"):
        netcdf.open([path], ReadOptions(x="plain", y=False), World()).read(0, 6)
    floats = netcdf.open([path], ReadOptions(x="plain", y=False, dtype=np.dtype("f4")), World()).read(0, 6)[0]
    assert floats.dtype == np.float32 and np.flatnonzero(np.isnan(floats)).tolist() == [1]
    for name, row in {"short": 2, "float": 1, "nan": 1, "plain": 1}.items():
        with pytest.raises(DataError, match=f"variable {name} is the labels, and row {row} of it"):
            netcdf.open([path], ReadOptions(x="wide", y=name), World()).read(0, 6)
    got, labels = netcdf.open([path], ReadOptions(x="wide", y="short"), World()).read(3, 6)
    assert labels.dtype == np.int16 and labels.tolist() == [3, 4, 5]


def test_refused(bare_ranks, tmp_path):
    """What is wrong with a file, or with what is asked of it, is said by name."""
    cases = {}

    def case(name, words, path, wanted=None, format=None):
        cases[name] = (([path], format, wanted or {}), [*words, path])

    x, y = array_files.rows("f4", 3), np.arange(array_files.ROWS)
    case("missing", ["no such file"], str(tmp_path / "missing.nc"), format="PNetCDF")
    (tmp_path / "empty.nc").write_bytes(b"")
    case("empty", ["is empty"], str(tmp_path / "empty.nc"))
    (tmp_path / "text.nc").write_text("a,b\n1,2\n")
    case("text", ["not a NetCDF file"], str(tmp_path / "text.nc"), format="netcdf")
    for format in ALL:
        path = write(tmp_path / f"{format}.nc", format, a=(x, {}), b=(y.astype("i4"), {}))
        case(f"{format} names", ["x=", "a, b"], path)
        case(f"{format} not there", ["'depth'", "a, b"], path, {"x": "depth"})
        with netCDF4.Dataset(tmp_path / f"lengths {format}.nc", "w", format=format) as file:
            for name, size in (("x", 4), ("y", 5)):
                file.createDimension(f"row{name}", size)
                file.createVariable(name, "f4", (f"row{name}",))[:] = np.arange(size)
            file.createVariable("single", "f4", ())[:] = 1
        case(f"{format} lengths", ["x has 4 rows", "y has 5"], str(tmp_path / f"lengths {format}.nc"))
        case(f"{format} single", ["single value"], str(tmp_path / f"lengths {format}.nc"), {"x": "single"})
        with open(path, "rb") as file:
            whole = file.read()
        (tmp_path / f"cut {format}.nc").write_bytes(whole[:-9])
        word = "cut short" if format in CLASSIC else "cannot be read as NetCDF"
        case(f"{format} cut", [word], str(tmp_path / f"cut {format}.nc"), {"x": "a", "y": "b"})
    with netCDF4.Dataset(tmp_path / "compound.nc", "w") as file:
        file.createDimension("row", 3)
        kind = file.createCompoundType(np.dtype([("one", "f4"), ("two", "i4")]), "pair")
        file.createVariable("x", kind, ("row",))
        ragged = file.createVLType("f4", "ragged")
        file.createVariable("data", ragged, ("row",))
    case("compound", ["compound"], str(tmp_path / "compound.nc"), {"x": "x"})
    case("ragged", ["varying length"], str(tmp_path / "compound.nc"), {"x": "data"})
    check_refused(cases, bare_ranks)


def test_changed_since_it_was_opened(bare_ranks, tmp_path):
    """A file that became another between opening and reading."""

    def made(directory):
        directory.mkdir()
        return [write(directory / f"{format}.nc", format, x=(array_files.rows("f4", 3), {})) for format in ALL[1:4]]

    check_changes(made, bare_ranks, tmp_path)


def test_bytes_read(bare_ranks, tmp_path):
    """A rank reads its part of the file and little more, also where inputs and labels lie in turn."""
    x, y = array_files.rows("f4", 100, count=50_000), np.arange(50_000, dtype="i4")
    samples = []
    for format in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4"):
        for rows in (None, 50_000):
            path = tmp_path / f"{format}{rows}.nc"
            with netCDF4.Dataset(path, "w", format=format) as file:
                file.createDimension("row", rows)
                file.createDimension("column", 100)
                chunks = {"chunksizes": (250, 100)} if rows is None and format == "NETCDF4" else {}
                file.createVariable("x", "f4", ("row", "column"), **chunks)[:] = x
                chunks = {"chunksizes": (5000,)} if chunks else {}
                file.createVariable("y", "i4", ("row",), **chunks)[:] = y
            samples.append(Sample(f"{format} {rows}", [str(path)], x, y))
    small = [Sample("small", [write(tmp_path / "small.nc", x=(x[:9], {}))], x[:9], None)]
    check_bytes(samples[:4], small, bare_ranks)
    # The NetCDF library reads 4 MiB ahead when it looks for the signature of a file, however large that is.
    check_bytes(samples[4:], small, bare_ranks, opening=4 << 20)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    x=arrays.arrays(st.sampled_from(["i1", "i2", "i4", "f4", "f8"]), arrays.array_shapes(min_dims=1, max_dims=4)),
    y=st.sampled_from(["i1", "i2", "i4"]),
    unlimited=st.booleans(),
    format=st.sampled_from(ALL),
    data=st.data(),
)
def test_what_was_written(tmp_path, x, y, unlimited, format, data):
    """Any arrays are read back, and any range of them; but for the number that stands for a gap in the format."""
    gap = netCDF4.default_fillvals["f4" if x.dtype.kind == "f" else x.dtype.str[1:]]
    assume(x.dtype.str[1:] == "i1" or not (x == np.array(gap, x.dtype)).any())  # NetCDF has no gaps in bytes
    labels = np.arange(len(x)).astype(y)
    path = write(tmp_path / "any.nc", format, None if unlimited else len(x), labels=(labels, {}), images=(x, {}))
    table = registry.open_table([path], None, ReadOptions(), World())
    start = data.draw(st.integers(0, len(x)))
    stop = data.draw(st.integers(start, len(x)))
    got, got_labels = table.read(start, stop)
    assert got.dtype == x.dtype and got_labels.dtype == labels.dtype
    np.testing.assert_array_equal(got, x[start:stop])
    np.testing.assert_array_equal(got_labels, labels[start:stop])


def test_damage(tmp_path):
    """Cuts and flips of bytes end in rows or in a DataError."""
    check_damage("netcdf", 2, tmp_path)
