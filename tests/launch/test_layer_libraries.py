"""Libraries that write files by ways of their own, on one process and on three ranks with layers: the same files.

One script runs all of them, each in a directory of its own; twice on one process, so that it is known which files a run
repeats. `docs/files.md` has what was tried with packages that are not installed here.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from jobs import LAUNCHER, Job

from matex_tf.layer import kernel

pytestmark = pytest.mark.timeout(200)

#: By name: packages that it needs, and what it does. `meet` lets ranks meet; what the first has written is then there.
WRITES = {
    "shelve": (
        (),
        """
        import shelve
        for number in range(3):
            with shelve.open("shelf") as shelf:
                shelf["opened"] = shelf.get("opened", 0) + 1
                shelf[str(number)] = number
            meet()
        with shelve.open("shelf") as shelf:
            result = sorted(shelf.items())
        """,
    ),
    "sqlite3": (
        (),
        """
        import sqlite3
        for number in range(3):
            base = sqlite3.connect("runs.db")
            base.execute("pragma journal_mode=wal")
            base.execute("create table if not exists runs (number integer primary key, name text)")
            base.execute("insert into runs (name) values (?)", [f"run {number}"])
            base.commit()
            other = sqlite3.connect("runs.db", timeout=1)
            result = other.execute("select * from runs").fetchall()
            other.close(), base.close()
            meet()
        """,
    ),
    "locks": (
        (),
        """
        import fcntl
        first, second = open("flock", "w"), open("lockf", "w")
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open("running", os.O_CREAT | os.O_EXCL))
        meet()
        there = os.listdir()
        os.remove("running")
        meet()
        result = len(there), os.path.exists("running")
        """,
    ),
    "names": (
        (),
        """
        import pathlib, tempfile, time, uuid
        for name in (time.time_ns(), os.getpid(), uuid.uuid4()):
            for folder in ("runs", "."):
                os.makedirs(f"{folder}/{name}")
                open(f"{folder}/{name}/log", "w").write("log")
            open(f"{name}.log", "w").write("log")
            meet()
        open(tempfile.mkdtemp(prefix="drawn-", dir=".") + "/log", "w").write("log")
        meet()
        result = len(os.listdir("runs")), len(os.listdir(".")), len(list(pathlib.Path(".").rglob("log")))
        """,
    ),
    "numbered": (
        (),
        """
        for _ in range(3):  # as pytest numbers its directories, and points to the last one
            last = max((int(name[3:]) for name in os.listdir() if name[3:].isdigit()), default=-1)
            os.mkdir(f"of-{last + 1}")
            if os.path.islink("of-last"):
                os.unlink("of-last")
            os.symlink(f"of-{last + 1}", "of-last")
            open("of-last/log", "a").write("log")
            meet()
        result = sorted(os.listdir()), os.readlink("of-last")
        """,
    ),
    "netCDF4": (
        ("netCDF4",),
        """
        import netCDF4
        for epoch in range(3):
            with netCDF4.Dataset("log.nc", "a" if epoch else "w") as log:
                if not epoch:
                    log.createDimension("epoch", None)
                    log.createVariable("loss", "f4", ("epoch",))
                log["loss"][epoch] = epoch
            meet()
        with netCDF4.Dataset("log.nc") as log:
            result = log["loss"][:].tolist()
        """,
    ),
    "h5py": (
        ("h5py",),
        """
        import h5py
        for epoch in range(3):
            with h5py.File("log.h5", "a") as log:
                log[str(epoch)] = [epoch]
            meet()
        with h5py.File("log.h5") as log:
            result = sorted(log)
        """,
    ),
    "HDFStore": (
        ("pandas", "tables"),
        """
        import pandas
        for epoch in range(3):
            with pandas.HDFStore("log.h5") as log:
                log.append("log", pandas.DataFrame({"epoch": [epoch]}))
            meet()
        result = len(pandas.read_hdf("log.h5"))
        """,
    ),
    "zarr": (
        ("zarr",),
        """
        import numpy, zarr
        zarr.create_array("log.zarr", shape=(0,), chunks=(2,), dtype="f4")
        for epoch in range(3):
            zarr.open_array("log.zarr", mode="r+").append(numpy.array([epoch], "f4"))
            meet()
        result = zarr.open_array("log.zarr", mode="r")[:].tolist()
        """,
    ),
    "joblib": (
        ("joblib",),
        """
        import joblib
        @joblib.Memory("cache", verbose=0).cache
        def compute(number):
            with open("calls", "a") as calls:
                calls.write("call ")
            return number * 2
        result = []
        for _ in range(3):
            result.append(compute(7))
            meet()
        result.append(open("calls").read())
        """,
    ),
    "dask": (
        ("dask", "numpy"),
        """
        import dask.array
        dask.array.to_npy_stack("stack", dask.array.arange(6, chunks=2))
        meet()
        result = dask.array.from_npy_stack("stack").compute().tolist()
        """,
    ),
}

SCRIPT = """
import json, os, sys
from meeting import meet
said = {}
"""

#: Another module, which knows ranks. One that is beside the script would let it share files on purpose.
MEETING = """
import json, os
import matex_tf

