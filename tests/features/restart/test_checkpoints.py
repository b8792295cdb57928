"""The directory of checkpoints, without a job: what is written, read back, removed, and refused."""

import os
import pickle
import resource
import stat
import threading
import zlib
from pathlib import Path

import foreign
import pytest

from matex_tf.core import starting
from matex_tf.errors import MatexError
from matex_tf.faults.place import Place
from matex_tf.features.restart import checkpoints, files
from matex_tf.features.restart.checkpoints import Checkpoints
from matex_tf.features.restart.files import Damaged
from matex_tf.storage import background_writer
from matex_tf.storage.private_directory import Folder


def opened(base: Path, resumed: bool = False) -> tuple[Checkpoints, list[str]]:
    """Checkpoints in a directory, and what they say."""
    said: list[str] = []
    made = Checkpoints(base, "script.py", resumed, said.append)
    made.open()
    return made, said


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path, ["private"], "--option") as made:
        yield made


def names(store: Checkpoints) -> set[str]:
    return {path.name for path in store.path.iterdir()}


def test_a_checkpoint_is_whole(folder):
    """What was written is read; a file that is cut off or changed anywhere is known by it."""
    state = {"values": [bytes(range(256)) * 20], "step": 3}
    files.write(folder, "file", state)
    assert files.read(folder, "file") == state and folder.names() == ["file"]
    path = folder.path / "file"
    whole = path.read_bytes()
    for size in (0, 10, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Damaged, match=r"truncated|damaged"):
            files.read(folder, "file")
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(Damaged):
            files.read(folder, "file")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_writer_that_dies(folder, monkeypatch, step):
    """Whatever happens while a checkpoint is written, the one that was there stays as it was."""
    files.write(folder, "file", "before")

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, step, dies)
        with pytest.raises(KeyboardInterrupt):
            files.write(folder, "file", "after")
    assert files.read(folder, "file") == "before" and folder.names() == ["file"]


def test_the_draft_of_a_job_that_was_killed(tmp_path):
    """It is in nobody's way, and gone with the next job."""
    store, _ = opened(tmp_path)
    place = Place(1, 0, 3)
    for path in (store.path / f".{name}.draft" for name in (place.name, Place(2).name)):
        path.write_text("half")
    files.write(store.folder, place.name, 1)
    assert store.find(1) == (place, 1) and ".fit-0002.done.draft" in names(store)
    opened(tmp_path, resumed=True)
    assert names(store) == {place.name, "job.begun"}


def test_two_are_kept(tmp_path):
    """Of the fit that is under way the newest two; of one that is complete, its end."""
    store, _ = opened(tmp_path)
    for epoch, step in ((0, 10), (0, 20), (1, 5), (11, 0)):
        store.save(Place(1, epoch, step), lambda at=(epoch, step): at)
    store.finish()
    assert store.places(1) == [Place(1, 11, 0), Place(1, 1, 5)]
    store.save(Place(1), lambda: "end")
    store.save(Place(2, 0, 3), lambda: "next")
    store.finish()
    assert store.places(1) == [Place(1)] and store.find(1) == (Place(1), "end")
    assert opened(tmp_path, resumed=True)[0].find(2) == (Place(2, 0, 3), "next")
    assert opened(tmp_path)[0].find(2) is None, "a job that does not resume begins anew"


def test_a_damaged_one_falls_back(tmp_path):
    """To the older one, with a line that says so; in the end to none."""
    store, said = opened(tmp_path)
    for step in (1, 2):
        store.save(Place(1, 0, step), lambda step=step: step)
    store.finish()
    newest = store.path / Place(1, 0, 2).name
    newest.write_bytes(newest.read_bytes()[:-3])
    assert store.find(1) == (Place(1, 0, 1), 1)
    assert newest.name in said[0] and "an older one is used" in said[0]
    (store.path / Place(1, 0, 1).name).write_bytes(b"")
    assert store.find(1) is None and len(said) == 2 and not store.places(1)


class Runs:
    """Makes a directory where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_not_run(tmp_path):
    """A checkpoint of Python's own format, as earlier versions wrote them or as somebody crafted it, is damaged."""
    store, said = opened(tmp_path)
    bad = pickle.dumps(Runs(tmp_path / "ran"))
    folder = store.folder
    for magic in (b"matex_tf checkpoint 1\n", files._MAGIC):
        files.write(folder, Place(1).name, bad)
        end = files._END.pack(len(bad), zlib.crc32(bad))
        (store.path / Place(1).name).write_bytes(magic + bad + end)
        assert store.find(1) is None and "fit-0001.done is" in said[-1]
    assert not (tmp_path / "ran").exists() and len(said) == 2


