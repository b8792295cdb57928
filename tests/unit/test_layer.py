"""The private layer of a rank, in processes of its own: of this user and, if that is root, of an ordinary one too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matex_tf.job import layered as layers_of_job
from matex_tf.layer import asking, kernel, places
from matex_tf.layer.publication import Publication

#: A process in a folder, whose layer is up as `layer`. To fill in: the user, and what it does.
PROCESS = """
import ctypes, os, shutil, sqlite3, sys, tempfile
import encodings.ascii, encodings.idna
from matex_tf.layer import kernel, leftovers, places, private_layer, shortcomings
if %d:
    os.setgroups([4321]), os.setgid(1234), os.setuid(1234)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # /proc/self is the user's again
here, users = os.getcwd(), os.stat("/proc/self/ns/user").st_ino
kernel.leave_mounts()
tops = places.to_cover([here])
layer = private_layer.PrivateLayer(tops, [here], published=tops if %r else [])
layer.moved = shortcomings.make_up_for(layer.devices(), os.stat("/proc/self/ns/user").st_ino != users)
%s
"""


def layered(folder: Path, does: str, user: int = 0, first: bool = False) -> None:
    """Run something in a layer over a folder; `user` 1234 has `folder` from a project's group."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS % (user, first, does)],
        cwd=folder,
        env={**os.environ, "TMPDIR": "/tmp", "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def can():
    """Layers can be had here."""
    done = subprocess.run(
        [sys.executable, "-c", "from matex_tf.layer import kernel; kernel.leave_mounts()"], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no mount namespace: {done.stderr.decode()[-200:]}")


#: A rank of a user's that says where it has something, and reads what another one has.
RANK = """
import ctypes, os, sys
import encodings.ascii, encodings.idna
from matex_tf.layer import user_namespace
if %d:
    os.setgroups([]), os.setgid(1234), os.setuid(1234)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
user_namespace.enter(sys.argv[1], 3)
libc, mine, got = ctypes.CDLL(None), ctypes.create_string_buffer(b"text of a rank"), ctypes.create_string_buffer(14)
print(os.getpid(), ctypes.addressof(mine), os.stat("/proc/self/ns/user").st_ino, os.stat("/proc/self/ns/mnt").st_ino)
sys.stdout.flush()
process, address = map(int, input().split())
into, out = (ctypes.c_size_t * 2)(ctypes.addressof(got), 14), (ctypes.c_size_t * 2)(address, 14)
libc.process_vm_readv(process, into, 1, out, 1, 0)
print(got.raw.decode())
input()
"""


def test_one_user_namespace(can):
    """The ranks of a node have mounts of their own each, and one user namespace: they may read one another's memory."""
    line = [sys.executable, "-c", RANK % (os.geteuid() == 0), f"job {os.getpid()}"]
    ranks = [subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [rank.stdout.readline().split() for rank in ranks]
    for number, rank in enumerate(ranks):
        rank.stdin.write(" ".join(said[number - 1][:2]) + "\n"), rank.stdin.flush()
    assert [rank.stdout.readline() for rank in ranks] == ["text of a rank\n"] * 3
    for rank in ranks:
        rank.communicate("\n", timeout=60)
    _, _, users, mounts = zip(*said, strict=True)
    assert len(set(mounts)) == 3 and len(set(users)) == 1
    assert int(users[0]) != os.stat("/proc/self/ns/user").st_ino


@pytest.fixture(params=[pytest.param(0, id="this user"), pytest.param(1234, id="a user")])
def place(request, tmp_path_factory, can):
    """A folder with files, and whose it is."""
    if os.geteuid() and request.param:
        pytest.skip("only root can become another user")
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/matex-layer-test-XXXXXX"], text=True).strip())
    (folder / "results").mkdir()
    (folder / "old.txt").write_text("old\n")
    (folder / "results" / "first.txt").write_text("first\n")
    if request.param:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 1234, 4321)
            path.chmod(0o2775 if path.is_dir() else 0o664)
    yield folder, request.param
    subprocess.run(["rm", "-rf", folder], check=True)


def state(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    }


WRITES = """
open("new.txt", "w").write("new")
open("old.txt", "a").write("more\\n")
open("results/second.txt", "w").write("second\\n")
os.remove("results/first.txt")
os.rename("results", "renamed"), os.mkdir("results")
with sqlite3.connect("a.db") as base:
    base.execute("create table one (two)")
assert sorted(os.listdir(".")) == ["a.db", "new.txt", "old.txt", "renamed", "results"], os.listdir(".")
assert os.listdir("renamed") == ["second.txt"] and not os.listdir("results")
assert open("old.txt").read() == "old\\nmore\\n"
assert os.getuid() == %d and leftovers.name() not in os.listdir("/tmp")
"""


def test_nothing_changes_below(place):
    """A rank sees what it has done itself, and nobody else does."""
    folder, user = place
    before = state(folder)
    layered(folder, WRITES % user + "layer.remove()", user)
    assert state(folder) == before


def test_what_counts_is_put_in_its_place(place):
    """What the first rank has written, removed and renamed is so below, when it is published; files keep the group."""
    folder, user = place
    layered(folder, WRITES % user + "layer.publish()\nlayer.remove()", user, first=True)
    after = state(folder)
    assert after.pop("a.db")
    assert after == {"new.txt": "new", "old.txt": "old\nmore\n", "renamed/second.txt": "second\n"}
    assert (folder / "results").is_dir()
    if user:
        assert (folder / "new.txt").stat().st_gid == (folder / "old.txt").stat().st_gid == 4321


def test_of_a_rank_that_was_killed(place):
    """The next one that comes puts what counted in its place; what a later rank wrote is gone."""
    folder, user = place
    layered(folder, 'open("kept.txt", "w").write("kept"); os._exit(0)', user, first=True)
    layered(folder, 'open("lost.txt", "w").write("lost"); os._exit(0)', user)
    assert not (folder / "kept.txt").exists()
    tidy = f"import os; from matex_tf.layer import leftovers; os.setuid({user or os.geteuid()}); leftovers.tidy('/tmp')"
    subprocess.run([sys.executable, "-c", tidy], check=True, timeout=60)
    assert (folder / "kept.txt").read_text() == "kept" and not (folder / "lost.txt").exists()


def test_rights_are_those_of_the_user(place):
    """A file that is read-only is so in a layer too, for whoever is not root."""
    folder, user = place
    (folder / "old.txt").chmod(0o444)
    layered(folder, f'assert os.access("old.txt", os.W_OK) is {not user}; layer.remove()', user)


def test_published_again_and_once(tmp_path):
    """What has changed since is put there again; what the user has made anew is not removed again."""
    upper, real = tmp_path / "upper", tmp_path / "real"
    upper.mkdir(), real.mkdir()
    (upper / "log").write_text("1")
    publication = Publication(str(upper), str(real))
    assert publication.publish() == 1 and publication.publish() == 0
    with open(upper / "log", "a") as log:
        log.write("2")
    assert (real / "log").read_text() == "12"  # a link, which is there at once
    (real / "log").unlink(), (real / "log").write_text("another's")
    assert Publication(str(upper), str(real), only_missing=True).publish() == 0
    assert (real / "log").read_text() == "another's"


def test_where_layers_go():
    """As high up as one mount reaches; a directory with other mounts below it has none, and is an error if it must."""
    mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /tmp rw - tmpfs t rw\n3 1 8:3 / /proc rw - proc p rw\n"
    found = places.to_cover([], {"HOME": "/root"}, mounts)
    assert "/tmp" in found and "/proc" not in found and not any(path.startswith("/usr") for path in found)
    with pytest.raises(OSError, match="mounted below"):
        places.to_cover(["/tmp"], {}, mounts + "4 2 8:4 / /tmp/inside rw - ext4 b rw\n")
    read_only = mounts.replace("/tmp rw", "/tmp ro")
    assert "/tmp" not in places.to_cover([], {}, read_only)


#: Scripts, a module beside each, and in what words they share files; empty where they do not.
SHARES = {
    "prints its rank": ("import matex_tf\nprint(f'rank {matex_tf.rank()}')", "", ""),
    "chooses": ("import os\nif int(os.environ.get('SLURM_PROCID', 0)) == 0: print('begin')", "", ""),
    "imports mpi4py": ("from mpi4py import MPI", "", "imports mpi4py"),
    "a module beside it": ("import helper", "import horovod.tensorflow as hvd", "imports horovod"),
    "another beside it": ("import helper.part", "import os", ""),
    "names a file": ("import matex_tf as m\nr = m.rank()\nopen(f'log.{r}', 'w')", "", "at line 3"),
    "names it by parts": ("from matex_tf import rank\nname = 'log.' + str(rank())", "", "at line 2"),
    "names it by a variable": ("import os\nos.mkdir('run-%s' % os.environ['OMPI_COMM_WORLD_RANK'])", "", "at line 2"),
    "of another number": ("import matex_tf\nr = matex_tf.rank()\nfor e in (1, 2): open(f'{e}.txt', 'w')", "", ""),
    "lets ranks meet": ("import matex_tf\nmatex_tf.init().barrier('here')", "", "meet by itself"),
    "waits": ("import matex_tf, time\nif matex_tf.rank():\n    time.sleep(1)", "", "sleeps"),
    "sleeps without ranks": ("import time\ntime.sleep(1)", "", ""),
}


@pytest.mark.parametrize("name", SHARES)
def test_who_shares_files(tmp_path, name):
    """Who gives each rank a file of its own, or lets ranks wait for one another, may share files among them."""
    script, (text, beside, said) = tmp_path / "train.py", SHARES[name]
    script.write_text(text)
    (tmp_path / "helper.py").write_text(beside)
    found = asking.shares_files(str(script))
    assert said in found and bool(found) is bool(said)
    assert asking.shares_files(str(script), perhaps=False) == (found if "imports" in said else "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import zipfile\nzipfile.ZipFile('a.zip').extractall('a')", "unpacks an archive (extractall at line 2)"),
        ("from shutil import unpack_archive\nunpack_archive('a.zip')", "unpack_archive at line 2"),
        ("import os\nos.system('/usr/bin/tar -xf a.tar')", "starts tar at line 2"),
        ("import subprocess\nname = 'a'\nsubprocess.run(['sbatch', name])", "starts sbatch at line 3"),
        ("import os\nurl = 'a'\nos.popen(f'wget {url}')", "starts wget at line 3"),
        ("import os\nos.system('sort a > b')", ""),
        ("print('tar'); model.run('tar')" + "\n" + "open('tar')", "starts tar at line 1"),
    ],
)
def test_what_is_better_done_once(tmp_path, text, said):
    """What is unpacked takes room for each rank, and programs reach other machines."""
    (tmp_path / "train.py").write_text("import beside")
    (tmp_path / "beside.py").write_text(text)
    found = asking.once_is_better(str(tmp_path / "train.py"))
    assert said in found and bool(found) is bool(said) and asking.once_is_better("", text) == found


