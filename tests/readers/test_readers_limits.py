"""What a file may cost: memory, disk and time grow with its bytes, and messages are short."""

import bz2
import cProfile
import gc
import gzip
import lzma
import os
import pstats
import subprocess
import sys
import tempfile
import tracemalloc

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_files import idx_bytes
from there import case
from threads import on_threads

from matex_tf import DataSet, settings
from matex_tf.core.world import World
from matex_tf.errors import MESSAGE_LENGTH, DataError, listed, quoted, shortened
from matex_tf.readers.formats import registry
from matex_tf.readers.formats.csv import source as csv_source
from matex_tf.readers.safety import limits
from matex_tf.readers.tables.table import ReadOptions
from matex_tf.settings import Settings
from tests.support.cases.tables import SMALL, sizes


def read(path, ranks=1, **wanted):
    """What a rank reads of a file; or the message with which all ranks refuse it."""

    def one(world):
        table = registry.open_table([str(path)], None, ReadOptions(**wanted), world)
        return table.read(0, table.rows)

    results = on_threads(ranks, one) if ranks > 1 else [_outcome(lambda: one(World()))]
    if isinstance(results[0], DataError):
        assert all(isinstance(result, DataError) for result in results), results
        return str(results[0])
    assert not any(isinstance(result, Exception) for result in results), results
    return results[0]


def _outcome(function):
    try:
        return function()
    except DataError as error:
        return error


@pytest.fixture
def small_limits(monkeypatch):
    """Lines of a megabyte, and packed files that may become a megabyte in any case."""
    before = settings.use(Settings(csv_line_mb=1))
    monkeypatch.setattr(limits, "ALWAYS_BYTES", 1 << 20)
    yield
    settings.use(before)


def wide(path, columns, words=False):
    rows = [",".join(f"{(7 * i + r) % 1000 / 8}" for i in range(columns - 1)) for r in range(2)]
    names = ",".join(f"name{i}" for i in range(columns))
    path.write_text(f"{names}\n{rows[0]},{'x' if words else 1}\n{rows[1]},{'y' if words else 2}\n")
    return path


@pytest.mark.parametrize("format", ["csv", case("parquet", "parquet")])
def test_the_cost_of_columns_grows_with_their_number(tmp_path, format):
    """Ten times as many columns make ten times as many calls, and not a hundred times."""
    calls = []
    for columns in (2000, 200, 2000, 20_000):  # the first imports what is needed
        path = wide(tmp_path / f"{columns}.csv", columns)
        if format == "parquet":
            names = [f"name{i}" for i in range(columns)]
            pq.write_table(pa.table({name: np.arange(2.0) for name in names}), path)
        profile = cProfile.Profile()
        x, y = profile.runcall(read, path)
        assert x.shape == (2, columns - 1) and y.shape == (2,)
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[3] < 12 * calls[2], calls


@pytest.mark.parametrize("header", [True, False])
def test_very_many_columns(tmp_path, header):
    """They are what few columns are: quotes, missing numbers, chosen columns, labels in words, blank lines."""
    count = 1500
    numbers = np.random.default_rng(0).integers(-9, 9, (7, count)).astype(float)
    numbers[2, 5] = numbers[6, 0] = np.nan
    lines = [",".join("" if np.isnan(v) else f'"{v}"' if v == 3 else f"{v:g}" for v in row) for row in numbers]
    lines = [f'{line},"a, {number}\n""b"""' for number, line in enumerate(lines)]
    names = ",".join([*(f"n{i}" for i in range(count)), "y"])
    text = ("\r\n \t\n".join([names, *lines] if header else lines) + "\n").encode()
    (tmp_path / "wide.csv").write_bytes(text)
    labels = [f'a, {number}\n"b"' for number in range(7)]
    with sizes(**SMALL):
        for ranks in (1, 3):
            x, y = read(tmp_path / "wide.csv", ranks, header=header)
            np.testing.assert_array_equal(x, numbers.astype("f4"))
            assert y.tolist() == labels and x.dtype == np.float32
            x, y = read(tmp_path / "wide.csv", ranks, header=header, x=[9, 3, 3], y=[4, 7])
            np.testing.assert_array_equal(x, numbers[:, [9, 3, 3]])
            np.testing.assert_array_equal(y, numbers[:, [4, 7]])
            message = read(tmp_path / "wide.csv", ranks, header=header, x=[9, -1], y=False)
            assert "data row 1: column" in message and "'a, 0\\n\"b\"', which is not a number" in message
        integers = read(tmp_path / "wide.csv", header=header, x=range(10, 20), y=False, dtype=np.dtype("i2"))[0]
        np.testing.assert_array_equal(integers, numbers[:, 10:20])
        assert integers.dtype == np.int16
        message = read(tmp_path / "wide.csv", header=header, x=[5], y=False, dtype=np.dtype("i2"))
        assert "data row 3" in message and "not of type int16" in message
    lines[4] = lines[4].replace(",", ",,", 1)
    (tmp_path / "wide.csv").write_bytes(("\n".join(lines) + "\n").encode())
    assert "data row 5 has 1502 fields, and 1501 were expected" in read(tmp_path / "wide.csv", header=False)