world = matex_tf.init()


def meet():
    world.barrier("wait for the others")
    getattr(world.on_meeting, "at_once", int)()
    world.barrier("wait for what the first has written")


def say(said):
    everyone = world.allgather(said, "compare what is said")
    if world.rank == 0:
        print(json.dumps(everyone))
"""


def script():
    parts = [SCRIPT]
    for name, (packages, text) in WRITES.items():
        if not missing(packages):
            body = textwrap.indent(textwrap.dedent(text).strip(), "    ")
            parts.append(
                f"os.chdir({name!r})\ntry:\n{body}\n    said[{name!r}] = result\n"
                f"except Exception as error:\n    said[{name!r}] = repr(error)\nmeet()\nos.chdir('..')\n"
            )
    return "".join([*parts, "import meeting\nmeeting.say(said)\n"])


def missing(packages):
    return [package for package in packages if importlib.util.find_spec(package) is None]


def run(folder, *line):
    """What each rank says, and the bytes of the files of each part."""
    (folder / "script").mkdir()
    (folder / "elsewhere").mkdir()
    for name in WRITES:
        (folder / name).mkdir()
    (folder / "elsewhere" / "meeting.py").write_text(MEETING)
    (folder / "script" / "script.py").write_text(script())
    job = Job([*line, "script/script.py"], folder, PYTHONPATH=str(folder / "elsewhere")).end(150)
    assert job.code == 0, job.err
    found: dict[str, dict[str, bytes]] = {}
    for name in WRITES:
        place = folder / name
        paths = [path for path in place.rglob("*") if not path.is_dir() or path.is_symlink()]
        found[name] = {str(path.relative_to(place)): path.read_bytes() for path in paths if path.is_file()}
    shutil.rmtree(folder)
    folder.mkdir()
    return json.loads(job.out.splitlines()[-1]), found, job.err


@pytest.fixture(scope="module")
def runs():
    """Two runs of one process, and one of three ranks."""
    asked = kernel_refuses()
    if asked:
        pytest.skip(f"no mount namespace here: {asked}")
    with tempfile.TemporaryDirectory(prefix="matex-layers-test-") as place:
        one = [run(Path(place), sys.executable) for _ in range(2)]
        yield *one, run(Path(place), LAUNCHER, "run", "-n", "3")


def kernel_refuses():
    """Why there can be no layers; asked in another process, which has one thread."""
    asked = [sys.executable, "-c", f"from {kernel.__name__} import leave_mounts; leave_mounts()"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stderr[-200:] if done.returncode else ""


@pytest.mark.parametrize("name", WRITES)
def test_same_files(runs, name):
    """Every rank finds what one process finds; files have the names, and where a run repeats them, the bytes."""
    if gone := missing(WRITES[name][0]):
        pytest.skip(f"the package {gone[0]} is not installed")
    (one, files, _), (_, again, _), (three, after, said) = runs
    assert "no private layers" not in said
    assert three[0][name] == three[1][name] == three[2][name] == one[0][name]
    assert Counter(map(general, after[name])) == Counter(map(general, files[name]))
    repeated = {path: text for path, text in files[name].items() if again[name].get(path) == text}
    assert {path: after[name].get(path) for path in repeated} == repeated


def general(path):
    """A name without what the clock and chance have put into it."""
    return re.sub(r"drawn-\w+|[0-9a-f]{4,}|\d{3,}", "N", path)
