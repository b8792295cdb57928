"""A read that never ends: a line says who reads what, and the job ends with an error, whatever the library holds."""

import mmap
import os
import signal
import struct
import sys

import h5py
import netCDF4
import numpy as np
import pytest
from jobs import LAUNCHER, Job

from matex_tf.readers.safety import _read_watcher, read_watch
from matex_tf.state import run_state

READ = "import sys; from matex_tf import DataSet; print(DataSet.open(sys.argv[1]).data.shape)"


def endless(path):
    """Let the free space of every global heap of a file be 0 bytes long: HDF5 goes round it for ever."""
    content, heaps = bytearray(path.read_bytes()), 0
    at = content.find(b"GCOL")
    while at >= 0:
        place, end = at + 16, at + struct.unpack_from("<Q", content, at + 8)[0]
        while place + 16 <= end:
            number, _, _, size = struct.unpack_from("<HHIQ", content, place)
            if number == 0:
                struct.pack_into("<Q", content, place + 8, 0)
                heaps += 1
                break
            place += 16 + -(-size // 8) * 8
        at = content.find(b"GCOL", at + 4)
    assert heaps
    path.write_bytes(content)
    return path


def netcdf4(path):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("row", 20)
        file.createVariable("features", "f4", ("row",))[:] = np.arange(20)
    return path


def words(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(20)
        file.create_dataset("y", data=["word"] * 20, dtype=h5py.string_dtype())
    return path


@pytest.mark.variants(0)
def test_a_file_that_is_never_read(tmp_path):
    """netCDF-4, whose library lets other threads run; HDF5, whose library does not; and without any setting."""
    nc, h5 = endless(netcdf4(tmp_path / "a.nc")), endless(words(tmp_path / "b.h5"))
    short = {"MATEX_STALL_SECONDS": "1", "MATEX_STALL_ABORT_SECONDS": "5"}
    spinning = f"from matex_tf.readers.safety import read_watch; read_watch.SPINNING_SECONDS = 0.5; {READ}"
    jobs = [
        Job([sys.executable, "-c", READ, str(nc)], tmp_path, **short),
        Job([sys.executable, "-c", READ, str(h5)], tmp_path, **short),
        Job([sys.executable, "-c", spinning, str(nc)], tmp_path),
    ]
    for job, path in zip(jobs, (nc, h5, nc), strict=True):
        ended = job.end()
        assert ended.code == -signal.SIGKILL, ended
        *lines, last = [line for line in ended.err.splitlines() if f"{path} is being " in line]
        assert last.startswith("matex_tf: error: ") and "by this process on " in last
        if job is jobs[2]:
            assert "is being read as NetCDF" in last and "the file is damaged, and is given up" in last
        else:
            assert "counts as dead (--stall-abort-seconds)" in last
            assert lines and "given up after 5 s" in lines[-1]
        assert not job.left()


def test_one_rank_of_two_never_reads(tmp_path):
    """The other one waits for it, and ends with it."""
    for rank in range(2):
        (tmp_path / f"on{rank}").mkdir()
        netcdf4(tmp_path / f"on{rank}" / "some.nc")
    endless(tmp_path / "on1" / "some.nc")
    (tmp_path / "train.py").write_text(
        "import os, matex_tf\n"
        "os.chdir(f'on{matex_tf.rank()}')\n"
        "matex_tf.DataSet.open('some.nc', format='netcdf').data\n"
        "print('read')\n"
    )
    command = [LAUNCHER, "run", "-n", "2", "--stall-seconds", "1", "--stall-abort-seconds", "5", "train.py"]
    ended = Job(command, tmp_path).end(90)
    assert ended.code != 0 and "read\n" not in ended.out
    assert "some.nc is being read as NetCDF by rank 1 on " in ended.err
    assert "counts as dead (--stall-abort-seconds)" in ended.err


def test_a_process_that_dies_while_it_reads(tmp_path):
    """As a library may on a damaged file: a line says what was read."""
    crash = (
        "import os, signal; from matex_tf.readers.safety import read_watch\n"
        "with read_watch.watched('a.h5', 'read (rows 0 to 9)'): os.kill(os.getpid(), signal.SIGSEGV)"
    )
    ended = Job([sys.executable, "-c", crash], tmp_path).end()
    assert ended.code == -signal.SIGSEGV
    for words in ("a.h5 was being read (rows 0 to 9) by this process on ", "when its process ended: "):
        assert words in ended.err


@pytest.fixture
def watch(monkeypatch):
    """A watch with a memory of its own, a clock that stands still, and what it says and does."""
    said = []
    shared = mmap.mmap(-1, _read_watcher.SLOT.size * 2)
    monkeypatch.setattr(_read_watcher.Watch, "_say", lambda self, line: said.append(line))
    monkeypatch.setattr(_read_watcher.Watch, "_give_up", lambda self, why: said.append(f"given up: {why}"))
    monkeypatch.setattr(_read_watcher, "cpu_seconds", lambda process, thread: watched.cpu)
    monkeypatch.setattr(_read_watcher.time, "monotonic", lambda: watched.now)
    watched = _read_watcher.Watch(shared, 5, 20, 9, "rank 3 on here")
    watched.now, watched.cpu, watched.said, watched.shared = 100.0, 7.0, said, shared
    return watched


def look(watch, now, cpu=7.0, since=None):
    """What is said at a time, where a unit of work has begun at another."""
    watch.said.clear()
    watch.now, watch.cpu = now, cpu
    if since is not None:
        text = b"a.h5 is being read"
        _read_watcher.SLOT.pack_into(watch.shared, _read_watcher.SLOT.size, since, 1, len(text), text)
    watch.look()
    return list(watch.said)


def test_what_is_said_and_when(watch):
    """Once for each unit of work; one that goes on is left alone, however long all of them take."""
    assert look(watch, 100, since=100) == []
    assert look(watch, 104.9) == []
    (line,) = look(watch, 105)
    assert line.startswith("a.h5 is being read by rank 3 on here for 5 s so far (it waits for the file system)")
    assert look(watch, 119) == []
    for now in range(120, 200, 4):
        assert look(watch, now, since=now) == []
    assert look(watch, 200, cpu=9.0) == []
    assert "it computes: the file is damaged" in look(watch, 206, cpu=12.0)[0]
    assert ", with 10 s of computing" in look(watch, 207, cpu=17.0)[0]
    assert look(watch, 219, cpu=18.0, since=0.0) == []
    look(watch, 220, since=220)
    assert "given up: a.h5 is being read by rank 3 on here for 20 s" in look(watch, 240)[0]


def test_a_process_that_was_forked(tmp_path):
    """It has a watch of its own, and does not end, or keep, that of the other one."""
    with read_watch.watched("a.h5", "read"):
        before = run_state.part(read_watch.Reading).watch
        assert before is not None and before._process.poll() is None
        child = os.fork()
        if child == 0:
            try:
                with read_watch.watched("b.h5", "read"):
                    mine = run_state.part(read_watch.Reading).watch
                    os._exit(0 if mine is not before and mine is not None else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert before._process.poll() is None