LONG = {
    "the first line": b"1,2," + b"3" * (8 << 20) + b"\n1,2,3\n",
    "one line": b"x" * (8 << 20),
    "a later line": b"1,2,3\n" * 99 + b"1,2," + b"x" * (8 << 20) + b"\n" + b"1,2,3\n" * 99,
    "the last line": b"1,2,3\n" * 99 + b"1,2," + b"x" * (8 << 20),
    "a row of many lines": b"1,2,3\n" * 99 + b'1,2,"' + b"some words\n" * (5 << 17) + b'"\n' + b"1,2,3\n" * 99,
    "a quote that is never closed": b'1,2,"' + b"some words\n" * (5 << 17),
}


@pytest.mark.parametrize("name", LONG)
def test_a_line_that_is_too_long(small_limits, tmp_path, name):
    """It is refused before it is taken apart, and the message names the setting."""
    path = tmp_path / "long.csv"
    path.write_bytes(LONG[name])
    read(path, header=False)  # imports take memory too
    for ranks in (1, 3):
        with sizes(block=1 << 18):
            tracemalloc.start()
            message = read(path, ranks, header=False, delimiter=",")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert str(path) in message and "--csv-line-mb" in message and "the most is 1 MB" in message, message
        assert peak < 2 * len(LONG[name]) + (4 << 20), (ranks, peak)  # the text itself, and little besides


def test_lines_that_end_with_cr(small_limits, tmp_path):
    """A file of them has no line that is too long, however long it is."""
    path = tmp_path / "cr.csv"
    path.write_bytes(b"1,2\r" * (1 << 19))
    with sizes(block=1 << 16):
        assert read(path)[0].shape == (1 << 19, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gzip_file_that_unpacks_to_far_too_much(small_limits, monkeypatch, tmp_path, ranks):
    """Refused by its own name, and nothing of it is left on the disk."""
    path, temporary = tmp_path / "bomb.csv.gz", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path.write_bytes(gzip.compress(b"1,2\n" * (3 << 20)))
    with sizes(keep=1 << 16):
        message = read(path, ranks)
    assert f"{path} has {path.stat().st_size} bytes and unpacks to more than" in message and "--unpack-ratio" in message
    assert not list(temporary.iterdir())
    assert not [target for target in _open_files() if str(temporary) in target]
    settings.use(Settings(unpack_ratio=10_000))
    assert read(path)[0].shape == (3 << 20, 1)


def test_packed_arrays_that_unpack_to_far_too_much(small_limits, tmp_path):
    """Refused before they are unpacked, also where they are labels."""
    large = np.zeros((3 << 20, 1), "u1")
    (tmp_path / "a.idx.gz").write_bytes(gzip.compress(idx_bytes(large)))
    np.savez_compressed(tmp_path / "x.npz", x=large, other=large[:9])
    np.savez_compressed(tmp_path / "y.npz", x=np.arange(3 << 20), y=large)
    for name, wanted in (("a.idx.gz", {}), ("x.npz", {"x": "x", "y": False}), ("y.npz", {})):
        for ranks in (1, 2):
            message = read(tmp_path / name, ranks, **wanted)
            assert f"{tmp_path / name} has " in message and "--unpack-ratio" in message, message
    assert read(tmp_path / "x.npz", x="other", y=False)[0].shape == (9, 1)
    settings.use(Settings(unpack_ratio=10_000))
    assert read(tmp_path / "a.idx.gz")[0].shape == read(tmp_path / "x.npz", x="x", y=False)[0].shape == large.shape


def test_one_hot_vectors_without_room(monkeypatch, tmp_path):
    """A class for each of very many words: what to do is said, and not only that memory is gone."""
    path = tmp_path / "words.csv"
    path.write_text("a,y\n" + "".join(f"{row},word {row}\n" for row in range(2000)))
    assert DataSet.open(path, one_hot=True).labels.shape == (2000, 2000)  # what is imported asks the system too
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 11)  # a machine with 4 MB
    with pytest.raises(DataError, match=r"vectors of 2000 numbers.*15 MB of memory.*np.searchsorted"):
        DataSet.open(path, one_hot=True).labels  # noqa: B018
    assert len(DataSet.open(path).labels) == 2000