def full():
    raise OSError(28, "No space left on device")


def too_large():
    raise MemoryError


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "state, why",
    [
        *((full, "No space left on device"), (too_large, "MemoryError"), (interrupted, "KeyboardInterrupt")),
        (lambda: {"a": object()}, "['a'] is a object"),
    ],
)
def test_what_cannot_be_written(tmp_path, state, why):
    """Training goes on without the checkpoint, a line says why, and the next is written."""
    store, said = opened(tmp_path)
    store.save(Place(1, 0, 1), state)
    store.save(Place(1, 0, 2), lambda: 2)
    store.finish()
    assert why in said[0] and len(said) == 1 and store.find(1) == (Place(1, 0, 2), 2) and not store.busy


def test_nowhere_to_say_it(tmp_path):
    """The thread outlives a line that cannot be printed, too."""
    store, _ = opened(tmp_path)

    def say(line):
        raise BrokenPipeError

    store.say = say
    store.save(Place(1, 0, 1), full)
    store.save(Place(1, 0, 2), lambda: 2)
    store.finish()
    assert store.find(1) == (Place(1, 0, 2), 2)


def test_no_thread_to_write(tmp_path, monkeypatch):
    """Where there can be no more threads the line says so, and nobody waits."""
    store, said = opened(tmp_path)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(background_writer.threading.Thread, "start", refuse)
        store.save(Place(1, 0, 1), lambda: 1)
        store.finish()
    assert "can't start new thread" in said[0] and not store.busy
    store.save(Place(1, 0, 2), lambda: 2)
    store.finish()
    assert store.find(1) == (Place(1, 0, 2), 2)


def test_a_disk_that_is_full_leaves_nothing(tmp_path):
    """At each attempt the draft goes again, and the last good checkpoint stays."""
    store, said = opened(tmp_path)
    store.save(Place(1, 0, 1), lambda: "good")
    store.finish()
    before = names(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        for step in (2, 3, 4):
            store.save(Place(1, 0, step), lambda: bytes(100_000))
        store.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(store) == before and len(said) == 3 and "File too large" in said[0]
    assert store.find(1) == (Place(1, 0, 1), "good")


def test_the_seed_is_kept(tmp_path):
    """A job that goes on has the seed of the one before; where its file is damaged a line says so."""
    assert opened(tmp_path)[0].seed(7) == 7
    store, said = opened(tmp_path, resumed=True)
    assert store.seed(8) == 7 and not said
    (store.path / "job.seed").write_text("7")
    assert opened(tmp_path, resumed=True)[0].seed(9) == 9 and store.seed(10) == 9


def test_foreign_files_stay(tmp_path):
    """Whatever a job does with its directory, the files of others in it and beside it are as they were."""
    theirs = foreign.fill(tmp_path)
    for resumed in (False, True):
        store, _ = opened(tmp_path, resumed)
        store.seed(3)
        store.save(Place(1, 0, 1), lambda: 1)
        store.save(Place(1), lambda: 2)
        store.finish()
        store.end()
        assert foreign.found(tmp_path).items() > theirs.items()
    store.remove()
    assert foreign.found(tmp_path) == theirs


def test_nothing_is_left(tmp_path):
    """Where there were no files of others, only the directory that was asked for is there at the end."""
    store, _ = opened(tmp_path / "new")
    store.seed(3)
    store.save(Place(1), lambda: 2)
    store.finish()
    store.end()
    store.remove()
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]


def test_scripts_are_apart(tmp_path):
    """Each has a directory; a script that is called `..` too."""
    made = {Checkpoints(tmp_path, name, False, print).path for name in ("a.py", "b/c.py", ".", "..", "m.n")}
    assert len(made) == 5 and {path.parent for path in made} == {tmp_path / ".matex-checkpoints"}


