"""NumPy's files: the ranks' rows are the file's, and what is wrong with a file is said on every rank."""

import zipfile
import zlib

import array_files
import numpy as np
from array_checks import check_bytes, check_changes, check_damage, check_refused, check_shards
from array_files import Sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from matex_tf.core.world import World
from matex_tf.readers.formats import registry
from matex_tf.readers.safety import checksum
from matex_tf.readers.tables.table import ReadOptions


def test_shards(bare_ranks, seven_ranks, tmp_path):
    """Both orders, every dtype; members of .npz packed and not."""
    samples = array_files.numpy(tmp_path)
    np.save(tmp_path / "first.npy", np.arange(40.0))
    np.save(tmp_path / "second.npy", np.arange(40.0, 53.0))
    np.save(tmp_path / "first_y.npy", np.arange(40))
    np.save(tmp_path / "second_y.npy", np.arange(40, 53))
    paths = [str(tmp_path / "first.npy"), str(tmp_path / "second.npy")]
    labels = {"y": ["first_y.npy", "second_y.npy"]}
    samples.append(Sample("several", paths, np.arange(53.0), np.arange(53), labels))
    check_shards(samples, bare_ranks, seven_ranks)


def test_refused(bare_ranks, tmp_path):
    """What is wrong with a file, or with what is asked of it, is said by name."""
    cases = {}
    x, y = array_files.rows("f4", 3), np.arange(array_files.ROWS)

    def case(name, words, wanted=None, format=None):
        path = str(tmp_path / name)
        cases[f"{name} {wanted}"] = (([path], format, wanted or {}), [*words, path])

    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "short.npy", y[:-1])
    np.save(tmp_path / "objects.npy", np.array([{}, None], object))
    np.save(tmp_path / "fields.npy", np.zeros(3, [("one", "f4"), ("two", "i4")]))
    np.save(tmp_path / "single.npy", np.float32(1))
    np.save(tmp_path / "none.npy", x[:0])
    np.savez(tmp_path / "named.npz", a=x, b=y, objects=np.array([{}, None], object))
    np.savez(tmp_path / "lengths.npz", x=x, y=y[:-1])
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-1])
    (tmp_path / "long.npy").write_bytes(whole + b"\0")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("a,b\n1,2\n")
    (tmp_path / "old.npy").write_bytes(whole[:6] + b"\x09" + whole[7:])
    (tmp_path / "cut.npz").write_bytes((tmp_path / "named.npz").read_bytes()[:-30])
    np.savez_compressed(tmp_path / "flip.npz", x=x, y=y)
    damaged = bytearray((tmp_path / "flip.npz").read_bytes())
    damaged[400] ^= 255
    (tmp_path / "flip.npz").write_bytes(damaged)
    np.savez(tmp_path / "flip_plain.npz", x=x, y=y)
    np.savez(tmp_path / "flip_of_labels.npz", x=x, y=y)
    plain = bytearray((tmp_path / "flip_plain.npz").read_bytes())
    for name, array, row in (("flip_plain", x, 50), ("flip_of_labels", y, 3)):
        damaged = bytearray(plain)
        damaged[plain.index(array.tobytes()) + row * array[0].nbytes] ^= 1
        (tmp_path / f"{name}.npz").write_bytes(damaged)
    renamed = plain[: plain.rindex(b"y.npy")] + b"y.npi" + plain[plain.rindex(b"y.npy") + 5 :]
    (tmp_path / "flip_of_name.npz").write_bytes(renamed)
    lost = bytearray(plain)
    place = plain.index(b"PK\x01\x02")  # of the first member in the directory, whose comment swallows the second
    lost[place + 32 : place + 34] = (plain.rindex(b"PK\x05\x06") - plain.rindex(b"PK\x01\x02")).to_bytes(2, "little")
    (tmp_path / "lost.npz").write_bytes(lost)
    with zipfile.ZipFile(tmp_path / "photos.npz", "w") as archive:
        archive.writestr("photo.png", b"png")
    case("missing.npy", ["no such file"], format="NPY")
    case("x.npy", ["no such file", "gone.npy"], {"y": "gone.npy"})
    cases["x.npy {'y': 'gone.npy'}"][1].pop()  # the message is about the other file
    case("x.npy", ["without a name", "'data'"], {"x": "data"})
    case("x.npy", ["53 rows", "52"], {"y": "short.npy"})
    case("objects.npy", ["Python objects"])
    case("fields.npy", ["each field"])
    case("single.npy", ["single value"])
    case("none.npy", ["no rows"])
    case("named.npz", ["'depth'", "a, b, objects"], {"x": "depth"})
    case("named.npz", ["Python objects"], {"x": "objects"})
    case("named.npz", ["x=", "a, b, objects"])
    case("lengths.npz", ["x has 53 rows", "y has 52"])
    case("cut.npy", ["makes"])
    case("long.npy", ["makes"])
    case("empty.npy", ["is empty"])
    case("text.npy", ["not a .npy file"], format="numpy")
    case("old.npy", ["version 9.0"])
    case("cut.npz", ["cannot be read as .npz"])
    case("flip.npz", ["CRC"])
    case("lost.npz", ["has 1 members, and 2 were written"])
    case("flip_of_name.npz", ["'y.npi' is not where the directory of the file says"])
    case("flip_plain.npz", ["array x is damaged: its checksum (CRC-32) is"])
    case("flip_of_labels.npz", ["array y is damaged: its checksum (CRC-32) is"])
    case("photos.npz", ["no array at all"])
    check_refused(cases, bare_ranks)