def test_what_forbids_it(monkeypatch, tmp_path):
    """The line of sysctl is named."""
    (tmp_path / "users").write_text("0\n")
    monkeypatch.setattr(kernel, "_FORBIDDING", ((str(tmp_path / "users"), "0"),))
    assert kernel.forbidden_by().endswith("users = 0")


def test_names_are_drawn_alike(tmp_path):
    """UUIDs and temporary files of the main thread; other threads have UUIDs of their own."""
    text = """
import os, tempfile, threading, uuid
from matex_tf.layer import names
names.draw_alike(7)
if os.environ["TMPDIR"].endswith("one"):
    with names.drawn_apart():
        tempfile.mkdtemp()
print(uuid.uuid4(), uuid.uuid4(), os.path.basename(tempfile.mkdtemp()))
thread = threading.Thread(target=lambda: print(uuid.uuid4()))
thread.start(), thread.join()
"""
    ranks = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        environ = {**os.environ, "TMPDIR": str(tmp_path / name)}
        ranks.append(subprocess.check_output([sys.executable, "-c", text], env=environ, text=True).splitlines())
    (first, alone), (second, other) = ranks
    assert first == second and alone != other and len(set(first.split())) == 3


def test_a_later_rank_becomes_the_first(place):
    """What it has and nobody has put there, or what is older there, is put in its place; what is newer stays."""
    folder, user = place
    os.utime(folder / "old.txt", (1, 1))
    does = """
for name in ("old.txt", "new.txt", "results/first.txt"):
    open(name, "w").write("of the next")
os.utime("results/first.txt", (1, 1))
[layer.be_first(top, only_newer=True) for top in tops]
layer.publish()
layer.remove()
"""
    layered(folder, does, user)
    assert state(folder) == {"old.txt": "of the next", "new.txt": "of the next", "results/first.txt": "first\n"}


