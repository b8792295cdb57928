"""What a script does to files, and the programs that it starts: done once, and its answer is that of one rank."""

import textwrap

import pytest
from jobs import LAUNCHER, Job

from benchmarks.hosts import Hosts, unavailable
from tests.support.cases import files
from tests.support.layered import LAYERED, of_calls_in_common

MEETS = "" if LAYERED else "end of"

SCRIPTS = {
    "os.system and rm -r": """
        import os
        os.makedirs("d")
        open("d/a.txt", "w").write("a" * 100)
        code = os.system("tar -cf d.tar d && rm -r d && echo ran >> log")
        slow()
        code += os.system("tar -xf d.tar && echo ran >> log")
        text = open("d/a.txt").read()
        os.system("rm -r d && echo ran >> log")
        result = code, text, os.path.exists("d"), open("log").read()
        """,
    "subprocess": """
        import subprocess, sys
        done = subprocess.run(["sh", "-c", "echo ran >> log; echo out; exit 3"], capture_output=True, text=True)
        said = subprocess.check_output("echo ran >> log; cat log", shell=True)
        slow()
        code = subprocess.call("echo ran >> log", shell=True)
        try:
            subprocess.check_call("echo ran >> log; exit 4", shell=True)
        except subprocess.CalledProcessError as error:
            failed = error.returncode, error.cmd
        result = done.returncode, done.stdout, said, code, failed, subprocess.getoutput("echo ran >> log; wc -l < log")
        """,
    "Popen": """
        import os, subprocess
        with subprocess.Popen("echo ran >> log; cat; exit 5", shell=True, stdin=-1, stdout=-1, text=True) as process:
            out, err = process.communicate("given")
        slow()
        lines = subprocess.Popen(["sh", "-c", "echo ran >> log; echo a; echo b"], stdout=-1)
        read = [line for line in lines.stdout]
        code = lines.wait()
        waited = subprocess.Popen("echo ran >> log; exit 6", shell=True)
        while waited.poll() is None:
            pass
        typed = subprocess.Popen("cat >> log", shell=True, stdin=-1)
        typed.stdin.write(b"typed")
        typed.stdin.close()
        typed.wait()
        opened = os.popen("echo ran >> log; echo popen")
        result = out, err, process.returncode, read, code, waited.returncode, opened.read(), opened.close()
        """,
    "a program that does not exist": """
        import subprocess
        said = []
        for start in (subprocess.run, subprocess.Popen):
            slow()
            try:
                start(["no-such-program"])
            except FileNotFoundError as error:
                said.append(str(error))
        result = said
        """,
    "zipfile": """
        import os, zipfile
        slow()
        with zipfile.ZipFile("a.zip", "w") as archive:
            for number in range(50):
                archive.writestr(f"d/{number}.txt", str(number) * 1000)
        names = zipfile.ZipFile("a.zip").namelist()
        zipfile.ZipFile("a.zip").extractall("out")
        total = sum(len(open(f"out/d/{name}").read()) for name in os.listdir("out/d"))
        with zipfile.ZipFile("a.zip", "a") as archive:
            archive.writestr("more.txt", "more")
            more = archive.read("more.txt")
        one = zipfile.ZipFile("a.zip").extract("more.txt")
        result = names, total, more, os.path.basename(one), len(zipfile.ZipFile("a.zip").namelist())
        """,
    "tarfile": """
        import os, tarfile
        os.mkdir("d")
        for number in range(20):
            with open(f"d/{number}", "w") as file:
                file.write(str(number) * 100)
        with tarfile.open("a.tgz", "w:gz") as archive:
            archive.add("d")
        slow()
        with tarfile.open("a.tgz") as archive:
            archive.extractall("out")
            archive.extract("d/3", "one")
        result = sum(len(open(f"out/d/{name}").read()) for name in os.listdir("out/d")), open("one/d/3").read()
        """,
    "shutil": """
        import os, shutil
        os.makedirs("d/e")
        open("d/e/a", "w").write("a")
        said = [shutil.make_archive("packed", "zip", "d")]
        shutil.unpack_archive("packed.zip", "out")
        slow()
        said.append(shutil.copy("d/e/a", "b"))
        said.append(shutil.copy2("d/e/a", "c"))
        said.append(shutil.copyfile("d/e/a", "f"))
        said.append(shutil.copytree("d", "copied"))
        said.append(shutil.move("b", "moved"))
        shutil.rmtree("d")
        result = [os.path.basename(one) for one in said], os.path.exists("d"), open("out/e/a").read()
        """,
    "os": """
        import os
        if not os.path.exists("d"):
            os.makedirs("d/e")
        os.mkdir("d/f")
        for name in "abc":
            with open(f"d/{name}", "w") as file:
                file.write(name)
        slow()
        os.rename("d/a", "d/x")
        os.replace("d/b", "d/x")
        os.remove("d/c")
        os.unlink("d/x")
        os.rmdir("d/f")
        os.removedirs("d/e")
        os.makedirs("g", exist_ok=True)
        os.makedirs("g", exist_ok=True)
        said = []
        for act in (lambda: os.remove("gone"), lambda: os.mkdir("g"), lambda: os.rmdir("gone")):
            try:
                act()
            except OSError as error:
                said.append((type(error).__name__, error.errno, error.filename))
        os.symlink("g", "link")
        result = said, sorted(os.listdir("."))
        """,
    "pathlib": """
        from pathlib import Path
        root = Path("d")
        root.mkdir(parents=True)
        (root / "a").write_text("a")
        (root / "b").write_bytes(b"b")
        slow()
        with (root / "c").open("w") as file:
            file.write("c")
        moved = (root / "a").rename(root / "x")
        (root / "b").replace(root / "x")
        (root / "t").touch()
        (root / "t").unlink()
        (root / "e").mkdir()
        (root / "e").rmdir()
        result = str(moved), sorted(path.name for path in root.iterdir()), moved.read_text()
        """,
    "open": """
        import json, pickle
        with open("a.txt", "w") as file:
            counts = file.write("first\\n"), file.tell()
            print("second", file=file)
            file.flush()
            seen = open("a.txt").read()
        slow()
        with open("a.txt", "a") as file:
            begin = file.tell()
            file.write("third\\n")
        lines = open("a.txt").readlines()
        with open("b.pkl", "wb") as file:
            pickle.dump({"key": [1, 2]}, file)
        with open("c.json", "w") as file:
            json.dump([1, 2], file)
        with open("d.bin", "wb", buffering=0) as file:
            file.write(b"0123456789")
        with open("d.bin", "r+b") as file:
            file.seek(2)
            file.write(b"xx")
            file.seek(0)
            both = file.read()
        with open("d.bin", "a+b") as file:
            file.write(b"end")
            file.seek(0)
            appended = file.read()
        with open("e.txt", "w+") as file:
            file.write("e")
            file.seek(0)
            own = file.read()
        open("f.txt", "x").write("left to Python")
        try:
            open("f.txt", "x")
        except FileExistsError as error:
            said = error.filename
        try:
            open("none/f.txt", "w")
        except FileNotFoundError as error:
            said += error.filename
        kept = open("kept.txt", "w")
        kept.write("x" * 100000)
        loaded = pickle.load(open("b.pkl", "rb")), json.load(open("c.json"))
        result = (counts, seen, begin, lines, loaded, both, appended, own, said, open("f.txt").read(),
                  kept.name, kept.mode, kept.closed, kept.writable())
        def end():
            kept.close()
        """,
    "compressed": """
        import bz2, gzip, lzma
        texts = []
        for module, name in ((gzip, "a.gz"), (bz2, "a.bz2"), (lzma, "a.xz")):
            slow()
            with module.open(name, "wt") as file:
                file.write("text" * 1000)
            with module.open(name, "ab") as file:
                file.write(b"more")
            texts.append(len(module.open(name).read()))
        result = texts, [name.unlink() for name in __import__("pathlib").Path(".").glob("a.*z*")]
        """,
    "numpy and pickle": """
        import numpy as np
        slow()
        np.save("a.npy", np.arange(1000))
        np.savez("a.npz", x=np.arange(5))
        np.savetxt("a.csv", np.eye(3))
        with open("b.npy", "wb") as file:
            np.save(file, np.arange(10))
        result = np.load("a.npy").sum(), np.load("a.npz")["x"].sum(), np.loadtxt("a.csv").sum(), np.load("b.npy").sum()
        """,
    "pandas": """
        import pandas as pd
        frame = pd.DataFrame({"a": range(1000), "b": "text"})
        slow()
        frame.to_csv("a.csv", index=False)
        read = pd.read_csv("a.csv")
        frame["a"].to_json("a.json")
        frame.to_pickle("a.pkl")
        with open("b.csv", "w") as file:
            frame.head().to_csv(file)
        result = int(read.a.sum()), len(frame.to_csv()), int(pd.read_pickle("a.pkl").a.sum()), open("b.csv").read()
        """,
    "sqlite3": """
        import sqlite3
        db = sqlite3.connect("a.db")
        db.execute("create table t (x integer primary key, y text)")
        for number in range(20):
            db.execute("insert into t (y) values (?)", (str(number),))
        db.commit()
        slow()
        with db:
            last = db.execute("insert into t (y) values ('last')").lastrowid
        rows = db.execute("select count(*), max(x) from t").fetchall()
        db.close()
        again = sqlite3.connect("a.db")
        again.execute("delete from t where x > 10")
        again.commit()
        third = sqlite3.connect("a.db")
        try:
            third.execute("create table t (x)")
        except sqlite3.OperationalError as error:
            said = str(error)
        result = last, rows, third.execute("select count(*) from t").fetchone(), said
        again.close()
        third.close()
        """,
    "tf.io.gfile": """
        import tensorflow as tf
        files = tf.io.gfile
        files.makedirs("d/e")
        with open("d/a", "w") as file:
            file.write("a")
        slow()
        files.copy("d/a", "b")
        files.rename("b", "c")
        files.remove("d/a")
        try:
            files.remove("d/a")
        except tf.errors.NotFoundError as error:
            said = error.message
        files.rmtree("d")
        result = said, files.exists("d"), files.listdir(".").count("c")
        """,
    "h5py": """
        import h5py, numpy as np
        with h5py.File("a.h5", "w") as file:
            file["x"] = np.arange(10)
            file.create_dataset("y", data=np.eye(3), compression="gzip")
            own = file["x"][3]
        slow()
        with h5py.File("a.h5", "a") as file:
            both = file["x"][:].sum(), file["y"][:].sum()
            file["z"] = 5
            file.flush()
        with h5py.File("a.h5", "r+") as file:
            file["z"][...] = 7
        with h5py.File("a.h5") as file:
            found = sorted(file), file["z"][()]
        try:
            h5py.File("a.h5", "x")
        except OSError as error:
            said = type(error).__name__
        result = int(own), [float(one) for one in both], found[0], int(found[1]), said
        """,
    "savefig": """
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.plot([1, 2])
        slow()
        plt.savefig("a.png")
        figure, axes = plt.subplots()
        figure.savefig("b.png")
        result = plt.imread("a.png").shape, plt.imread("b.png").shape
        """,
    "a state that is read, written and read again": """
        import os
        if not os.path.exists("count"):
            open("count", "w").write("0")
        seen = []
        for turn in range(5):
            count = int(open("count").read())
            slow()
            seen.append(count)
            with open("count", "w") as file:
                file.write(str(count + 1))
        if os.path.exists("out.txt"):
            os.remove("out.txt")
        with open("out.txt", "w") as file:
            file.write("new")
        slow()
        if os.path.exists("out.txt"):
            os.remove("out.txt")
        open("out.txt", "w").close()
        result = seen, os.path.exists("out.txt")
        """,
    "a folder from which some files are removed": """
        import os
        os.mkdir("d")
        for number in range(12):
            with open(f"d/{number:02}", "wb") as file:
                file.write(b"good" if number % 3 else b"bad")
        removed = 0
        for name in os.listdir("d"):
            slow()
            file = open(os.path.join("d", name), "rb")
            good = file.read().startswith(b"good")
            file.close()
            if not good:
                removed += 1
                os.remove(os.path.join("d", name))
        result = removed, sorted(os.listdir("d"))
        """,
}


