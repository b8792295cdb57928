"""A file that gets its name when it is whole, in every way in which writing it can end."""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from matex_tf.errors import SettingError
from matex_tf.storage import atomic_file


def put(path: Path, text: str) -> None:
    atomic_file.put(path, lambda draft: Path(draft).write_text(text))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_and_old(tmp_path, monkeypatch):
    """A file that was not there, and one that was; what `write` returns; a path without a directory."""
    path = tmp_path / "a.keras"
    drafts = []

    def write(draft):
        drafts.append(draft)
        assert not path.exists() or path.read_text() == "old", "the old file stays until the new one is whole"
        return Path(draft).write_text("old")

    assert atomic_file.put(path, write) == 3 and path.read_text() == "old"
    assert atomic_file.put(path, write) == 3 and os.path.basename(drafts[0]) == "a.keras"
    monkeypatch.chdir(tmp_path)
    put(Path("a.keras"), "new")
    assert path.read_text() == "new" and left(tmp_path) == ["a.keras"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_an_error_in_the_middle(tmp_path, error):
    """The old file stays, and nothing beside it."""
    path = tmp_path / "file"
    path.write_text("old")

    def write(draft):
        Path(draft).write_text("half")
        raise error

    with pytest.raises(error):
        atomic_file.put(path, write)
    assert path.read_text() == "old" and left(tmp_path) == ["file"]


def test_a_disk_that_is_full(tmp_path):
    """The same."""
    path = tmp_path / "file"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            put(path, "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old" and left(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from matex_tf.storage import atomic_file
def write(draft):
    open(draft, "w").write("half")
    os.kill(os.getpid(), signal.SIGKILL)
atomic_file.put(sys.argv[1], write)
"""


def test_a_process_that_is_killed(tmp_path):
    """The old file stays; what is left beside it is gone with the next file."""
    path = tmp_path / "file"
    path.write_text("old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    assert path.read_text() == "old" and left(tmp_path) == [".matex-writing-file", "file"]
    put(path, "new")
    assert path.read_text() == "new" and left(tmp_path) == ["file"]


HDF5 = """
import resource, sys
import h5py
from matex_tf.storage import atomic_file
def write(draft):
    with h5py.File(draft, "w") as file:
        file["a"] = bytes(100_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
atomic_file.put(sys.argv[1], write)
"""


def test_hdf5_on_a_disk_that_is_full(tmp_path):
    """The library raises, or crashes; either way the old file stays, and the next one clears what is left."""
    path = tmp_path / "file.h5"
    path.write_text("old")
    assert subprocess.run([sys.executable, "-c", HDF5, str(path)], stderr=subprocess.DEVNULL).returncode
    assert path.read_text() == "old"
    put(path, "new")
    assert path.read_text() == "new" and left(tmp_path) == ["file.h5"]


def test_mode_and_link(tmp_path):
    """A new file has the mode that the umask gives, an old one keeps its own; a link still leads to it."""
    path, link = tmp_path / "file", tmp_path / "sub" / "link"
    link.parent.mkdir()
    link.symlink_to("../file")
    before = os.umask(0o027)
    try:
        put(link, "new")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        put(link, "newer")
    finally:
        os.umask(before)
    assert path.read_text() == "newer" and stat.S_IMODE(path.stat().st_mode) == 0o604
    assert link.is_symlink() and left(link.parent) == ["link"]


def test_what_is_no_plain_file(tmp_path):
    """A device is written to as it is; a directory is the error that it is without us."""
    put(Path("/dev/null"), "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        put(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError, match="no/file"):
        put(tmp_path / "no" / "file", "text")
    assert left(tmp_path) == ["folder"]


def test_a_name_as_long_as_can_be(tmp_path):
    """It leaves no room for more, and none is taken."""
    put(tmp_path / ("n" * 255), "text")
    assert left(tmp_path) == ["n" * 255]


def test_something_else_has_the_name(tmp_path):
    """A link, or another user's directory, where the draft would be: it is not used, and stays."""
    (tmp_path / "elsewhere").mkdir()
    trap = tmp_path / ".matex-writing-file"
    trap.symlink_to("elsewhere")
    put(tmp_path / "file", "new")
    assert trap.is_symlink() and not left(tmp_path / "elsewhere")
    trap.unlink()
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    put(tmp_path / "file", "newer")
    assert (tmp_path / "file").read_text() == "newer" and left(tmp_path) == [trap.name, "elsewhere", "file"]


def as_another_user(call):
    """Whether something succeeds in a process that is not root."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgid(65533)
            os.setuid(65533)
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_a_directory_that_takes_no_files(tmp_path, monkeypatch):
    """A file in it that may be written to is written in its place; one that may not is the error that it is."""
    monkeypatch.chdir(tmp_path)  # a user who may not pass through the directories above can be here
    tmp_path.chmod(0o755)
    for name, mode in (("mine", 0o666), ("fixed", 0o444)):
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(mode)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "fixed").write_text("old")
    monkeypatch.setattr(os.path, "realpath", os.fspath)
    assert as_another_user(lambda: put(Path("mine"), "new")) and (tmp_path / "mine").read_text() == "new"
    assert as_another_user(lambda: atomic_file.check("mine"))
    for name in ("fixed", "open/fixed", "absent"):
        assert not as_another_user(lambda name=name: put(Path(name), "new"))
        assert not as_another_user(lambda name=name: atomic_file.check(name))
    assert (tmp_path / "open" / "fixed").read_text() == "old"


def test_seen_before(tmp_path):
    """What cannot be written is known before there is anything to write, and the try leaves nothing."""
    (tmp_path / "old").write_text("old")
    for name in ("new", "old"):
        atomic_file.require(str(tmp_path / name), "--trace")
    atomic_file.require("", "--trace")
    atomic_file.require("/dev/null", "--trace")
    for name in ("no/file", "", "old/file"):
        with pytest.raises(SettingError, match=r"cannot be written \(.*\): give another file as --trace"):
            atomic_file.require(f"{tmp_path}/{name}", "--trace")
    assert left(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


def test_json(tmp_path):
    """A value that JSON does not have leaves the old file."""
    path = tmp_path / "file.json"
    atomic_file.put_json(path, {"a": [1]}, indent=1)
    with pytest.raises(TypeError):
        atomic_file.put_json(path, {"a": [1] * 9000, "b": object()})
    assert path.read_text() == '{\n "a": [\n  1\n ]\n}' and left(tmp_path) == ["file.json"]
