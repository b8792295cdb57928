"""`--files private`: what a script and C libraries do to files happens once, with ranks that wait for nobody."""

from __future__ import annotations

import os
import shelve
import socket
import sqlite3
import subprocess
import sys

import pytest
from jobs import BIN, LAUNCHER, Job

from benchmarks import launching

pytestmark = pytest.mark.timeout(200)

#: Writes by Python, a C library, a database and a program, twice each; what is there already it goes on with.
SCRIPT = """
import os, sqlite3, sys, tempfile, uuid
import h5py
import matex_tf

for _ in range(2):
    with open("log.txt", "a") as log:
        log.write("line\\n")
    os.system("echo line >> shell.txt")
    with h5py.File("rows.h5", "a") as rows:
        rows[str(len(rows))] = [1, 2]
    with sqlite3.connect("runs.db") as runs:
        runs.execute("create table if not exists run (number)")
        runs.execute("insert into run values (1)")
    os.mkdir("first" if not os.path.exists("first") else "second")
os.rename("first", "third"), os.rename("old", "older")
os.mkdir(f"run-{os.getpid()}")
tempfile.mkdtemp(prefix="drawn-", dir="."), os.mkdir(f"drawn-{uuid.uuid4()}")
world = matex_tf.init()
world.barrier("see what is there")
if world.rank == 0:
    with open("of-rank-0.txt", "w") as file:
        file.write("written")
world.end_together("end a fit")
open("of-rank-0.txt").close()
with sqlite3.connect("runs.db") as runs, h5py.File("rows.h5") as rows:
    said = [runs.execute("select count(*) from run").fetchone(), len(rows)]
said += [open("log.txt").read(), open("shell.txt").read()]
left_out = ("run-", "log.", "tmp", "drawn-")
said += [sorted(name for name in os.listdir() if not name.startswith(left_out)), os.listdir("older")]
with open(f"log.drawn.{world.rank}", "w") as log:
    log.write(repr(sorted(name for name in os.listdir() if name.startswith("drawn-"))))
with open(f"log.{world.rank}", "w") as log:
    log.write(repr(said))
if sys.argv[1:] == ["dies"] and world.rank == 0:
    os.kill(os.getpid(), 9)
world.barrier("end")
"""


def run(folder, *line):
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "file").write_text("old")
    (folder / "script.py").write_text(SCRIPT)
    return Job(line, folder).end(150)


def found(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".db", ".h5") and not path.is_relative_to(folder / "tmp")
    }


@pytest.fixture
def can():
    """Layers can be had here."""
    asked = [sys.executable, "-c", "from matex_tf.layer import kernel; kernel.leave_mounts()"]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("no mount namespace here")


@pytest.mark.parametrize("ends", [(), ("dies",)], ids=["well", "killed"])
def test_once(ends, tmp_path, can):
    """Three ranks find, and leave, what one process does; what each rank names after itself is kept. Where the first
    rank is killed, what it has written is there all the same."""
    one = run(tmp_path / "one", sys.executable, "script.py")
    assert one.code == 0, one.err
    job = run(tmp_path / "three", LAUNCHER, "run", "-n", "3", "--files", "private", "script.py", *ends)
    assert (job.code == 0) is not bool(ends), job.err
    expected, after = found(tmp_path / "one"), found(tmp_path / "three")
    assert b"line\\nline\\n" in expected["log.0"]
    if not ends:
        assert "rank 1 has made 2 files that rank 0 has not made; matex_tf keeps them" in job.err
        assert len({after.pop(f"log.drawn.{rank}") for rank in (1, 2)} | {after["log.drawn.0"]}) == 1
        assert {after.pop("log.1"), after.pop("log.2")} == {expected["log.0"]}
    assert len(after.pop("log.drawn.0")) == len(expected.pop("log.drawn.0"))
    assert after == expected
    folders = [name for name in os.listdir(tmp_path / "three") if name.startswith("run-")]
    assert len(folders) == 1
    assert not list((tmp_path / "three" / "tmp").iterdir())


def test_a_script_that_fails(tmp_path, can):
    """What it has written before an error is in its place, once; also where mpirun alone starts the ranks."""
    (tmp_path / "script.py").write_text(
        "with open('log', 'a') as log:\n    log.write('once')\nraise ValueError('on purpose')\n"
    )
    line = [str(BIN / "mpirun"), "-n", "2", "--oversubscribe", *(["--allow-run-as-root"] * (os.geteuid() == 0))]
    line += [sys.executable, "-m", "matex_tf", "--files", "private", "script.py"]
    job = Job(line, tmp_path).end(100)
    assert job.code and "on purpose" in job.err
    assert (tmp_path / "log").read_text() == "once"


def test_ranks_share_a_generator(tmp_path, can):
    """The first rank runs it, and the others get its elements: they meet at a place that no layer covers."""
    (tmp_path / "script.py").write_text(
        "import numpy as np, keras, tensorflow as tf\n"
        "x = np.ones((8, 2), 'float32')\n"
        "spec = tf.TensorSpec([2]), tf.TensorSpec([])\n"
        "data = tf.data.Dataset.from_generator(lambda: zip(x, x[:, 0]), output_signature=spec).batch(4)\n"
        "model = keras.Sequential([keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(data, verbose=0)\n"
    )
    job = Job([LAUNCHER, "run", "-n", "2", "--files", "private", "script.py"], tmp_path).end(100)
    assert job.code == 0 and "the first rank of each node runs the generator of from_generator" in job.err


