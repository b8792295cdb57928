"""Zarr stores and datasets of xarray: the rows are theirs, a rank reads its part of them, what is wrong is named."""

import numpy as np
import pytest
import xarray
import zarr
from web import serving

from matex_tf import DataSet
from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.features.stores import arrays
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions
from tests.readers.test_addresses import COLUMNS, ROWS, X, Y

#: To write stores as these tests do; Python 3.10 has an older one.
NEEDS_ZARR_3 = pytest.mark.skipif(zarr.__version__.startswith("2."), reason="zarr 2 has no create_array")


@pytest.fixture
def web(tmp_path):
    with serving(tmp_path) as server:
        yield server


@NEEDS_ZARR_3
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("where", ["disk", "web"])
def test_zarr(tmp_path, web, version, where):
    """A rank reads the chunks of its rows alone."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    group.create_array("x", shape=X.shape, chunks=(ROWS // 40, COLUMNS), dtype=X.dtype)[:] = X
    group.create_array("deep/y", shape=Y.shape, chunks=(ROWS // 40,), dtype=Y.dtype)[:] = Y
    zarr.consolidate_metadata(tmp_path / "a.zarr")
    path = str(tmp_path / "a.zarr") if where == "disk" else f"{web.address}/a.zarr"
    length = sum(file.stat().st_size for file in (tmp_path / "a.zarr").rglob("*") if file.is_file())
    wanted = {"x": "x", "y": "deep/y"}
    shard = DataSet.open(path, **wanted)
    np.testing.assert_array_equal(shard.data, X)
    np.testing.assert_array_equal(shard.labels, Y)
    web.sent = 0
    table = registry.open_table([path], None, ReadOptions(**wanted), World())
    x, _ = table.read(ROWS // 2, ROWS // 2 + ROWS // 4)
    np.testing.assert_array_equal(x, X[ROWS // 2 : ROWS // 2 + ROWS // 4])
    assert where == "disk" or length / 5 < web.sent < length / 3


@NEEDS_ZARR_3
def test_zarr_that_was_never_written(tmp_path):
    zarr.open_group(tmp_path / "a.zarr", mode="w").create_array("x", shape=(9, 2), chunks=(3, 2), dtype="f4")
    with pytest.raises(DataError, match="array x was made and never written"):
        DataSet.open(tmp_path / "a.zarr")
    zarr.open_group(tmp_path / "b.zarr", mode="w")
    with pytest.raises(DataError, match="is a Zarr store without arrays"):
        DataSet.open(tmp_path / "b.zarr")


def test_xarray(tmp_path):
    """A dataset of xarray, as a netCDF-4 file at an address is read."""
    stored = xarray.Dataset(
        {"x": (("row", "column"), X), "y": (("row",), Y), "mean": ((), 3.0)}, {"row": np.arange(ROWS)}
    )
    stored.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as given:
        assert arrays.is_xarray(given) and not arrays.is_xarray("a.nc")
        shard = DataSet.open(given, rows=slice(100, 300))
        np.testing.assert_array_equal(shard.data, X[100:300])
        np.testing.assert_array_equal(shard.labels, Y[100:300])
        with pytest.raises(DataError, match="mean is a single value, and has no rows"):
            DataSet.open(given, x="mean")
