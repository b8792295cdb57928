"""Random changes of a directory in a layer whose rank counts, beside the same in a directory: the same is found in it
after each of them, and below it after what counts was put there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: To fill in: a user, who has the directories from a project's group if that is not 0; and the first seed.
PROCESS = """
import ctypes, os, random, shutil, stat, sys, tempfile
import encodings.ascii, encodings.idna
from matex_tf.layer import kernel, private_layer, shortcomings

user, place = int(sys.argv[1]), sys.argv[2]


def begin(root, drawn):
    os.mkdir(root)
    for _ in range(12):
        path, kind = os.path.join(root, drawn_path(drawn)), drawn.random()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path) if kind < 0.3 else os.symlink("a", path) if kind < 0.4 else open(path, "x").write("old")
        except OSError:
            pass


def drawn_path(drawn):
    return "/".join(drawn.choice("abcd") for _ in range(drawn.randint(1, 3)))


def tree(root):
    found = {}
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in folders + files):
            mode = os.lstat(path).st_mode
            has = os.readlink(path) if stat.S_ISLNK(mode) else open(path).read() if stat.S_ISREG(mode) else ""
            found[os.path.relpath(path, root)] = oct(mode), has
    return found


def change(drawn):
    one, other, text = drawn_path(drawn), drawn_path(drawn), str(drawn.random())
    into_itself = f"{other}/".startswith(f"{one}/")
    return drawn.choice((
        lambda: open(one, "a").write(text),
        lambda: open(one, "w").write(text),
        lambda: os.mkdir(one),
        lambda: os.makedirs(one),
        lambda: os.unlink(one),
        lambda: shutil.rmtree(one),
        lambda: os.rename(one, other),
        lambda: os.replace(one, other),
        lambda: os.symlink(os.path.basename(other), one),
        lambda: os.chmod(one, 0o755 if text[3] > "5" else 0o700),
        lambda: into_itself or shutil.copytree(one, other, symlinks=True),
    ))


def done(root, does):
    os.chdir(root)
    try:
        does()
    except OSError as error:
        return type(error).__name__


def compare(seed):
    plain, own, drawn = f"{place}/plain{seed}", f"{place}/own{seed}", random.Random(seed)
    below = os.open(own, os.O_PATH)
    layer = private_layer.PrivateLayer([own], [own], published=[own])
    shortcomings.make_up_for(layer.devices(), os.stat("/proc/self/ns/user").st_ino != users)
    for step in range(60):
        does, ends = change(drawn), drawn.random() < 0.15 or step == 59
        assert done(plain, does) == done(own, does), (seed, step)
        assert tree(plain) == tree(own), (seed, step)
        if ends:
            layer.publish()
            assert tree(plain) == tree(f"/proc/self/fd/{below}"), (seed, step, "published")
    os.chdir(place)
    layer.take_down()


seeds = range(int(sys.argv[3]), int(sys.argv[3]) + 6)
for seed in seeds:
    begin(f"{place}/plain{seed}", random.Random(seed)), begin(f"{place}/own{seed}", random.Random(seed))
if user:
    for folder, folders, files in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in folders + files)):
            os.lchown(path, user, 4321)
    os.setgroups([4321]), os.setgid(user), os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # /proc/self is the user's again
users = os.stat("/proc/self/ns/user").st_ino
kernel.leave_mounts()
for seed in seeds:
    compare(seed)
"""

#: Files from one directory with a layer to another one: as within one file system, which they are on.
ACROSS = """
import os, sys
from matex_tf.layer import kernel, private_layer, shortcomings
kernel.leave_mounts()
tops = sys.argv[1:3]
layer = private_layer.PrivateLayer(tops, tops, published=tops)
shortcomings.make_up_for(layer.devices(), False)
one, other = tops
os.rename(f"{one}/file", f"{other}/file"), os.replace(f"{one}/folder", f"{other}/folder")
os.link(f"{one}/linked", f"{other}/linked"), os.symlink("file", f"{one}/link")
os.rename(f"{one}/link", f"{other}/link")
try:
    os.link(f"{one}/linked", f"{other}/linked")
except FileExistsError:
    open(f"{other}/there", "x").close()
layer.publish()
layer.take_down()
"""


@pytest.fixture
def place():
    asked = [sys.executable, "-c", "from matex_tf.layer import kernel; kernel.leave_mounts()"]
    done = subprocess.run(asked, capture_output=True)
    if done.returncode:
        pytest.skip(f"no mount namespace: {done.stderr.decode()[-200:]}")
    made = subprocess.check_output(["mktemp", "-d", "/tmp/matex-changes-XXXXXX"], text=True).strip()
    yield Path(made)
    shutil.rmtree(made)


def run(text: str, *arguments: object) -> None:
    line = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, env={**os.environ, "TMPDIR": "/tmp"})
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("first", [1, 16, 25])
@pytest.mark.parametrize("user", [0, 1234], ids=["this user", "a user"])
def test_random_changes(place, user, first):
    """Whatever is made, changed, replaced, renamed and removed, also after it was put in its place."""
    if os.geteuid() and user:
        pytest.skip("only root can become another user")
    run(PROCESS, user, place, first)


def test_from_one_layer_to_another(place):
    """Names are given, and links made, as on the one file system that both directories are on."""
    one, other = place / "one", place / "other"
    (one / "folder").mkdir(parents=True), other.mkdir()
    for name in ("file", "linked", "folder/file"):
        (one / name).write_text(name)
    run(ACROSS, one, other)
    assert {path.name for path in other.iterdir()} == {"file", "folder", "link", "linked", "there"}
    assert (other / "link").read_text() == "file" and (other / "folder" / "file").read_text() == "folder/file"
    assert [path.name for path in one.iterdir()] == ["linked"]


#: A rank of an ordinary user's, by the lines of `python -m matex_tf`; its launcher is this process, which has a pipe.
RANK = """
import ctypes, os, sys
import encodings.ascii, encodings.idna
import matex_tf.__main__ as main
from matex_tf.features import registry
from matex_tf.job import layered, run
from matex_tf.layer import kernel
lines = compile(open(main.__file__).read(), "main", "exec")
registry.enter, layered.enter = lambda words: None, lambda words: kernel.leave_mounts()
run.main = lambda words, mounts: print(os.read(0, 100).decode())
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(1234), os.setuid(1234)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
reads, writes = os.pipe()
os.write(writes, b"what the job is given")
if not os.fork():
    os.environ |= {"OMPI_COMM_WORLD_RANK": "0", "MATEX_STDIN": f"0:/proc/{os.getppid()}/fd/{reads}"}
    os.close(reads)
    exec(lines, {"__name__": "__main__"})
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_standard_input_of_a_user(place):
    """A rank of an ordinary user's has standard input too: from its namespace it cannot open what its launcher has."""
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, "-c", RANK], capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0 and done.stdout == "what the job is given\n", done.stderr[-2000:]