@pytest.mark.variants(10)
@pytest.mark.parametrize("name", SCRIPTS)
def test_once(ranks, name):
    """Whoever is late, every rank gets what one rank gets, and nothing is done twice."""
    text = textwrap.dedent(SCRIPTS[name])
    alone = ranks(files.script, (1,), text=text)[1][0]
    for late in (0, 2):
        for got in ranks(files.script, (3,), text=text, late=late, meets=MEETS)[3]:
            assert got == alone
        assert not any("own" in outcome.output for outcome in ranks.last[3])


def run(ranks, text, size=3, **kwargs):
    """What each rank got from a script, the files that it left, and what ranks said, without the script itself."""
    got = ranks(files.script, (size,), text=textwrap.dedent(text), meets="the script", **kwargs)[size]
    left = {name: content for name, content in got[0][1].items() if not name.endswith((".py", ".pyc", "__pycache__"))}
    return [result for result, _ in got], left, "".join(outcome.output for outcome in ranks.last[size])


@of_calls_in_common
def test_one_rank_at_a_call(ranks):
    """A rank that alone comes to calls does them by itself; the others wait where they are, and all go on together."""
    results, left, said = run(
        ranks,
        """
        import os
        if number == 1:
            with open("own.txt", "w") as file:
                file.write("of rank 1")
            os.mkdir("d")
        meet("take a step")
        with open("all.txt", "a") as file:
            file.write("once")
        if number == 2:
            os.rmdir("d")
        if number < 2:
            os.system("echo two >> two.txt")
        os.system("echo three >> three.txt")
        result = os.path.exists("own.txt")
        """,
    )
    assert results == [True] * 3
    assert left == {"own.txt": "of rank 1", "all.txt": "once", "two.txt": "two\ntwo\n", "three.txt": "three\n"}
    assert "(ranks 0, 2: take a step; rank 1: open('own.txt', 'w') at script.py:4)" in said
    assert "ranks 0-1: os.system('echo two >> two.txt') at script.py:13" in said
    assert said.count("each does its own") == len({line for line in said.splitlines() if "own" in line})


