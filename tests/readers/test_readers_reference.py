"""Each reader beside the library that its format belongs to, over generated files: the same rows, or a DataError."""

import random
import warnings

import h5py
import netCDF4
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from there import needs

from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions

FILES = 60


def table(path, **wanted):
    return registry.open_table([str(path)], None, ReadOptions(**wanted), World())


def value(dtype, draw):
    """A number that a type has; the one that netCDF writes where nothing was written among them."""
    dtype = np.dtype(dtype)
    unwritten = [netCDF4.default_fillvals[dtype.str[1:]]] if dtype.itemsize > 1 else []
    if dtype.kind == "f":
        return draw.choice([0, 1, -1, 0.5, 0.1, 1e30, np.nan, np.inf, draw.uniform(-9, 9), *unwritten])
    limits = np.iinfo(dtype)
    # netCDF4 masks 255 and -127 of bytes, against its own documentation: the conventions give bytes no such value
    numbers = [0, 1, 2, 3, 5, -1, -9, 100, limits.min, *([limits.max] if dtype != np.uint8 else []), *unwritten]
    return draw.choice([number for number in numbers if limits.min <= number <= limits.max])


@pytest.mark.parametrize("number", range(FILES))
@pytest.mark.filterwarnings("ignore")
def test_netcdf(tmp_path, number):
    """What netCDF4 masks is NaN, or refused; whatever the attributes and types."""
    draw = random.Random(number)
    made = {}
    types = ["i1", "i2", "i4", "f4", "f8"]
    with netCDF4.Dataset(tmp_path / "some.nc", "w", format=draw.choice(["NETCDF3_CLASSIC", "NETCDF4"])) as file:
        file.createDimension("row", None)
        file.createDimension("column", 2)
        for name in map(str, range(12)):
            dtype = draw.choice(types)
            fill = {"fill_value": np.array(value(dtype, draw), dtype)} if draw.random() < 0.3 else {}
            variable = file.createVariable(name, dtype, ("row", "column"), **fill)
            variable.set_auto_maskandscale(False)
            for key in ("missing_value", "valid_min", "valid_max", "valid_range"):
                if draw.random() < 0.3:
                    count = 2 if key == "valid_range" else 1
                    other = draw.choice([dtype, dtype, dtype, draw.choice(types)])
                    variable.setncattr(key, np.array([value(other, draw) for _ in range(count)], other))
            for key in ("scale_factor", "add_offset"):
                if draw.random() < 0.2:
                    variable.setncattr(key, draw.choice([1.0, 0.5, 10.0]))
            variable[:] = np.array([[value(dtype, draw) for _ in range(2)] for _ in range(5)], dtype)
            made[name] = dict(vars(variable))
    with netCDF4.Dataset(tmp_path / "some.nc") as file, np.errstate(over="ignore"):
        for name, attributes in made.items():
            masked = file[name][:]
            missing, expected = np.ma.getmaskarray(masked), np.ma.getdata(masked).astype("f8")
            expected[missing] = np.nan
            try:
                got = table(tmp_path / "some.nc", x=name, y=False).read(0, 5)[0]
            except DataError as error:
                assert "has no value" in str(error) and missing.any(), (attributes, error)
                got = table(tmp_path / "some.nc", x=name, y=False, dtype=np.dtype("f8")).read(0, 5)[0]
            expected = expected.astype(got.dtype) if got.dtype.kind == "f" else expected
            np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=str(attributes))


def test_netcdf_attributes_that_do_not_fit(tmp_path):
    """They are not used, as netCDF4 does it, and a note says so; a scale that is no number is refused."""
    with netCDF4.Dataset(tmp_path / "some.nc", "w") as file:
        file.createDimension("row", 3)
        for name in ("x", "scaled"):
            file.createVariable(name, "i2", ("row",))[:] = range(3)
        file["x"].setncattr("valid_max", np.float64(0.5))
        file["x"].setncattr("missing_value", "none")
        file["scaled"].setncattr("scale_factor", "twice")
    found = table(tmp_path / "some.nc", x="x", y=False)
    assert found.read(0, 3)[0].tolist() == [0, 1, 2]
    assert [note.partition(" is no value")[0] for note in found.notes] == [
        "variable x: missing_value",
        "variable x: valid_max",
    ]
    with pytest.raises(DataError, match="variable scaled has the scale_factor 'twice', which is not a number"):
        table(tmp_path / "some.nc", x="scaled", y=False)


def test_netcdf_without_records(tmp_path):
    """Where nothing was written along the unlimited dimension nothing is cut short; fixed variables have their rows."""
    for format in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4"):
        path = tmp_path / f"{format}.nc"
        with netCDF4.Dataset(path, "w", format=format) as file:
            file.createDimension("row", None)
            file.createDimension("five", 5)
            file.createVariable("x", "f4", ("row", "five"))
            file.createVariable("fixed", "f4", ("five",))[:] = range(5)
        with pytest.raises(DataError, match="variable x has no rows"):
            table(path, x="x", y=False)
        assert table(path, x="fixed", y=False).read(0, 5)[0].tolist() == [0, 1, 2, 3, 4]


