"""What libraries do to files, as parts of one script, and what lets its ranks meet."""

from __future__ import annotations

import importlib.util
import re

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

#: Another module, which knows ranks. One that is beside the script would let it share files on purpose.
MEETING = """
import json, os
import matex_tf

world = matex_tf.init()


def meet():
    world.barrier("wait for the others")
    getattr(world.on_meeting, "at_once", int)()
    world.barrier("wait for what the first has written")


def layers():
    from matex_tf.patches.common import active_flag

    return active_flag.layers().on


def say(said):
    everyone = world.allgather(said, "compare what is said")
    if world.rank == 0:
        print(json.dumps(everyone))
"""


def missing(packages):
    return [package for package in packages if importlib.util.find_spec(package) is None]


def general(path):
    """A name without what the clock and chance have put into it."""
    return re.sub(r"drawn-\w+|[0-9a-f]{4,}|\d{3,}", "N", path)