@of_calls_in_common
def test_other_arguments(ranks):
    """Ranks that write a file each at one place do so, and it is said once."""
    results, left, said = run(
        ranks,
        """
        for turn in range(2):
            with open(f"{number}.txt", "a") as file:
                file.write(str(turn))
        """,
    )
    assert left == {f"{rank}.txt": "01" for rank in range(3)}
    assert said.count("has other arguments on each rank") == 1
    assert "(rank 0: '0.txt', 'a'; rank 1: '1.txt', 'a')" in said


@of_calls_in_common
def test_one_rank_in_a_callback(ranks):
    """A callback writes by what its rank alone sees, while the others train: the training is that of all ranks."""
    text = """
        import os
        import keras
        import numpy as np

        class Note(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if number == 1 and batch % 2:
                    with open("one.txt", "a") as file:
                        file.write("x")
                    os.path.exists("one.txt") and os.rename("one.txt", "two.txt")

            def on_epoch_end(self, epoch, logs=None):
                with open("epochs.txt", "a") as file:
                    file.write(f"{epoch} {logs['loss']:.4f}\\n")

        keras.utils.set_random_seed(1)
        x = np.random.RandomState(0).normal(size=(50, 4)).astype("float32")
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=0, callbacks=[Note()] * (number is not None))
        result = [round(loss, 4) for loss in history.history["loss"]]
        """
    alone, lines, _ = run(ranks, text, size=1)
    together, left, said = run(ranks, text)
    assert together == alone * 3
    assert left == {**lines, "two.txt": "x"}
    assert "rank 1: open('one.txt', 'a') at script.py:9)" in said