@pytest.mark.parametrize(
    ("shares", "alive", "taken"),
    [([0, 1], [0, 1, 2, 3], []), ([0, 1], [1, 2, 3], ["/home", "/tmp"]), ([2, 3], [0, 1, 3], ["/tmp"])],
    ids=["nobody died", "the first of all", "the first of a node"],
)
def test_who_comes_next(shares, alive, taken):
    """On each file system the first rank that is left has the first word; this is the last one that shares /tmp."""
    found: list[str] = []
    layer: Any = SimpleNamespace(
        shared_by={"/home": [0, 1, 2, 3], "/tmp": shares},
        be_first=lambda top, only_newer: found.append(top),
        publish=lambda: None,
    )
    world: Any = SimpleNamespace(first_ranks=alive, rank=alive.index(shares[1]))
    layers_of_job._take_over(world, layer)
    assert found == taken


#: What a user does to files of a colleague's.
OF_ANOTHER = """
with open("old.txt", "a") as file:
    file.write("more")
with open("cut", "w") as file:
    file.write("c")
os.rename("named", "renamed")
with open("draft", "w") as file:
    file.write("new")
os.replace("draft", "replaced")
with open("twice", "a") as file:
    file.write("1")
os.rename("twice", "away")
with open("twice", "w") as file:
    file.write("2")
os.mkdir("new")
os.rename("folder", "new/folder"), os.rename("new/folder", "new/moved")
os.remove("new/moved/gone")
with open("new/moved/written", "a") as file:
    file.write("more")
os.rename("emptied", "empty"), os.remove("empty/gone"), os.rmdir("empty")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_of_a_colleague(tmp_path, can):
    """What is written into a file of another user's stays so, as without a layer; what replaces it does not."""
    for folder in (tmp_path / "plain", tmp_path / "own"):
        folder.mkdir()
        for name in ("old.txt", "cut", "named", "replaced", "twice"):
            (folder / name).write_text("old text of another")
            (folder / name).chmod(0o664)
        for name in ("folder", "emptied"):
            (folder / name).mkdir()
            for file in ("kept", "gone", "written", "closed") if name == "folder" else ("gone",):
                (folder / name / file).write_text("text of another")
                (folder / name / file).chmod(0o444 if file == "closed" else 0o664)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 1111, 4321)
            if path.is_dir():
                path.chmod(0o2775)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o111)
    become = "import os\nos.setgroups([4321]), os.setgid(1234), os.setuid(1234)\n"
    subprocess.run([sys.executable, "-c", become + OF_ANOTHER], cwd=tmp_path / "plain", check=True)
    layered(tmp_path / "own", OF_ANOTHER + "layer.publish()", 1234, first=True)
    plain, own = (
        {
            str(path.relative_to(folder)): (
                path.is_file() and path.read_text(),
                found.st_uid,
                found.st_gid,
                found.st_mode,
            )
            for path in folder.rglob("*")
            for found in [path.stat()]
        }
        for folder in (tmp_path / "plain", tmp_path / "own")
    )
    assert plain["old.txt"][1] == plain["cut"][1] == 1111 and plain["replaced"][1] == plain["twice"][1] == 1234
    assert {"new/moved/kept", "renamed"} <= set(plain) and own == plain
