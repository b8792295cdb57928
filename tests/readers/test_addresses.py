"""Files at addresses: a rank reads 1/p of the bytes, the rows are those of the file, what is wrong is named."""

import importlib
import sys

import h5py
import netCDF4
import numpy as np
import pandas as pd
import pytest
from there import case, needs
from threads import on_threads
from web import serving

from matex_tf import DataSet
from matex_tf.core.world import World
from matex_tf.errors import DataError, MissingPackage
from matex_tf.readers.formats import registry
from matex_tf.readers.places import addresses
from matex_tf.readers.tables.table import ReadOptions
from tests.support.cases import addresses as cases

ROWS, COLUMNS = 20_000, 12
X = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
Y = np.arange(ROWS) % 7


@pytest.fixture
def web(tmp_path):
    with serving(tmp_path) as server:
        yield server


def frame(rows=slice(None)):
    table = pd.DataFrame(X[rows], columns=[f"c{i}" for i in range(COLUMNS)])
    return table.assign(label=Y[rows])


def write(format, folder):
    """A file of X and Y; the name for a reader, and what is wanted of it."""
    if format == "csv":
        frame().to_csv(folder / "a.csv", index=False)
        return "a.csv", {}
    if format == "parquet":
        frame().to_parquet(folder / "a.parquet", row_group_size=ROWS // 50, compression="none")
        return "a.parquet", {}
    if format == "npz":
        np.savez(folder / "a.npz", x=X, y=Y)
        return "a.npz", {}
    if format == "classic":
        with netCDF4.Dataset(folder / "a.nc", "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("row", ROWS)
            file.createDimension("column", COLUMNS)
            file.createVariable("x", "f4", ("row", "column"))[:] = X
            file.createVariable("y", "i4", ("row",))[:] = Y
        return "a.nc", {}
    with h5py.File(folder / "a.h5", "w") as file:
        chunks = {"chunks": (ROWS // 40, COLUMNS), "compression": "gzip"} if format == "hdf5-gzip" else {}
        file.create_dataset("x", data=X, **chunks)
        file["y"] = Y
    return "a.h5", {}


@pytest.mark.parametrize("format", ["csv", case("parquet", "parquet"), "npz", "classic", "hdf5", "hdf5-gzip"])
def test_a_rank_reads_its_part(bare_ranks, tmp_path, web, format):
    name, wanted = write(format, tmp_path)
    length = (tmp_path / name).stat().st_size
    for size, shares in bare_ranks(cases.share, (1, 3), meets="", path=f"{web.address}/{name}", wanted=wanted).items():
        np.testing.assert_allclose(np.concatenate([x for x, _, _ in shares]), X, rtol=1e-6, err_msg=str(size))
        np.testing.assert_array_equal(np.concatenate([y for _, y, _ in shares]), Y)
        twice = 2 if format == "npz" else 1  # the checksum of a member is of all its bytes, of which a rank sums a part
        assert max(asked for _, _, asked in shares) < twice * length / size + length / 8 + 300_000
        assert sum(asked for _, _, asked in shares) >= (length if format != "hdf5-gzip" else length / 2)
    assert web.sent > 0


@needs("parquet")
def test_small_reads_are_few(tmp_path, web):
    """What is not a rank's own: the head of the file, and for Parquet its end."""
    write("parquet", tmp_path)
    length = (tmp_path / "a.parquet").stat().st_size
    table = registry.open_table([f"{web.address}/a.parquet"], None, ReadOptions(), World())
    opened, web.sent = web.sent, 0
    table.read(0, ROWS // 50)
    assert opened < length / 3
    assert web.sent < length / 10


def opened(address, ranks=1, **wanted):
    """The message with which all ranks refuse it."""
    results = on_threads(ranks, lambda world: registry.open_table([address], None, ReadOptions(**wanted), world))
    assert len({str(result) for result in results}) == 1 and isinstance(results[0], Exception), results
    return results[0]


def test_nothing_is_there(web):
    assert str(opened(f"{web.address}/gone.csv", 3)).endswith(
        "gone.csv cannot be read: there is nothing at this address."
    )


def test_no_server():
    assert "http://127.0.0.1:9/a.csv cannot be read: Cannot connect to host" in str(opened("http://127.0.0.1:9/a.csv"))


def test_a_server_without_ranges(tmp_path, web):
    """It would send everything to every rank: it is found before much of a file has come."""
    web.ranges = False
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 1_000_000)
    message = str(opened(f"{web.address}/a.csv"))
    assert "a.csv cannot be read in parts: its server sends the whole file" in message
    assert "Download it once" in message


def test_a_file_that_changes(tmp_path, web):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000)
    table = registry.open_table([f"{web.address}/a.csv"], None, ReadOptions(), World())
    table.read(0, 1000)
    path.write_text("a,b\n" + "1,2\n" * 900)
    with pytest.raises(DataError, match=r"a\.csv changed while it was read"):
        table.read(0, 1000)


@pytest.mark.parametrize(
    "address, lacking, words",
    [
        ("https://host/a.csv", "fsspec.core", "is read with fsspec, which cannot be imported"),
        ("s3://bucket/a.csv", "s3fs", "pip install s3fs"),
        ("gs://bucket/a.csv", "gcsfs", "pip install gcsfs"),
    ],
)
def test_packages_that_are_not_there(monkeypatch, address, lacking, words):
    importlib.import_module("fsspec.core")
    monkeypatch.setitem(sys.modules, lacking, None)
    error = opened(address)
    assert isinstance(error, MissingPackage) and words in str(error)


def test_no_such_protocol():
    assert "nowhere://a.csv cannot be read: Protocol not known: nowhere" in str(opened("nowhere://a.csv"))


def test_formats_of_disks(tmp_path, web):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("row", 3)
        file.createVariable("x", "f4", ("row",))[:] = 1
    assert 'open it with xarray (engine="h5netcdf")' in str(opened(f"{web.address}/a.nc"))


def test_patterns_and_directories():
    """Of a store, not of the web: `?` begins a query there."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for part in range(3):
        memory.pipe(f"/many/part-{part}.csv", frame(slice(part * 10, part * 10 + 10)).to_csv(index=False).encode())
    memory.pipe("/many/_SUCCESS", b"")
    for path in ("memory://many/part-*.csv", "memory://many/", "memory://many"):
        assert addresses.expand(path) == [f"memory:///many/part-{part}.csv" for part in range(3)]
        x, y = DataSet.open(path)
        np.testing.assert_allclose(x, X[:30], rtol=1e-6)
    assert addresses.expand("https://host/a?b=c") == ["https://host/a?b=c"]
    with pytest.raises(DataError, match="no file matches memory://many/other"):
        addresses.expand("memory://many/other*")


@needs("parquet")
def test_many_parquet_files(tmp_path):
    """A directory of them is one table; those of its directories are named by a pattern."""
    for part in range(4):
        rows = slice(part * ROWS // 4, (part + 1) * ROWS // 4)
        folder = tmp_path / f"year={2000 + part}"
        folder.mkdir()
        frame(rows).to_parquet(folder / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    x, y = DataSet.open(str(tmp_path / "**" / "*.parquet"))
    np.testing.assert_allclose(x, X, rtol=1e-6)
    with pytest.raises(DataError, match=r"by a pattern, .*\*\*.* \(year of their names is no column then\)"):
        DataSet.open(tmp_path)


def test_s3(monkeypatch):
    """A bucket of a server of its own, by s3fs."""
    pytest.importorskip("s3fs", reason="pip install s3fs 'moto[server]'")
    moto = pytest.importorskip("moto.server", reason="pip install s3fs 'moto[server]'")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        import s3fs

        store = s3fs.S3FileSystem()
        store.mkdir("bucket")
        for part in range(2):
            store.pipe(f"bucket/part-{part}.csv", frame(slice(part * 50, part * 50 + 50)).to_csv(index=False).encode())
        paths = addresses.expand("s3://bucket/*.csv")
        results = on_threads(2, lambda world: registry.open_table(paths, None, ReadOptions(), world).read(0, 100))
        np.testing.assert_allclose(results[1][0], X[:100], rtol=1e-6)
        assert "there is nothing at this address" in str(opened("s3://bucket/gone.csv"))
    finally:
        server.stop()