LEFT_ALONE = {
    "another thread": ("", "import threading; t = threading.Thread(target=add); t.start(); t.join()", {}),
    "a rank that is asked for": ("import matex_tf; matex_tf.rank()", "add()", {}),
    "MPI": ("import os; os.environ.get('OMPI_COMM_WORLD_RANK')", "add()", {}),
    "a module that asks": ("import asks", "add()", {"asks": "from mpi4py import MPI"}),
    "a library": ("import sys; sys.path.append('site-packages')", "import fake; fake.add()", {}),
}


@of_calls_in_common
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(ranks, name):
    """What is not the script's own call in its main thread is done by every rank, as ever."""
    before, act, modules = LEFT_ALONE[name]
    add = 'import os\ndef add():\n    os.close(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND))\n'
    add += '    with open("log", "a") as file:\n        file.write("x")\n'
    library = [("site-packages/fake", add)] if name == "a library" else []
    _, left, said = run(ranks, f"{add}{before}\n{act}\n", modules=[*modules.items(), *library])
    assert left.get("log") == "xxx" and "own" not in said


#: As SQLAlchemy has a database: opened again for each piece of work, two at a time, and under another name.
STORE = """
from sqlite3 import dbapi2


def add(path):
    one, other = dbapi2.connect(path), dbapi2.connect(path)
    with one:
        one.execute("create table if not exists runs (number integer primary key)")
        one.execute("insert into runs default values")
    found = other.execute("select count(*) from runs").fetchone()[0]
    one.close(), other.close()
    return found
"""


