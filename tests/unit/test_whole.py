"""A file that gets its name when it is whole, in every way in which writing it can end."""

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
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
    draft, name = left(tmp_path)
    assert (
        path.read_text() == "old" and draft.startswith(".matex-writing-") and draft.endswith("-file") and name == "file"
    )
    put(tmp_path / "another", "text")
    assert left(tmp_path) == [draft, "another", "file"]
    (tmp_path / "another").unlink()
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
    """It leaves no room for more, and none is taken; also of letters that take several bytes."""
    for name in ("n" * 255, "é" * 127):
        put(tmp_path / name, "text")
        put(tmp_path / name, "more")
        assert left(tmp_path) == [name] and (tmp_path / name).read_text() == "more"
        (tmp_path / name).unlink()


def test_something_else_has_the_name(tmp_path):
    """What looks like a draft, and is a link, a file or another user's directory, is not cleared away."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("kept")
    trap = tmp_path / f".matex-writing-{atomic_file._machine()}-12345678-file"
    for make in (lambda: trap.symlink_to("elsewhere"), lambda: trap.write_text("text"), lambda: anothers(trap)):
        make()
        put(tmp_path / "file", "new")
        assert left(tmp_path) == [trap.name, "elsewhere", "file"] and left(tmp_path / "elsewhere") == ["kept"]
        trap.rmdir() if trap.is_dir() and not trap.is_symlink() else trap.unlink()


def anothers(path):
    """A directory of another user; of nobody where only root could make one."""
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, 65533, 65533)
    else:
        path.rmdir()
        path.write_text("text")


@pytest.mark.parametrize("order", ["first ends first", "first ends last"])
def test_two_that_write_at_once(tmp_path, order):
    """Each writes a draft of its own, and what stays is whole: that of the one that ends last."""
    path, half, other_is_done = tmp_path / "file", threading.Event(), threading.Event()

    def first(draft):
        with open(draft, "w") as file:
            file.write("first " * 1000)
            file.flush()
            half.set()
            assert order == "first ends first" or other_is_done.wait(60)
            file.write("first " * 1000)

    def second(draft):
        Path(draft).write_text("second ")
        if order == "first ends first":
            thread.join(60)
            assert path.read_text() == "first " * 2000

    errors = []

    def run():
        try:
            atomic_file.put(path, first)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert half.wait(60)
    atomic_file.put(path, second)
    assert order == "first ends first" or path.read_text() == "second "
    other_is_done.set()
    thread.join(60)
    assert not errors and not thread.is_alive()
    assert path.read_text() == ("second " if order == "first ends first" else "first " * 2000)
    assert left(tmp_path) == ["file"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """Drafts have names of their own all the same, and nothing is cleared away."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    trap = tmp_path / f".matex-writing-{atomic_file._machine()}-12345678-file"
    trap.mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    put(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new" and left(tmp_path) == [trap.name, "file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
@pytest.mark.parametrize("place", ["link", "folder/file", "own/../link", "own/back"])
def test_a_link_of_another_user(tmp_path, place):
    """In a directory that all can write to it is not followed, wherever it stands in a path; one's own is."""
    shared, target = tmp_path / "shared", tmp_path / "mine"
    for folder in (shared, target, shared / "own"):
        folder.mkdir()
    shared.chmod(0o1777)
    os.chown(shared, 65532, 65532)
    (target / "file").write_text("old")
    (shared / "link").symlink_to(target / "file")
    (shared / "folder").symlink_to(target)
    (shared / "own" / "back").symlink_to("../link")
    put(shared / place, "new")
    assert (target / "file").read_text() == "new"
    for name in ("link", "folder"):
        os.chown(shared / name, 65533, 65533, follow_symlinks=False)
    for call in (lambda: put(shared / place, "newer"), lambda: atomic_file.check(shared / place)):
        with pytest.raises(PermissionError, match="a link that another user has put into a directory"):
            call()
    with pytest.raises(SettingError, match="another user"):
        atomic_file.require(str(shared / place), "--trace")
    assert (target / "file").read_text() == "new"
    for name in ("link", "folder"):
        os.chown(shared / name, 65532, 65532, follow_symlinks=False)  # the owner of the directory may
    put(shared / place, "newest")
    assert (target / "file").read_text() == "newest"


def test_links_in_a_circle(tmp_path):
    """An error, as for any other call; nothing is written in their place."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        put(tmp_path / "a", "text")
    assert left(tmp_path) == ["a", "b"]


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
    monkeypatch.setattr(atomic_file, "_followed", os.fspath)
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
