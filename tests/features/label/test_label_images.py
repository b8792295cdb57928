"""Images: every source, damaged and hostile ones; which are asked about; and what is exported."""

import io
import os
import struct
import threading
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from PIL import Image

from matex_tf.errors import DataError
from matex_tf.features.label import boundary, export, pixels
from matex_tf.features.label.board import Board
from matex_tf.features.label.images import open_images
from matex_tf.features.label.rounds import Result, Task, begin, held_out, read, read_array, read_log
from matex_tf.features.label.store import Store
from matex_tf.features.label.training import Plan, Training
from matex_tf.readers import DataSet

RANDOM = np.random.default_rng(0)


def picture(path, size=(12, 10), mode="RGB"):
    Image.fromarray(RANDOM.integers(0, 255, (*size, 3), np.uint8)).convert(mode).save(path)


def test_a_directory(tmp_path):
    """Files below it, by their paths; of any kind and mode; links that lead out of it are refused."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / ".hidden").mkdir()
    outside = tmp_path / "secret.png"
    picture(outside)
    modes = {"a.png": "RGB", "b.JPG": "L", "c.tif": "RGB", "d.gif": "P", "e.png": "RGBA", "f.bmp": "1"}
    for name, mode in modes.items():
        picture(tmp_path / "in" / name, mode=mode)
    picture(tmp_path / "in" / ".hidden" / "x.png")
    (tmp_path / "in" / "notes.txt").write_text("no image")
    os.symlink(outside, tmp_path / "in" / "link.png")
    os.mkfifo(tmp_path / "in" / "pipe.png")
    images = open_images(str(tmp_path / "in"))
    assert images.names == ["a.png", "b.JPG", "c.tif", "d.gif", "e.png", "f.bmp", "link.png", "pipe.png"]
    for number in range(6):
        assert images.numbers(number, 8).shape[:2] == (8, 8)
        assert Image.open(io.BytesIO(pixels.png(images.picture(number), 64))).format == "PNG"
    with pytest.raises(DataError, match="link.png is a link that leads out"):
        images.picture(6)
    with pytest.raises(DataError, match="pipe.png is not a plain file"):
        images.picture(7)
    with pytest.raises(DataError, match="no image below"):
        (tmp_path / "empty").mkdir()
        open_images(str(tmp_path / "empty"))


def test_arrays(tmp_path):
    """HDF5, .npy and .npz: channels first or last or none, any type of numbers; of several arrays one is named."""
    forms = {
        "grey": RANDOM.integers(0, 255, (5, 9, 8), np.uint8),
        "last": RANDOM.random((5, 9, 8, 3)),
        "first": RANDOM.integers(0, 4000, (5, 3, 9, 8), np.uint16),
    }
    for name, array in forms.items():
        np.save(tmp_path / f"{name}.npy", array)
        np.savez_compressed(tmp_path / f"{name}.npz", images=array, labels=np.arange(5))
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["deep/images"] = array
            file["labels"] = np.arange(5)
        for suffix in ("npy", "npz", "h5"):
            images = open_images(str(tmp_path / f"{name}.{suffix}"))
            assert images.names == ["0", "1", "2", "3", "4"]
            assert images.picture(3).size == (8, 9)
            assert images.numbers(4, 8).shape == (8, 8, 1 if name == "grey" else 3)
    assert np.array_equal(np.asarray(open_images(str(tmp_path / "grey.h5")).picture(2)), forms["grey"][2])
    with h5py.File(tmp_path / "two.h5", "w") as file:
        file["one"] = file["other"] = forms["grey"]
    with pytest.raises(DataError, match="one, other: name the images by --dataset"):
        open_images(str(tmp_path / "two.h5"))
    assert open_images(str(tmp_path / "two.h5"), "other").picture(0).size == (8, 9)
    with pytest.raises(DataError, match="no array 'third'"):
        open_images(str(tmp_path / "two.h5"), "third")


def test_tables(tmp_path):
    """Rows of numbers are drawn; text and missing numbers do no harm."""
    path = tmp_path / "rows.csv"
    path.write_text("name,a,b,c\nx,1,2,3\ny,4,,6\nz,7,8,inf\n")
    images = open_images(str(path))
    assert images.names == ["0", "1", "2"] and images.columns == ["a", "b", "c"]
    assert images.numbers(1, 64).shape == (3,) and np.isfinite(images.numbers(2, 64)).all()
    assert images.picture(0).size == (96, 96)
    assert open_images(str(path), "c,a").columns == ["c", "a"]
    np.save(tmp_path / "rows.npy", RANDOM.random((4, 50)))
    assert open_images(str(tmp_path / "rows.npy")).numbers(0, 64).shape == (50,)
    with pytest.raises(DataError, match="no column 'd'"):
        open_images(str(path), "d")
    (tmp_path / "text.csv").write_text("a,b\nx,y\n")
    with pytest.raises(DataError, match="no rows of numbers"):
        open_images(str(tmp_path / "text.csv"))


def bomb(width, height):
    """A PNG file that claims to be of this size."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_what_is_too_large(tmp_path):
    """Claims are compared with limits before anything is unpacked."""
    (tmp_path / "bomb.png").write_bytes(bomb(60000, 60000))
    (tmp_path / "large.png").write_bytes(bomb(9000, 9000))
    for number, message in enumerate(("3600000000 pixels", "9000 x 9000 pixels")):
        with pytest.raises(DataError, match=message):
            open_images(str(tmp_path)).picture(number)
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file.create_dataset("images", (3, 1 << 16, 1 << 16), np.uint8, chunks=(1, 64, 64))
    with pytest.raises(DataError, match="65536 x 65536 pixels"):
        open_images(str(tmp_path / "wide.h5"))
    with h5py.File(tmp_path / "pieces.h5", "w") as file:
        file.create_dataset("images", (1 << 16, 256, 256), np.uint8, chunks=(1 << 15, 128, 128), compression="gzip")
    with pytest.raises(DataError, match="pieces of more than"):
        open_images(str(tmp_path / "pieces.h5"))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (10, 64, 64)})
        archive.writestr("images.npy", head.getvalue())
        archive.infolist()[0].file_size = 1 << 50
    with pytest.raises(DataError):
        open_images(str(tmp_path / "bomb.npz"))