def test_who_shares_files_has_none(tmp_path):
    """A script that imports mpi4py runs without, and says so."""
    (tmp_path / "script.py").write_text("from mpi4py import MPI\nopen(f'file.{MPI.COMM_WORLD.rank}', 'w').close()\n")
    job = Job([LAUNCHER, "run", "-n", "2", "--files", "private", "script.py"], tmp_path).end(100)
    assert job.code == 0 and "the script imports mpi4py, so its ranks may share files on purpose" in job.err
    assert (tmp_path / "file.1").exists()


def test_where_there_can_be_none(tmp_path, can):
    """Another file system below the working directory: calls are done once, and what a library writes is too. A line
    says why, if layers were asked for."""
    if os.geteuid():
        pytest.skip("only root can mount")
    (tmp_path / "below").mkdir()
    text = "import shelve\nwith open('log', 'a') as log:\n    log.write('once')\nwith shelve.open('shelf') as shelf:\n"
    (tmp_path / "script.py").write_text(text + "    shelf['opened'] = shelf.get('opened', 0) + 1\n")
    for number, files in enumerate(("auto", "private"), 1):
        line = f"mount -t tmpfs none below && exec {LAUNCHER} run -n 2 --files {files} script.py"
        job = Job(["unshare", "-m", "sh", "-c", line], tmp_path).end(100)
        assert job.code == 0 and (tmp_path / "log").read_text() == "once" * number, job.err
        with shelve.open(str(tmp_path / "shelf"), "r") as shelf:
            assert dict(shelf) == {"opened": number}
    assert f"no private layers (ranks 0-1: other file systems are mounted below {tmp_path})" in job.err


#: The first rank dies between two lines of a log, with a file and a database open; what comes after is the next one's.
DIES = """
import os, sqlite3
import matex_tf

world = matex_tf.init()
first = world.rank == 0
held, runs = open("held", "w"), sqlite3.connect("runs.db")
held.write("before\\n"), runs.execute("create table run (name)"), runs.commit()
with open("log", "a") as log:
    log.write("before\\n")
os.mkdir("run")
world.barrier("write the first line")
if first:
    os.kill(os.getpid(), 9)
world.barrier("go on without it")
with open("log", "a") as log:
    log.write("after\\n")
open("run/new", "w").write("new")
os.remove("old/file")
held.write("after\\n"), held.close()
runs.execute("insert into run values ('after')"), runs.commit(), runs.close()
world.barrier("end")
"""


def test_the_next_rank_becomes_the_first(tmp_path, can):
    """With --faults shrink the files of the rank that comes next are there at the end, whole and once."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("old")
    (tmp_path / "script.py").write_text(DIES)
    line = [LAUNCHER, "run", "-n", "3", "--files", "private", "--faults", "shrink", "script.py"]
    job = Job(line, tmp_path).end(150)
    assert job.code == 0, job.err
    after = {name: text for name, text in found(tmp_path).items() if name != "script.py"}
    assert after == {"log": b"before\nafter\n", "held": b"before\nafter\n", "run/new": b"new"}
    with sqlite3.connect(tmp_path / "runs.db") as runs:
        assert runs.execute("select name from run").fetchall() == [("after",)]


#: Each rank makes what is there on no other: a rank that is late finds none of what the first has made.
LATE = """
import os
from elsewhere import be_late
os.mkdir("before")
be_late()
os.mkdir("after"), os.link("script.py", "linked"), os.remove("old")
"""
ELSEWHERE = """
import time
import matex_tf


def be_late():
    time.sleep(matex_tf.rank())
"""


def test_a_rank_that_is_late(tmp_path, can):
    """What the first rank has made is put in its place after the others have come to their end, not while they run;
    also where the script ends by `sys.exit(0)`. Standard input is a socket, which nobody can open again."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "elsewhere.py").write_text(ELSEWHERE)
    (tmp_path / "old").write_text("old")
    (tmp_path / "script.py").write_text(LATE + "import sys\nprint(sys.stdin.read())\nsys.exit(0)\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"by a socket")
        ours.shutdown(socket.SHUT_WR)
        line = [LAUNCHER, "run", "-n", "3", "script.py"]
        environ = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
        job = subprocess.run(line, cwd=tmp_path, env=environ, stdin=theirs, capture_output=True, text=True, timeout=100)
    assert job.returncode == 0 and "by a socket" in job.stdout, job.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"before", "after", "linked"}
    assert not (tmp_path / "old").exists()


def test_benchmarks_in_layers(can):
    """With `--layers` of a benchmark each rank has mounts of its own, and so a layer."""
    own = os.readlink("/proc/self/ns/mnt")
    for layers in (False, True):
        words = [
            *launching.module("timeit", layers),
            "-n1",
            "-r1",
            "import os; print(os.readlink('/proc/self/ns/mnt'))",
        ]
        found = [line for line in launching.start(2, words).splitlines() if line.startswith("mnt:")]
        assert len(found) == 2 and [each == own for each in found] == [not layers] * 2