def test_changed_since_it_was_opened(bare_ranks, tmp_path):
    """A file that became another between opening and reading."""

    def write(directory):
        directory.mkdir()
        array_files.numpy(directory)
        return [str(directory / name) for name in ("c.npy", "fortran.npy", "stored.npz", "packed.npz")]

    check_changes(write, bare_ranks, tmp_path)


def test_bytes_read(bare_ranks, tmp_path):
    """A rank reads its part of an array that is not packed, in either order; an .npz file once more."""
    x = array_files.rows("f4", 20, 5, count=50_000)
    np.save(tmp_path / "c.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    np.savez(tmp_path / "stored.npz", x=x, y=np.arange(50_000))
    samples = [Sample(name, [str(tmp_path / name)], x, None) for name in ("c.npy", "fortran.npy")]
    np.save(tmp_path / "small.npy", x[:9])
    small = [Sample("small", [str(tmp_path / "small.npy")], x[:9], None)]
    check_bytes(samples, small, bare_ranks)
    check_bytes([Sample("stored.npz", [str(tmp_path / "stored.npz")], x, None)], small, bare_ranks, times=2)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_checksums_of_parts(content, cuts):
    """Joined they are that of the whole."""
    ends = sorted(min(cut, len(content)) for cut in cuts)
    total = 0
    for low, high in zip([0, *ends], [*ends, len(content)], strict=True):
        total = checksum.joined(total, zlib.crc32(content[low:high]), high - low)
    assert total == zlib.crc32(content)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    x=arrays.arrays(
        arrays.scalar_dtypes().filter(lambda dtype: dtype.itemsize <= 16), arrays.array_shapes(min_dims=1, max_dims=4)
    ),
    how=st.sampled_from(["npy", "fortran", "stored", "packed"]),
    data=st.data(),
)
def test_what_was_written(tmp_path, x, how, data):
    """Any array is read back, and any range of it."""
    path = tmp_path / ("any.npy" if how in ("npy", "fortran") else "any.npz")
    if path.suffix == ".npy":
        np.save(path, np.asfortranarray(x) if how == "fortran" else x)
    else:
        {"stored": np.savez, "packed": np.savez_compressed}[how](path, x=x)
    table = registry.open_table([str(path)], None, ReadOptions(), World())
    start = data.draw(st.integers(0, len(x)))
    stop = data.draw(st.integers(start, len(x)))
    got, labels = table.read(start, stop)
    assert labels is None
    expected = x.astype("f8") if x.dtype.char in "gG" and x.dtype.kind == "f" else x
    np.testing.assert_array_equal(got, expected[start:stop])


def test_damage(tmp_path):
    """Cuts and flips of bytes end in rows or in a DataError."""
    check_damage("numpy", 2, tmp_path)