def test_nobody_else_reads(tmp_path):
    """Directories are 0700, files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        store, _ = opened(tmp_path)
        store.seed(1)
        store.save(Place(1), lambda: 1)
        store.finish()
        os.close(store.folder.lock_file(checkpoints.LOCK))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (store.path.parent, *tmp_path.rglob("script/*"))}
    assert modes.pop(".matex-checkpoints") == 0o700 == stat.S_IMODE(store.path.stat().st_mode)
    assert modes == dict.fromkeys(("job.begun", "job.seed", "job.lock", "fit-0001.done"), 0o600)


@pytest.mark.parametrize("which", [".matex-checkpoints", ".matex-checkpoints/script"])
def test_a_directory_that_others_can_change(tmp_path, which):
    """It is refused: what, how, and what to do."""
    path = tmp_path / which
    path.mkdir(parents=True)
    path.chmod(0o770)
    with pytest.raises(MatexError) as caught:
        opened(tmp_path)
    for words in (str(path), "others than you can write", "0770", "chmod go-w", "--checkpoint-dir"):
        assert words in str(caught.value)
    path.chmod(0o755)
    opened(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize("which", [".matex-checkpoints", ".matex-checkpoints/script"])
def test_a_directory_of_another_user(tmp_path, which):
    """It is refused: what, whose, and what to do."""
    path = tmp_path / which
    path.mkdir(parents=True, mode=0o700)
    os.chown(path, 65533, -1)
    with pytest.raises(MatexError) as caught:
        opened(tmp_path)
    for words in (str(path), "belongs to user 65533", "a directory of your own as --checkpoint-dir"):
        assert words in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user(tmp_path):
    """A file that root has let somebody else put there is neither read nor removed."""
    store, _ = opened(tmp_path)
    files.write(store.folder, Place(1).name, 1)
    os.chown(store.path / Place(1).name, 65533, -1)
    assert store.find(1) is None
    with pytest.raises(MatexError, match="not a plain file of yours"):
        store.folder.open(Place(1).name)
    store.remove()
    assert names(store) == {Place(1).name}


@pytest.mark.parametrize("which", [".matex-checkpoints", ".matex-checkpoints/script"])
def test_a_directory_that_is_a_link(tmp_path, which):
    """It is refused, in words; the directory given as --checkpoint-dir may be one."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    path = tmp_path / which
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MatexError, match=r"is a symbolic link, which is not followed: .* as --checkpoint-dir"):
        opened(tmp_path)
    (tmp_path / "way").symlink_to(tmp_path / "elsewhere")
    opened(tmp_path / "way")
    assert (tmp_path / "elsewhere" / ".matex-checkpoints" / "script" / "job.begun").exists()


@pytest.mark.parametrize("name", [Place(1).name, f".{Place(1).name}.draft", "job.seed", "job.begun", "job.over"])
def test_a_file_that_is_a_link(tmp_path, name):
    """What it leads to is neither read nor written."""
    store, _ = opened(tmp_path)
    victim = tmp_path / "victim"
    with Folder(tmp_path, ["other"], "") as other:
        files.write(other, "good", 5)
        (tmp_path / "other" / "good").rename(victim)
    before = victim.read_bytes()
    (store.path / name).unlink(missing_ok=True)
    (store.path / name).symlink_to(victim)
    again, _ = opened(tmp_path, resumed=True)
    assert again.find(1) is None and again.seed(3) == 3
    again.save(Place(1), lambda: 2)
    again.finish()
    again.end()
    again.remove()
    assert victim.read_bytes() == before


def test_a_named_pipe(tmp_path):
    """Nobody waits for its other end."""
    store, _ = opened(tmp_path)
    os.mkfifo(store.path / "fit-0001.done")
    os.mkfifo(store.path / "job.over")
    assert store.find(1) is None and not store.script_ended
    store.end()
    with pytest.raises(MatexError, match="not a plain file of yours"):
        store.folder.open("fit-0001.done")


def test_the_list_of_files_from_two_threads(tmp_path):
    """Each sees all of them."""
    store, _ = opened(tmp_path)
    for step in range(300):
        store.folder.touch(Place(1, 0, step).name)
    wrong = []

    def look():
        for _ in range(30):
            if len(store.folder.names()) != 301:
                wrong.append(1)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_job_that_hashes_otherwise(tmp_path, monkeypatch):
    """It keeps the seed that it had; it does not go on with weights of words that are numbered in another order."""
    made, _ = opened(tmp_path)
    assert made.seed(5) == 5
    again, said = opened(tmp_path, True)
    assert again.seed(7) == 5 and said == []
    monkeypatch.setattr(starting, "hash_mark", lambda: 1)
    with pytest.raises(MatexError, match="another PYTHONHASHSEED"):
        again.seed(7)