def column(draw, rows):
    """A column of a data frame, of any type of numbers."""
    kind = draw.choice(["i8", "i1", "u2", "f8", "f4", "bool", "Int64", "Float64", "boolean", "category"])
    numbers = [draw.randint(0, 5) for _ in range(rows)]
    if kind == "category":
        return pd.Categorical(numbers)
    if kind[0] in "IF" or kind == "boolean":
        return pd.array([draw.choice([one % 2 if kind == "boolean" else one, None]) for one in numbers], dtype=kind)
    return np.array(numbers, kind)


@needs("parquet")
@pytest.mark.parametrize("number", range(FILES))
def test_parquet(tmp_path, number):
    """The columns that pandas has, whatever index was stored with them."""
    draw, rows = random.Random(number), 9
    frame = pd.DataFrame({f"c{place}": column(draw, rows) for place in range(draw.randint(2, 4))})
    frame[draw.choice(["last", "y"])] = np.arange(rows) % 3
    index = draw.choice(["numbers", "shuffled", "named", "several", "words"])
    if index == "shuffled":
        frame = frame.sample(frac=1, random_state=number)
    elif index == "named":
        frame.index = pd.Index(np.arange(rows) * 3 + 1, name="id")
    elif index == "several":
        frame.index = pd.MultiIndex.from_arrays([np.arange(rows), np.arange(rows)], names=["group", None])
    elif index == "words":
        frame.index = pd.Index([f"row {row}" for row in range(rows)])
    frame.to_parquet(tmp_path / "some.parquet", row_group_size=draw.choice([2, 100]))
    expected = pd.read_parquet(tmp_path / "some.parquet")
    found = table(tmp_path / "some.parquet")
    *inputs, label = expected.columns
    assert found.columns == tuple(inputs)
    x, y = found.read(0, rows)
    columns = [expected[name].astype("Float64").to_numpy("f4", na_value=np.nan) for name in inputs]
    np.testing.assert_array_equal(x, np.stack(columns, 1))
    assert y.tolist() == expected[label].tolist()
    by_place, _ = table(tmp_path / "some.parquet", x=[0, -1], y=False).read(0, rows)
    np.testing.assert_array_equal(by_place[:, 1], expected[label])
    if index == "named":
        assert table(tmp_path / "some.parquet", x="id", y="id").read(0, rows)[1].tolist() == frame.index.tolist()


@needs("parquet")
def test_parquet_of_an_index_alone(tmp_path):
    """Then its columns are the table; and metadata that nobody can read say nothing."""
    index = pd.MultiIndex.from_arrays([np.arange(4), np.arange(4) * 2], names=["a", "b"])
    pd.DataFrame(index=index).to_parquet(tmp_path / "some.parquet")
    assert table(tmp_path / "some.parquet").columns == ("a",)
    for said in (b"no JSON", b"[]", b'{"index_columns": 7}', b'{"index_columns": [{"kind": "range"}, 7]}'):
        some = pa.table({"a": [1, 2], "b": [0, 1]}).replace_schema_metadata({b"pandas": said})
        pq.write_table(some, tmp_path / "odd.parquet")
        assert table(tmp_path / "odd.parquet").columns == ("a",)


DTYPES = ["u1", "i1", "u2", "i2", "i4", "u8", "i8", "f2", "f4", "f8"]


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("format", ["npy", "npz", "hdf5"])
def test_other_dtypes(tmp_path, format, stored):
    """`dtype=` gives what NumPy's `astype` gives, and is refused where NumPy would make a value up."""
    limits = np.iinfo(stored) if stored[0] != "f" else np.finfo(stored)
    values = {0, 1, 100, limits.max, limits.min, 200 if stored != "i1" else 3}
    if stored[0] == "f":
        values |= {np.nan, np.inf, -0.5, 2.0**8, 2.0**15}
    for one in values:
        x = np.array([[0], [one], [1]], stored)
        path = tmp_path / f"some.{format}"
        if format == "hdf5":
            with h5py.File(path, "w") as file:
                file["x"] = x
        else:
            np.save(path, x) if format == "npy" else np.savez(path, x=x)
        for asked in map(np.dtype, DTYPES):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = x.astype(asked)
            exact = int(x[1, 0]) if np.isfinite(x[1, 0]) else None
            fits = asked.kind == "f" or (exact is not None and np.iinfo(asked).min <= exact <= np.iinfo(asked).max)
            found = table(path, y=False, dtype=asked, **({} if format == "npy" else {"x": "x"}))
            if fits:
                np.testing.assert_array_equal(found.read(0, 3)[0], expected)
            else:
                with pytest.raises(DataError, match=f"row 1 has the value .*, which is no {asked}"):
                    found.read(0, 3)