@of_calls_in_common
@pytest.mark.parametrize("there", [False, True], ids=["new", "there before"])
def test_a_database_of_a_library(ranks, there):
    """Each rank finds what it has put there, and the file has it once."""
    text = "import os, sqlite3, sys\nsys.path.append(os.path.abspath('site-packages'))\nimport fake_store\n" + (
        "result = [fake_store.add('a.db') for _ in range(3)]\nslow()\nmeet('all have written')\n"
        "os.rename('a.db', 'b.db')\nresult += sqlite3.connect('b.db').execute('select count(*) from runs').fetchone()\n"
        "result.append(fake_store.add('a.db'))\n"
    )
    before = STORE + "\nadd('a.db')\n" if there else ""
    results, _, said = run(ranks, text, modules=[("site-packages/fake_store", STORE)], before=before, late=1)
    assert results == [[*(number + there for number in (1, 2, 3, 3)), 1]] * 3
    assert "own" not in said


@of_calls_in_common
def test_a_lock_against_a_second_start(ranks):
    """Each rank gets the lock of a file that one rank has."""
    text = """
        import fcntl
        locks = [open(f"{mode}.lock", mode) for mode in ("w", "a", "w+")]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("locked", file=lock)
            meet("all have it")
            lock.close()
        result = [open(lock.name).read() for lock in locks]
        """
    results, left, said = run(ranks, text)
    assert results == [["locked\n"] * 3] * 3 and sorted(left) == ["a.lock", "w+.lock", "w.lock"]
    assert "own" not in said


def test_collected_files(ranks):
    """A file in a cycle is closed when Python collects garbage, at another time on each rank: nobody meets there."""
    results, left, said = run(
        ranks,
        """
        import gc
        class Holder:
            pass
        gc.disable()
        for turn in range(3):
            holder = Holder()
            holder.self, holder.file = holder, open(f"{turn}.txt", "w")
            holder.file.write("text")
            holder.file.flush()
            del holder
            if number == turn:
                gc.collect()
        gc.enable()
        with open("end.txt", "w") as file:
            file.write("end")
        gc.collect()
        """,
    )
    assert left == {"0.txt": "text", "1.txt": "text", "2.txt": "text", "end.txt": "end"} and "own" not in said


def test_unusual_errors(ranks):
    """An exception that cannot be sent keeps its words."""
    results, _, _ = run(
        ranks,
        """
        import shutil
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")
        def fail(*paths):
            raise Odd(1, 2)
        open("a", "w").close()
        try:
            shutil.move("a", "none/b", copy_function=fail)
        except Exception as error:
            result = "1 and 2" in str(error)
        """,
    )
    assert results == [True] * 3