def _open_files():
    gc.collect()  # an error keeps what was open where it was raised
    return [
        os.readlink(f"/proc/self/fd/{number}")
        for number in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{number}")
    ]


def test_no_room_for_what_is_unpacked(monkeypatch, tmp_path):
    """The message names the packed file, and TMPDIR; some of the disk is left free."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 9000))
    monkeypatch.setattr(csv_source, "_LEFT_FREE", 1 << 62)
    with sizes(keep=1 << 14):
        message = read(tmp_path / "a.csv.gz")
    assert f"{tmp_path / 'a.csv.gz'} has been unpacked to" in message and "set TMPDIR" in message


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_packed_by_something_else(tmp_path, pack):
    """It says by what."""
    (tmp_path / "a.csv.x").write_bytes(pack(b"a,b\n1,2\n"))
    assert "only gzip is unpacked here: unpack it first" in read(tmp_path / "a.csv.x")


def test_sizes_that_are_only_claimed(tmp_path):
    """Shapes of petabytes: refused before memory is asked for."""
    np.save(tmp_path / "a.npy", np.zeros((4, 4)))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(4, 4), }" + b" " * 12, b"(4000000000000, 4), }"))
    assert "its header, float64 of shape (4000000000000, 4)" in read(tmp_path / "a.npy")
    header = idx_bytes(np.zeros((2, 3), "u1"))[:4] + np.array([1 << 31, 1 << 31], ">u4").tobytes()
    (tmp_path / "a.idx").write_bytes(header)
    assert "makes" in read(tmp_path / "a.idx")
    (tmp_path / "b.gz").write_bytes(gzip.compress(header))
    assert "is damaged" in read(tmp_path / "b.gz")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(1 << 48, 9), chunks=(1, 9), dtype="f8")[0] = 1
    assert "is damaged: dataset x would have 281474976710656 rows" in read(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((1 << 28,))
        plist.set_deflate(1)
        space = h5py.h5s.create_simple((9,), (h5py.h5s.UNLIMITED,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plist).write_direct_chunk((0,), b"nothing")
    assert "its chunks would have 2147483648 bytes each" in read(tmp_path / "b.h5", x="x", y=False)


NASTY = "n" * 500_000 + "\x1b[2J\x07"


def test_messages_are_short(tmp_path):
    """Names and values of half a million characters, and what a terminal would obey, do not come through."""
    csv = tmp_path / "a.csv"
    csv.write_text(f"{NASTY},b\n{NASTY},1\n2,3\n")
    words = tmp_path / "b.csv"
    words.write_text(f"a,b\n1,x\n2,{NASTY}\n3,{NASTY}2\n")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(40):
            file[f"g{number}/{NASTY[:1000]}\x1b[2J"] = np.zeros(3)
    np.savez(tmp_path / "a.npz", **{NASTY[:60_000]: np.zeros(3), "b": np.zeros(4)})
    pq.write_table(pa.table({NASTY: ["a", "b"], "y": [1, 2]}), tmp_path / "a.parquet")
    messages = [
        read(csv, header=True), read(csv, header=True, x="b" * 500_000), read(csv, header=True, y=["b"] * 90_000),
        read(csv, header=True, delimiter=";" * 500_000), read(words, x="b"), read(words, y="a", dtype=np.dtype("i4")),
        read(tmp_path / "a.h5"), read(tmp_path / "a.h5", x=f"g1/{NASTY[:1000]}\x1b[2J", y="c"),
        read(tmp_path / "a.npz"), read(tmp_path / "a.npz", x="z" * 500_000), read(tmp_path / "a.parquet"),
        read(tmp_path / ("p" * 200)),
    ]  # fmt: skip
    for message in messages:
        assert isinstance(message, str), message
        assert 20 < len(message) <= MESSAGE_LENGTH and message.isprintable(), message


ESC = "\x1b]0;title\x07\x9b2J\n\u202ematex_tf: all is well"


@pytest.mark.parametrize("kind", ["csv", case("parquet", "parquet"), "npz", "hdf5", "netcdf"])
def test_names_that_a_terminal_would_obey(capfd, tmp_path, kind):
    """Names of files, directories, groups, datasets and columns are shown as Python writes them."""
    folder = tmp_path / ESC
    folder.mkdir()
    path = folder / f"{ESC} \udcff data" if kind in ("csv", "npz") else folder / f"{ESC} data"
    x, y = np.zeros((3, 2)), np.array([1, 2, 3])
    if kind == "csv":
        path.write_text(f'"{ESC}",b\n1,2\n,4\n')
    elif kind == "parquet":
        pq.write_table(pa.table({ESC: [1.0, None], "b": [1, 2]}), path)
    elif kind == "npz":
        with open(path, "wb") as file:
            np.savez(file, **{f"{ESC}x": x, "y": y})
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            file[f"{ESC}/x"], file[f"{ESC}/y"] = x, y
    else:
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("row", 3)
            file.createGroup("g\u202e").createVariable("x", "i2", ("row",))[:] = y
            file["g\u202e"]["x"].setncattr("valid_max", 1e9)
    wanted = {"npz": {"x": f"{ESC}x", "y": "y"}, "netcdf": {"x": "g\u202e/x", "y": False}}.get(kind, {})
    assert len(DataSet.open(path, **wanted).data) > 1
    with pytest.raises(DataError) as refused:
        DataSet.open(path, x="nothing\x1b")
    said = capfd.readouterr().err
    for text in (said, str(refused.value)):
        assert text and all(line.isprintable() for line in text.split("\n")), text
    assert "nothing\\x1b" in str(refused.value)
    assert all(line.startswith("matex_tf: ") for line in said.splitlines())


def test_how_messages_are_shortened():
    """The beginning and the end of a text stay; a list says how many more there are."""
    assert shortened("short") == "short" and quoted("short") == "'short'"
    assert (
        len(shortened("x" * 99)) == 80
        and shortened("a" * 99 + "b").startswith("aaa")
        and shortened("a" * 99 + "b")[-1] == "b"
    )
    assert quoted("y" * 99) == f"'{'y' * 60}'… (99 characters)" and len(quoted(list(range(999)))) == 80
    assert (
        listed("abc") == "a, b, c"
        and listed(map(str, range(1000))).endswith(" more")
        and len(listed(["x" * 99] * 9)) < 500
    )
    assert str(DataError("a\x1b[31mb\nc")) == "a\\x1b[31mb\nc"


def test_a_pipe(tmp_path):
    """Nobody waits for it."""
    os.mkfifo(tmp_path / "a.csv")
    assert "is a pipe" in read(tmp_path / "a.csv")


def test_formats_are_light():
    """To ask every format whether it knows a file imports none of the libraries that open files."""
    code = (
        "import sys; from matex_tf.readers.formats import registry\n"
        "assert registry.by_content(sys.argv[1]).name == 'csv'\n"
        "print([name for name in ('pandas', 'pyarrow', 'h5py', 'netCDF4', 'tensorflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
