"""What packages write for a script, one kind of writer after the other: done once, and found whole by every rank."""

import errno
import importlib.util
import os
import textwrap

import pytest

from matex_tf.errors import MatexError
from matex_tf.patches.files.handles import memory_maps
from tests.support.cases import files
from tests.support.layered import LAYERED, of_calls_in_common

#: For each writer a script, of which one rank's `result` and files are those of any number of ranks.
WRITERS = {
    "logging": """
        import logging, logging.handlers, os
        log = logging.getLogger("of the test")
        log.propagate = False
        def note(handler, lines=1):
            log.addHandler(handler)
            for line in range(lines):
                log.warning("a line of the script's, the %dth", line)
            log.removeHandler(handler)
            handler.close()
        note(logging.FileHandler("a.log"))
        slow()
        note(logging.FileHandler("a.log"))
        note(logging.FileHandler("b.log", "w"), 3)
        note(logging.handlers.RotatingFileHandler("c.log", maxBytes=80, backupCount=2), 5)
        note(logging.FileHandler("none.log", delay=True), 0)
        root, logging.root = logging.root, logging.RootLogger("WARNING")
        logging.basicConfig(filename="d.log", format="%(message)s")
        logging.root.warning("to the root")
        name = os.path.basename(logging.root.handlers[0].baseFilename)
        logging.root.handlers[0].close()
        logging.root = root
        try:
            logging.FileHandler("none/e.log")
        except FileNotFoundError as error:
            said = error.errno
        result = [open(f"{name}.log").read() for name in "abcd"], name, said, os.path.exists("none.log")
        """,
    "a rank that logs alone": """
        import logging
        log = logging.getLogger("of one rank")
        log.propagate = False
        handler = logging.FileHandler("a.log")
        log.addHandler(handler)
        for turn in range(3):
            if number == turn:
                log.warning("of one rank")
            log.warning("of all")
        log.removeHandler(handler)
        handler.close()
        result = open("a.log").read().count("of all")
        """,
    "GFile": """
        import os
        import tensorflow as tf
        GFile = tf.io.gfile.GFile
        with GFile("a.txt", "w") as file:
            slow()
            file.write("first\\n")
            name = file.name
        with GFile("a.txt", "a") as file:
            file.write("second\\n")
            file.flush()
            seen = GFile("a.txt").read()
        with GFile("b.bin", "wb") as file:
            file.write(b"bytes")
            there = file.tell()
        with tf.compat.v1.gfile.FastGFile("c.txt", "w") as file:
            file.write("c")
        file = GFile("d.txt", "w")
        file.write("left open")
        try:
            with GFile("none/a.txt", "w") as none:
                none.write("x")
        except tf.errors.NotFoundError as error:
            said = type(error).__name__
        file.close()
        result = os.path.basename(name), seen, there, GFile("d.txt").read(), said
        """,
    "TFRecordWriter": """
        import tensorflow as tf
        with tf.io.TFRecordWriter("a.rec") as writer:
            slow()
            for number in range(20):
                writer.write(b"x" * number)
        writer = tf.io.TFRecordWriter("b.rec", tf.io.TFRecordOptions(compression_type="GZIP"))
        writer.write(b"zipped")
        writer.flush()
        writer.close()
        read = [len(record.numpy()) for record in tf.data.TFRecordDataset("a.rec")]
        result = read, [one.numpy() for one in tf.data.TFRecordDataset("b.rec", "GZIP")]
        """,
    "tf.io.write_file": """
        import tensorflow as tf
        tf.io.write_file("a.txt", "text" * 1000)
        slow()
        tf.io.write_file(tf.constant("b.png"), tf.io.encode_png(tf.zeros((4, 4, 3), tf.uint8)))
        @tf.function
        def write(name):
            tf.io.write_file(name, "of a graph")
            tf.io.write_file("d.txt", "of a graph")
        write(tf.constant("c.txt"))
        tf.io.write_graph(tf.Graph(), ".", "g.pbtxt")
        result = len(tf.io.read_file("a.txt").numpy()), tf.io.decode_png(tf.io.read_file("b.png")).shape.as_list()
        """,
    "Dataset.save and cache": """
        import os
        import tensorflow as tf
        dataset = tf.data.Dataset.range(40).shuffle(40, seed=3)
        slow()
        dataset.save("d")
        after = [int(one) for one in dataset]
        saved = [int(one) for one in tf.data.Dataset.load("d")]
        cached = tf.data.Dataset.range(9).cache("c")
        slow()
        twice = [[int(one) for one in cached] for turn in range(2)]
        for late in range(3):
            meet("end the cache")
        again = [int(one) for one in tf.data.Dataset.range(9).cache("c")]
        result = after, sorted(saved), twice, again, len([name for name in os.listdir("d") if name.isdigit()])
        import shutil
        shutil.rmtree("d")
        for name in os.listdir("."):
            if name.startswith("c."):
                os.remove(name)
        """,
    "os.open": """
        import os
        handle = os.open("a.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        slow()
        wrote = os.write(handle, b"first\\n")
        os.close(handle)
        handle = os.open("a.txt", os.O_WRONLY | os.O_APPEND)
        os.write(handle, b"second\\n")
        os.close(handle)
        handle = os.open("a.txt", os.O_RDWR)
        os.lseek(handle, 6, os.SEEK_SET)
        part = os.read(handle, 3)
        os.write(handle, b"OND")
        size = os.fstat(handle).st_size
        os.close(handle)
        with os.fdopen(os.open("b.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write("text")
        with os.fdopen(os.open("b.txt", os.O_RDWR), "r") as file:
            read = file.read()
        said = []
        for flags in (os.O_CREAT | os.O_EXCL | os.O_WRONLY,):
            try:
                os.open("b.txt", flags)
            except FileExistsError as error:
                said.append(error.filename)
        null = os.open(os.devnull, os.O_WRONLY)
        os.write(null, b"x")
        os.close(null)
        result = wrote, part, size, read, said, open("a.txt").read(), open("b.txt").read(), os.stat("b.txt").st_mode
        """,
    "a lock that is made with O_EXCL": """
        import os
        handle = os.open("lock", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.write(handle, b"held")
        os.close(handle)
        held = os.path.exists("lock")
        slow()
        os.remove("lock")
        result = held, os.path.exists("lock")
        """,
    "numpy": """
        import numpy as np
        slow()
        np.arange(1000.0).tofile("a.bin")
        with open("b.bin", "wb") as file:
            np.arange(10).tofile(file)
            np.arange(5).tofile(file)
        np.arange(3).tofile("c.txt", sep=" ")
        np.savetxt("d.csv", np.eye(2), delimiter=",")
        np.savez_compressed("e.npz", a=np.arange(4))
        read = np.fromfile("a.bin").sum(), np.fromfile("b.bin", int).sum(), np.load("e.npz")["a"].sum()
        result = read, open("c.txt").read(), np.loadtxt("d.csv", delimiter=",").sum()
        """,
    "numpy.memmap": """
        import os
        from pathlib import Path
        import numpy as np
        kinds = []
        def make(*args, **named):
            slow()
            array = np.memmap(*args, **named)
            kinds.append((type(array).__name__, array.mode, os.path.basename(array.filename), array.shape))
            return array
        a = make("a.bin", dtype="float32", mode="w+", shape=(30, 100))
        slow()
        a[:] = np.arange(100)
        part = a[:10]
        part += 1
        part.flush()
        read = [np.fromfile("a.bin", "float32").sum(), np.memmap("a.bin", "float32", "r").sum()]
        a.flush()
        for turn in range(3):
            a += 1
            slow()
        del a, part
        read.append(np.fromfile("a.bin", "float32").sum())
        a = make(Path("a.bin"), dtype="float32")
        a += 1
        slow()
        a += a.max()
        a.flush()
        read += [a.sum(), np.fromfile("a.bin", "float32").sum()]
        b = make("b.bin", "uint8", "write", 8, (4, 2))
        b[1] = 7
        b.flush()
        copy = np.memmap("b.bin", "uint8", "c")
        copy[:] = 1
        said = []
        for name in ("none/c.bin", "."):
            try:
                np.memmap(name, "uint8", "w+", shape=3)
            except OSError as error:
                said.append((type(error).__name__, error.filename))
        result = kinds, read, open("b.bin", "rb").read(), said, sorted(os.listdir("."))
        """,
    "open_memmap": """
        import numpy as np
        a = np.lib.format.open_memmap("a.npy", mode="w+", dtype="float32", shape=(30, 4))
        slow()
        a[:] = 1
        for turn in range(3):
            a += 1
            slow()
        a.flush()
        read = [np.load("a.npy").sum()]
        del a
        b = np.load("a.npy", mmap_mode="r+")
        b *= 2
        slow()
        b *= 2
        b.flush()
        read += [np.load("a.npy").sum(), np.load("a.npy", mmap_mode="r").sum(), b.sum()]
        result = read
        """,
    "Python's own": """
        import codecs, csv, json, os, urllib.request, wave
        with open("a.csv", "w", newline="") as file:
            csv.writer(file).writerows([[1, 2], [3, 4]])
        slow()
        with codecs.open("b.txt", "w", "utf-8") as file:
            file.write("text")
        with wave.open("c.wav", "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(b"00" * 80)
        name, headers = urllib.request.urlretrieve("file://" + os.path.abspath("b.txt"), "d.txt")
        json.dump({"a": 1}, open("e.json", "w"))
        with wave.open("c.wav") as file:
            frames = file.getnframes()
        result = list(csv.reader(open("a.csv"))), open("b.txt").read(), frames, name, headers["Content-Length"]
        """,
    "keras": """
        import keras
        import numpy as np
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        with open("a.json", "w") as file:
            slow()
            file.write(model.to_json())
        keras.utils.save_img("b.png", np.zeros((4, 5, 3)))
        again = keras.models.model_from_json(open("a.json").read())
        model.save("c.keras")
        loaded = keras.models.load_model("c.keras")
        result = again.count_params(), keras.utils.load_img("b.png").size, loaded.count_params()
        import os
        os.remove("c.keras")
        """,
    "pandas": """
        import pandas as pd
        frame = pd.DataFrame({"a": range(10)})
        slow()
        frame.to_parquet("a.parquet")
        with open("b.csv", "w") as file:
            frame.to_csv(file)
        result = int(pd.read_parquet("a.parquet").a.sum()), len(open("b.csv").read())
        """,
    "openpyxl": """
        import pandas as pd
        frame = pd.DataFrame({"a": range(10)})
        slow()
        frame.to_excel("a.xlsx")
        with pd.ExcelWriter("b.xlsx") as writer:
            frame.to_excel(writer, sheet_name="one")
            slow()
            frame.to_excel(writer, sheet_name="two")
        with pd.ExcelWriter("b.xlsx", mode="a") as writer:
            frame.to_excel(writer, sheet_name="three")
        result = int(pd.read_excel("a.xlsx").a.sum()), list(pd.read_excel("b.xlsx", sheet_name=None))
        """,
    "yaml": """
        import yaml
        with open("a.yaml", "w") as file:
            yaml.safe_dump({"a": [1, 2]}, file)
        slow()
        result = yaml.safe_load(open("a.yaml"))
        """,
    "scipy": """
        import numpy as np
        import scipy.io, scipy.io.wavfile, scipy.sparse
        slow()
        scipy.io.savemat("a.mat", {"a": np.arange(4)})
        scipy.io.wavfile.write("b.wav", 8000, np.zeros(40, "int16"))
        scipy.sparse.save_npz("c.npz", scipy.sparse.eye(3))
        found = scipy.io.loadmat("a.mat")["a"].sum(), scipy.io.wavfile.read("b.wav")[1].shape
        result = found, scipy.sparse.load_npz("c.npz").shape
        import os
        os.remove("a.mat")  # has the time in it
        """,
    "joblib": """
        import joblib
        slow()
        joblib.dump({"a": list(range(100))}, "a.joblib")
        result = len(joblib.load("a.joblib")["a"])
        """,
    "matplotlib": """
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        from matplotlib.backends.backend_pdf import PdfPages
        slow()
        with PdfPages("a.pdf") as pages:
            for page in range(2):
                pages.savefig(plt.figure())
        result = open("a.pdf", "rb").read().count(b"/Type /Page ")
        import os
        os.remove("a.pdf")  # has the time in it
        """,
    "PIL": """
        from PIL import Image
        slow()
        Image.new("RGB", (4, 5)).save("a.png")
        result = Image.open("a.png").size
        """,
    "cv2": """
        import cv2
        import numpy as np
        pixels = np.full((4, 5, 3), 7, "uint8")
        slow()
        wrote = cv2.imwrite("a.png", pixels), cv2.imwrite("none/a.png", pixels)
        result = wrote, int(cv2.imread("a.png").sum())
        """,
}
NEEDS = {"openpyxl", "yaml", "scipy", "joblib", "matplotlib", "PIL", "cv2"}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer(ranks, name):
    """Every rank gets what one rank gets, though the one that writes is late, and the files are those of one rank."""
    if name in NEEDS and importlib.util.find_spec(name) is None:
        pytest.skip(f"the package {name} is not installed")
    if LAYERED and name == "a rank that logs alone":
        pytest.skip("each rank does everything itself")
    text = textwrap.dedent(WRITERS[name])
    result, left = ranks(files.script, (1,), text=text)[1][0]
    for got in ranks(files.script, (3,), text=text, late=0, meets="" if LAYERED else "end of")[3]:
        assert got == (result, left)
    assert not any("own" in outcome.output for outcome in ranks.last[3])


@of_calls_in_common
def test_a_memory_map_that_is_too_large_to_copy(ranks):
    text = """
        import numpy as np
        np.zeros(100, "uint8").tofile("a.bin")
        array = np.memmap("a.bin", "uint8", "r+")
        array[:50] = 7
        array.flush()
        result = int(np.fromfile("a.bin", "uint8").sum())
        """
    given = {"text": textwrap.dedent(text), "largest_copy": 99, "meets": "end of"}
    assert [got for got, _ in ranks(files.with_memory_maps, (2,), **given)[2]] == [350, 350]
    assert sum("a.bin is too large for a copy on each rank" in one.output for one in ranks.last[2]) == 1


def test_a_memory_map_without_room(tmp_path, monkeypatch):
    """A write to a private file on a full disk would end the process with SIGBUS."""

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    private = tmp_path / "private"
    private.write_bytes(bytes(4096))
    with pytest.raises(MatexError, match=r"data\.bin .* no room .* 4096 bytes .*TMPDIR"):
        memory_maps._reserve(str(private), "data.bin")