def test_nothing_else_is_read_or_run(tmp_path):
    """No pickles, and no files that an HDF5 file names."""
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(ran),))

    np.save(tmp_path / "evil.npy", np.array([[[Evil()]]], object), allow_pickle=True)
    np.savez(tmp_path / "evil.npz", images=np.array([[[Evil()]]], object))
    for name in ("evil.npy", "evil.npz"):
        with pytest.raises(DataError):
            open_images(str(tmp_path / name))
    assert not ran.exists()
    (tmp_path / "secret").write_bytes(bytes(300))
    with h5py.File(tmp_path / "there.h5", "w") as file:
        file["images"] = np.zeros((3, 10, 10), np.uint8)
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["linked"] = h5py.ExternalLink("there.h5", "images")
        file.create_dataset("outside", (3, 10, 10), np.uint8, external=[(str(tmp_path / "secret"), 0, 300)])
        layout = h5py.VirtualLayout((3, 10, 10), np.uint8)
        layout[:] = h5py.VirtualSource(str(tmp_path / "there.h5"), "images", (3, 10, 10))
        file.create_virtual_dataset("virtual", layout)
    for name, message in (("outside", "other files"), ("virtual", "other files"), ("linked", "no array")):
        with pytest.raises(DataError, match=message):
            open_images(str(tmp_path / "links.h5"), name)


@pytest.mark.parametrize("kind", ["png", "jpg", "tif", "gif", "bmp", "webp", "npy", "npz", "h5", "csv"])
def test_damaged_files(tmp_path, kind, request):
    """Bytes that are changed, cut or repeated anywhere: an image, or a DataError; nothing else, and never for long."""
    rounds = 400 if request.config.getoption("--all") else 12
    chance = np.random.default_rng(sum(map(ord, kind)))
    source = tmp_path / f"whole.{kind}"
    array = RANDOM.integers(0, 255, (4, 16, 16), np.uint8)
    if kind == "npy":
        np.save(source, array)
    elif kind == "npz":
        np.savez_compressed(source, images=array)
    elif kind == "h5":
        with h5py.File(source, "w") as file:
            file.create_dataset("images", data=array, compression="gzip")
    elif kind == "csv":
        np.savetxt(source, array[0], delimiter=",", header=",".join("abcdefghijklmnop"), comments="")
    else:
        picture(source, (16, 16))
    whole, folder = source.read_bytes(), tmp_path / "damaged"
    folder.mkdir()
    path = folder / f"image.{kind}"
    for _ in range(rounds):
        data = bytearray(whole)
        for place in chance.integers(0, len(data), chance.integers(1, 6)):
            data[place] = chance.integers(0, 256)
        if chance.random() < 0.4:
            data = data[: chance.integers(0, len(data))]
        path.write_bytes(data)
        try:
            images = open_images(str(path if kind in ("npy", "npz", "h5", "csv") else folder))
            for number in range(min(4, len(images.names))):
                pixels.png(images.picture(number), 64)
                images.numbers(number, 16)
        except DataError as error:
            assert len(str(error)) <= 1000