def test_sent_to_other_processes():
    """What is wrapped can be pickled, as what it stands for can."""
    import subprocess
    import sys

    text = (
        "import matex_tf.patches, pickle, os, shutil\nmatex_tf.patches.install(seed=0)\n"
        "for f in (os.remove, shutil.rmtree, open): assert pickle.loads(pickle.dumps(f)) == f\n"
        "assert os.utime in os.supports_follow_symlinks\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


#: The first rank dies in a program that it starts; the next one starts it again, and goes on with the open file.
DIES = """
import os
kept = open("kept.txt", "w")
kept.write("before\\n")
kept.flush()
kept.write("not flushed\\n")
both = open("both.txt", "w+")
died = os.system("test -e died || { touch died; kill -9 $PPID; }")
os.makedirs("d/e")
os.system("echo once >> log.txt")
kept.write("after\\n")
kept.close()
os.remove("died")
print(died, repr(open("kept.txt").read()), os.listdir("d"), open("log.txt").read().split(), flush=True)
"""


def test_a_rank_dies(tmp_path):
    """A rank dies in a call, with a file open: the next one does it again, and what is written goes on."""
    (tmp_path / "script.py").write_text(DIES)
    job = Job([LAUNCHER, "run", "-n", "3", "--faults", "shrink", "--files", "once", "script.py"], tmp_path)
    ended = job.end(90)
    assert "before" in (tmp_path / "kept.txt").read_text(), ended
    assert ended.out.splitlines()[-1:] == ["0 'before\\nnot flushed\\nafter\\n' ['e'] ['once']"], ended
    assert "rank 0 of 3" in ended.err and "both.txt was open on rank 0, which has died" in ended.err
    assert not (tmp_path / "died").exists() and not job.left()


#: Calls in a directory that all hosts share, and in one that each has to itself; each rank prints what it finds.
TWO_PLACES = """
import importlib, os, shutil
import numpy as np
group = importlib.import_module("matex_tf.exchange.process_group")
world = importlib.import_module("matex_tf.core.world").current()
own = "/run/tmp/own"
for folder in ("shared", own):
    os.makedirs(folder)
    with open(f"{folder}/log", "a") as file:
        file.write("written\\n")
    shutil.copy(f"{folder}/log", f"{folder}/copy")
os.system("echo ran >> shared/log")
import subprocess
subprocess.run("echo ran >> log", shell=True, cwd=own)
sums = []
for step in range(3):
    sums.append(group.sum_arrays(world, [np.ones(5)], "add up", ["ones"])[0].sum())
    if os.uname().nodename == "h2":
        os.makedirs(f"{own}/h2", exist_ok=True)
assert sums == [20.0] * 3
print([open(f"{folder}/log").read().split() for folder in ("shared", own)], os.path.exists(own + "/h2"), flush=True)
print([name for folder in (".", "/run", own) for name in os.listdir(folder) if "probe" in name], flush=True)
shutil.rmtree(own)
os.remove("shared/log")
"""


@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
def test_hosts(tmp_path):
    """Once in what hosts share, once on each host in what it has to itself."""
    (tmp_path / "script.py").write_text(TWO_PLACES)
    with Hosts(2) as hosts:
        line = [LAUNCHER, "run", "-n", "4", "--hosts", "h1:2,h2:2", "--output", "logs", "--files", "once", "script.py"]
        job = Job([*hosts.on(folder=tmp_path), *line], tmp_path, **hosts.environ)
        ended = job.end(90)
        assert ended.code == 0, ended
        logs = [(tmp_path / "logs" / f"rank.{rank}.log").read_text().splitlines() for rank in range(4)]
    for rank, log in enumerate(logs):
        assert f"[['written', 'ran'], ['written', 'ran']] {rank > 1}" in log and "[]" in log, (rank, logs)
    assert not (tmp_path / "shared" / "log").exists() and (tmp_path / "shared" / "copy").exists()


@of_calls_in_common
def test_private_copies(ranks, tmp_path):
    """What other ranks hold of a file that is open has no name, and nobody else can read it."""
    results, _, _ = run(
        ranks,
        """
        import os, stat, tempfile, zipfile
        tempfile.tempdir = folder
        file = open("a.txt", "w+")
        archive = zipfile.ZipFile("a.zip", "w")
        file.flush()  # all ranks have opened both
        result = number == 0 or stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600, os.listdir(folder), number
        archive.close()
        file.close()
        """,
        folder=str(tmp_path),
    )
    assert results == [(True, [], rank) for rank in range(3)]


@of_calls_in_common
def test_one_call_more(ranks):
    """A loop in which one rank makes a call more than the others: nothing is left out, nobody hangs, and it is said.

    Where the call that is more stands at the end of a turn, the other ranks do their next call by themselves too.
    """
    results, left, said = run(
        ranks,
        "\n" * 20  # what is said of a place is said once, also where another script had such a place
        + textwrap.dedent("""
        import os
        for turn in range(4 if number == 1 else 3):
            with open("log.txt", "a") as file:
                file.write("x")
        with open("after.txt", "a") as file:
            file.write("once")
        for turn in range(3):
            os.system(f"echo {turn} >> turns.txt")
            if number == 2 and turn == 1:
                os.system("echo more >> turns.txt")
        os.mkdir("d")
        result = open("after.txt").read(), os.listdir("d")
        """),
    )
    assert results == [("once", [])] * 3
    assert left["log.txt"] == "xxxx" and left["after.txt"] == "once"
    turns = left["turns.txt"].split()
    assert [turns.count(word) for word in ("0", "1", "more")] == [1, 1, 1] and "2" in turns
    assert "rank 1: open('log.txt', 'a') at script.py:24" in said
    assert "rank 2: os.system('echo more >> turns.txt') at script.py:31" in said
