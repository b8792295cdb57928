"""idx files and files of CIFAR: the ranks' rows are the file's, and what is wrong with a file is said on every rank."""

import gzip
import io
import pickle
import pickletools
import tarfile

import array_files
import numpy as np
import pytest
from array_checks import check_changes, check_damage, check_refused, check_shards
from hypothesis import given
from hypothesis import strategies as st

from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.formats import cifar, idx
from matex_tf.readers.safety import safe_pickle
from matex_tf.readers.tables.table import ReadOptions


def test_shards(bare_ranks, seven_ranks, tmp_path):
    """idx of every dtype, packed and not; CIFAR-10 of several files and three protocols, both labels of CIFAR-100."""
    check_shards(array_files.mnist_cifar(tmp_path), bare_ranks, seven_ranks)


def test_find(tmp_path):
    """The usual files are found, and what was looked for is said where they are not."""
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte, .*train-images.idx3-ubyte.gz.*Nothing is downloaded"
    ):
        idx.find(str(tmp_path), "train")
    for name in ("t10k-images.idx3-ubyte", "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes(b"x")
    images, labels = idx.find(str(tmp_path), "test")
    assert images.endswith("t10k-images.idx3-ubyte") and labels.endswith("t10k-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match="no 'holdout'"):
        idx.find(str(tmp_path), "holdout")
    with pytest.raises(DataError, match="is not a directory"):
        idx.find(str(tmp_path / "nowhere"), "train")
    with pytest.raises(DataError, match="data_batch_5.*unpack cifar-10-python.tar.gz"):
        cifar.find(str(tmp_path), "train")
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"x")
    with pytest.raises(DataError, match="Unpack .*cifar-100-python.tar.gz there"):
        cifar.find(str(tmp_path), "test", 100)
    inner = tmp_path / "cifar-10-batches-py"
    inner.mkdir()
    for number in range(1, 6):
        (inner / f"data_batch_{number}").write_bytes(b"x")
    for place in (tmp_path, inner):
        assert cifar.find(str(place), "train") == [str(inner / f"data_batch_{number}") for number in range(1, 6)]
    with pytest.raises(DataError, match="10 or 100"):
        cifar.find(str(tmp_path), "train", 20)


def test_refused(bare_ranks, tmp_path):
    """What is wrong with a file is said by name."""
    cases = {}
    image, label = array_files.rows("u1", 4, 4), np.arange(array_files.ROWS).astype("u1")
    good, good_labels = array_files.idx_bytes(image), array_files.idx_bytes(label)

    def case(name, words, images, labels=good_labels, wanted=None, format=None, named=None):
        place = tmp_path / name
        place.mkdir()
        path = str(place / "train-images-idx3-ubyte")
        for file, content in ((path, images), (path.replace("images-idx3", "labels-idx1"), labels)):
            if content is not None:
                with open(file, "wb") as out:
                    out.write(content)
        cases[name] = (([path], format, wanted or {}), [*words, named or path])

    packed = gzip.compress(good)
    case("missing", ["no such file"], None, format="MNIST")
    case("empty", ["is empty"], b"")
    case("cut", ["makes 864", "863"], good[:-1])
    case("long", ["makes 864", "865"], good + b"\0")
    case("cut header", ["in its header"], good[:10])
    case("text", ["not an idx file"], b"a,b\n1,2\n", format="idx")
    case("packed cut", ["cannot be"], packed[:-30])
    case("packed flipped", ["cannot be"], packed[:60] + bytes([packed[60] ^ 255]) + packed[61:])
    case("packed long", ["makes 864", "865"], gzip.compress(good + b"\0"))
    case("huge", ["damaged"], gzip.compress(good[:4] + b"\x7f" * 12 + good[16:]))
    case("no labels", ["train-labels-idx1-ubyte.gz", "y=False"], good, None)
    case("lengths", ["53 rows", "52"], good, array_files.idx_bytes(label[:-1]))
    case("labels cut", ["makes 61", "60"], good, array_files.idx_bytes(label)[:-1], named="train-labels-idx1-ubyte")
    case("single", ["not an idx file"], b"\0\0\x08\0\x01")
    case("named", ["'images'"], good, wanted={"x": "images"})

    class Evil:
        def __reduce__(self):
            return print, ("pwned",)

    content, _, _ = array_files.cifar_content(20)
    for name, what, words in (
        ("evil", Evil(), ["builtins.print", "__builtin__.print"]),
        ("evil inside", {**content, b"labels": Evil()}, ["print"]),
        ("list", [1, 2], ["a list"]),
        ("no data", {b"labels": [1]}, ["called data"]),
        ("narrow", {**content, b"data": np.zeros((20, 3), "u1")}, ["3072"]),
        ("floats", {**content, b"data": np.zeros((20, 3072), "f4")}, ["array of bytes"]),
        ("objects", {**content, b"data": np.array([{}], object)}, ["cifar"]),
        ("no labels at all", {b"data": content[b"data"]}, ["no labels"]),
        ("few labels", {**content, b"labels": [1]}, ["20 images and 1 labels"]),
        ("high labels", {**content, b"labels": [1000] * 20}, ["1000"]),
        ("words", {**content, b"labels": ["cat"] * 20}, ["whole numbers"]),
    ):
        path = tmp_path / f"{name}.cifar"
        path.write_bytes(pickle.dumps(what, 2))
        words = [word for word in words if word != "builtins.print"] if name == "evil" else words
        cases[name] = (([str(path)], "CIFAR10", {}), [*words, str(path)])
    raw = pickle.dumps(content, 2)
    path = tmp_path / "cut.cifar"
    path.write_bytes(raw[:-100])
    cases["cifar cut"] = (([str(path)], None, {}), ["not a file of CIFAR", str(path)])
    for name, mode in (("cifar.tar", "w"), ("cifar.tar.gz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as archive:
            archive.add(path, "data_batch_1")
        cases[name] = (([str(tmp_path / name)], None, {}), ["tar archive", str(tmp_path / name)])
    check_refused(cases, bare_ranks)


def test_changed_since_it_was_opened(bare_ranks, tmp_path):
    """A file that became another between opening and reading."""

    def write(directory):
        directory.mkdir()
        array_files.mnist_cifar(directory)
        return [str(directory / "mnist0False" / "train-images-idx3-ubyte"), str(directory / "data_batch_2_0")]

    check_changes(write, bare_ranks, tmp_path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_was_written(protocol):
    """Arrays of numbers in any order, and what else a dict can hold."""
    content = {
        "c": np.arange(6.0).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        "none": np.zeros((0, 3), "u1"),
        "list": [1, -2, 2**70, 1.5, None, True, "wört", ["inner", (1, 2)]],
    }
    got = safe_pickle.load(pickle.dumps(content, protocol))
    assert got["list"] == content["list"]
    for name in ("c", "fortran", "none"):
        assert got[name].dtype == content[name].dtype and np.array_equal(got[name], content[name])


def test_a_pickle_that_asks_for_memory():
    """Sizes that a file cannot have are found before memory is asked for."""
    for program in (
        b"\x80\x02}r\xff\xff\xff\xffq\x00.",  # remember at place 4,294,967,295
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x8a\x08"
        + b"\0" * 7
        + b"\x40\x85C\x01b\x87R.",
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f" + b"abc.",
    ):
        with pytest.raises(DataError):
            safe_pickle.load(program)


@given(st.lists(st.sampled_from(list(pickletools.opcodes)), max_size=12), st.binary(max_size=30))
def test_any_program(opcodes, rest):
    """A pickle of any instructions ends in a dict or in a DataError."""
    program = b"".join(opcode.code.encode("latin1") + rest[:4] for opcode in opcodes) + rest
    with pytest.raises(DataError):
        safe_pickle.load(program + b"!")


def test_flips_of_a_pickle():
    """Every flip of a small pickle ends in a dict or in a DataError."""
    whole = pickle.dumps({b"data": np.arange(12, dtype="u1").reshape(3, 4), b"labels": [1, 2, 3]}, 2)
    outcomes = set()
    for place in range(len(whole)):
        for flip in (1, 4, 32, 128, 255):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            try:
                outcomes.add(type(safe_pickle.load(bytes(damaged))))
            except DataError as error:
                outcomes.add(type(error))
    assert outcomes == {dict, DataError}


def test_only_what_is_read(tmp_path):
    """A packed file is unpacked piece by piece: rows at its end are those."""
    rows = (np.arange(20 << 20) // 999 % 251).astype("u1").reshape(40, 512, 1024)
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb", compresslevel=1) as file:
        file.write(array_files.idx_bytes(rows))
    path = tmp_path / "pictures.gz"
    path.write_bytes(buffer.getvalue())
    table = idx.open([str(path)], ReadOptions(), World())
    for start, stop in ((0, 1), (17, 19), (39, 40), (0, 40)):
        np.testing.assert_array_equal(table.read(start, stop)[0], rows[start:stop])


def test_damage(tmp_path):
    """Cuts and flips of bytes end in rows or in a DataError."""
    check_damage("mnist_cifar", 2, tmp_path)