def test_uncertainty():
    """By hand: two classes, sure and unsure."""
    known = np.array([[1.0, 0.0], [0.5, 0.5], [0.8, 0.2]])
    assert np.allclose(boundary.uncertainty("margin", known), [0, 1, 0.4])
    assert np.allclose(boundary.uncertainty("entropy", known), [0, 1, -(0.8 * np.log2(0.8) + 0.2 * np.log2(0.2))])
    assert np.allclose(boundary.disagreement_of(np.stack([known, known])), 0, atol=1e-6)
    apart = np.stack([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert np.allclose(boundary.disagreement_of(apart), 1)


def test_k_center():
    """Each point is the farthest from all before: checked against the definition."""
    points = RANDOM.normal(size=(60, 5))
    taken = RANDOM.normal(size=(3, 5))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    others = taken / np.linalg.norm(taken, axis=1, keepdims=True)
    chosen = boundary.k_center(points, taken, 10)
    assert len(set(chosen)) == 10
    for place, point in enumerate(chosen):
        before = np.concatenate([others, unit[chosen[:place]]])
        near = np.linalg.norm(unit[:, None] - before[None], axis=2).min(axis=1)
        assert near[point] == pytest.approx(near.max(), abs=1e-3)
    assert len(boundary.k_center(points, taken[:0], 100)) == 60
    assert len(boundary.k_center(points[:0], taken, 5)) == 0


def test_ask():
    """Those at the boundary are asked about, none twice, and not the same thing again and again."""
    features = np.repeat(np.eye(4), 25, axis=0) + 0.01 * RANDOM.normal(size=(100, 4))
    chance = np.full(100, 0.9)
    chance[:50] = 0.55
    probabilities = np.stack([chance, 1 - chance], axis=1)
    free = np.arange(100)
    asked = boundary.ask("margin", 6, free, free[:0], probabilities, features)
    assert len(set(asked)) == 6 and (asked < 50).all()
    assert {number // 25 for number in asked[:2]} == {0, 1}  # of each of the two clusters that are unsure one
    assert set(boundary.ask("random", 100, free, free[:0], probabilities, None)) == set(free)
    assert len(boundary.ask("entropy", 5, free[:2], free[2:], probabilities, features)) == 2
    places = boundary.plane(features)
    assert places.shape == (100, 2) and places.min() == 0 and places.max() == 1


def test_map_by_umap(tmp_path):
    """Suggestions do not wait for it: the map comes later, of the last features that there are by then."""
    pytest.importorskip("umap", reason="umap-learn is not installed: pip install 'matex_tf[umap]'")
    np.save(tmp_path / "x.npy", RANDOM.integers(0, 255, (60, 8, 8), np.uint8))
    images = open_images(str(tmp_path / "x.npy"))
    store = Store(str(tmp_path / "l.sqlite"), images.names)
    store.new_group("ann", "water"), store.new_group("ann", "ice")
    board = Board(store, images, method="umap")
    here = threading.Event()
    leave = board.listen(lambda news: here.set() if board.snapshot()["map"] else None)
    clusters = np.repeat(np.eye(3), 20, axis=0) + 0.01 * RANDOM.normal(size=(60, 3))
    for number in (1, 2, 3):
        board.suggest(Result(number, [1, 2], np.full((60, 2), 0.5, np.float32), clusters, None, True))
    assert board.snapshot()["suggested"]
    assert here.wait(240), "no map came"
    leave()
    places = np.array(board.snapshot()["map"]) / 1000
    middles = places.reshape(3, 20, 2).mean(axis=1)
    apart = min(np.linalg.norm(middles[a] - middles[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert apart > 2 * np.abs(places.reshape(3, 20, 2) - middles[:, None]).max()
    store.close()


def test_export(tmp_path):
    """The table has every image once, with its source; DataSet reads the HDF5 file; formulas and HTML stay text."""
    np.save(tmp_path / "x.npy", RANDOM.integers(0, 255, (6, 8, 8), np.uint8))
    images = open_images(str(tmp_path / "x.npy"))
    store = Store(str(tmp_path / "l.sqlite"), images.names)
    board = Board(store, images)
    for name in ("water", "=cmd()"):
        board.act("ann", lambda name=name: store.new_group("ann", name))
    board.act("ann", lambda: store.assign("ann", [0, 1], 1))
    board.act("ann", lambda: store.assign("ann", [2], 2))
    board.act("bob", lambda: store.assign("bob", [1], 2))
    board.act("bob", lambda: store.assign("bob", [3], 0))
    chances = np.tile([[0.25, 0.75]], (6, 1)).astype(np.float32)
    board.suggest(Result(1, [1, 2], chances, None, None, True))
    lines = export.table(board).decode().splitlines()
    assert lines == [
        "image,label,source,confidence,votes",
        "0,water,people,1.00,ann: water",
        "1,,disagreement,,ann: water; bob: =cmd()",
        "2,'=cmd(),people,1.00,ann: =cmd()",
        "3,none of these,people,1.00,bob: none of these",
        "4,'=cmd(),network,0.7500,",
        "5,'=cmd(),network,0.7500,",
    ]
    path = str(tmp_path / "labels.h5")
    assert export.hdf5(board, 8, path) == 2
    shard = DataSet.open(path, x="images", y="labels", one_hot=False)
    assert shard.data.shape == (2, 8, 8, 1) and shard.labels.tolist() == [0, 1]
    store.close()
    again = Board(Store(store.path, images.names), images)  # suggestions are there at the next start
    assert again.snapshot()["suggested"] == [2] * 6


def test_held_out():
    """The same images whatever else is labelled; of each class some are left to learn from."""
    labels = np.full(1000, -1)
    labels[:400] = np.arange(400) % 3
    first = held_out(labels, 0.2)
    assert 50 < first.sum() < 110 and not first[labels < 0].any()
    labels[400:800] = 1
    assert (held_out(labels, 0.2)[:400] == first[:400]).all()
    few = np.full(1000, -1)
    few[np.flatnonzero(first)[:2]] = [0, 1]
    assert not held_out(few, 0.2).any()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_what_is_handed_to_a_script(tmp_path, monkeypatch, mode):
    """All images in one size, grey ones with one channel, whatever their files say; those that are damaged as zeros."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(5):
        picture(tmp_path / "in" / f"{number}.png", (12, 10 + number), "L" if number else mode)
    (tmp_path / "in" / "00.png").write_bytes(b"damaged")
    (tmp_path / ".matex-label-l.sqlite-left").mkdir()
    said: list[dict] = []
    images = open_images(str(tmp_path / "in"))
    task = Task(["a", "b"])
    training = Training(images, Plan([], [], 8, 0.2, task), lambda: ([], {}), said.append, lambda _: None, "l.sqlite")
    folder = next(tmp_path.glob(".matex-label-*"))
    training._write_images()
    array = np.load(folder / "images.npy", allow_pickle=False)
    assert array.shape == (6, 8, 8, 1 if mode == "L" else 3) and array.dtype == np.uint8
    assert not array[1].any() and array[2].any()
    assert np.array_equal(array[2][..., :1], images.numbers(2, 8))
    assert said[0]["state"] == "reading"
    place = begin(folder, 1, task, np.array([0, 1, -1, -1, 0, 1]), np.zeros(6, bool))
    handed = read(place)
    assert handed.classes == ["a", "b"] and handed.load("images").shape == array.shape
    assert handed.load("labels").tolist() == [0, 1, -1, -1, 0, 1]
    training.stop()
    assert not list(tmp_path.glob(".matex-label-*"))


def test_what_a_script_writes(tmp_path):
    """Rows of a log that is being written; arrays of another shape, or of no numbers, are refused with their names."""
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss,val_loss\n0,1.5,NA\n1,0.5,0.7\n2,0.")
    assert read_log(log) == [{"epoch": 0, "loss": 1.5}, {"epoch": 1, "loss": 0.5, "val_loss": 0.7}]
    assert read_log(tmp_path / "none.csv") == []
    np.save(tmp_path / "suggestions.npy", np.full((3, 2), np.nan))
    for shape in ((3, 2), (4, 2), (3,)):
        with pytest.raises(DataError, match="suggestions.npy of the script is float64"):
            read_array(tmp_path / "suggestions.npy", shape)
