"""The file of labels: actions, undo, several people, and what is on disk when a process is killed."""

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest

from matex_tf.features.label.actions import NONE, SKIPPED, StoreError, agreed
from matex_tf.features.label.store import Store

NAMES = [f"{number}.png" for number in range(20)]


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path / "labels.sqlite"), NAMES)
    made.new_group("ann", "water")
    made.new_group("ann", "ice")
    yield made
    made.close()


def test_assign_and_undo(store):
    """Labels are each person's own; an undo puts back what that person did last, and a redo does it again."""
    store.assign("ann", [1, 2], 1)
    store.assign("ann", [2, 3], 2)
    store.assign("bob", [2], 1)
    assert store.votes() == {1: {"ann": 1}, 2: {"ann": 2, "bob": 1}, 3: {"ann": 2}}
    assert store.undo("ann").images == {2: {"ann": 1, "bob": 1}, 3: {}}
    assert store.undo("ann").images == {1: {}, 2: {"bob": 1}}
    store.redo("ann")
    store.redo("ann")
    assert store.votes() == {1: {"ann": 1}, 2: {"ann": 2, "bob": 1}, 3: {"ann": 2}}
    with pytest.raises(StoreError, match="nothing to redo"):
        store.redo("ann")
    store.undo("bob")
    with pytest.raises(StoreError, match="nothing to undo"):
        store.undo("bob")
    store.assign("ann", [1], None)
    assert 1 not in store.votes()
    store.undo("ann")
    assert store.votes()[1] == {"ann": 1}


def test_groups(store):
    """Groups are renamed, merged and split for everybody, and each of that can be undone."""
    store.assign("ann", [1, 2], 1)
    store.assign("bob", [2, 3], 2)
    store.rename("bob", 1, "drops")
    store.merge("bob", 2, 1)
    assert [group["name"] for group in store.groups()] == ["drops"]
    assert store.votes() == {1: {"ann": 1}, 2: {"ann": 1, "bob": 1}, 3: {"bob": 1}}
    made = store.split("ann", 1, "small", [2, 3]).group
    assert store.votes() == {1: {"ann": 1}, 2: {"ann": made, "bob": made}, 3: {"bob": made}}
    store.undo("ann")
    store.undo("bob")
    store.undo("bob")
    assert [group["name"] for group in store.groups()] == ["water", "ice"]
    assert store.votes() == {1: {"ann": 1}, 2: {"ann": 1, "bob": 2}, 3: {"bob": 2}}


def test_refused(store):
    """Each with a message; nothing of such an action is kept."""
    store.assign("ann", [1], 1)
    before = store.votes(), store.groups()
    for act, message in (
        (lambda: store.assign("ann", [20], 1), "no such image"),
        (lambda: store.assign("ann", [-1], 1), "no such image"),
        (lambda: store.assign("ann", [1], 9), "no such group"),
        (lambda: store.assign("", [1], 1), "1 to 80 characters"),
        (lambda: store.assign("a\u202eb", [1], 1), "1 to 80 characters"),
        (lambda: store.new_group("ann", "ice"), "a group ice already"),
        (lambda: store.new_group("ann", "x" * 81), "1 to 80 characters"),
        (lambda: store.merge("ann", 1, 1), "with itself"),
        (lambda: store.split("ann", 1, "ice", [1]), "a group ice already"),
        (lambda: store.rename("ann", NONE, "x"), "no such group"),
    ):
        with pytest.raises(StoreError, match=message):
            act()
    assert (store.votes(), store.groups()) == before
    store.assign("bob", [2], store.new_group("ann", "snow").group)
    with pytest.raises(StoreError, match="others have put images into snow"):
        store.undo("ann")


def test_what_people_say_together():
    assert agreed({}) == (None, True)
    assert agreed({"ann": 1, "bob": 1, "eve": 2}) == (1, False)
    assert agreed({"ann": 1, "bob": 2}) == (None, False)
    assert agreed({"ann": 1, "bob": SKIPPED}) == (1, True)
    assert agreed({"ann": SKIPPED}) == (None, True)


@pytest.mark.parametrize("seed", range(3))
def test_all_undone(tmp_path, seed):
    """Whatever was done, each undo gives the state before, back to the first, and each redo the state after."""
    chance = random.Random(seed)
    store = Store(str(tmp_path / "labels.sqlite"), NAMES)
    states = [(store.votes(), store.groups())]
    for step in range(60):
        groups = [group["id"] for group in store.groups()]
        images = chance.sample(range(20), 3)
        act = chance.choice(["new", "assign", "assign", "assign", "merge", "split", "rename", "none"])
        if act == "new" or len(groups) < 2:
            store.new_group("ann", f"group {step}", images)
        elif act == "merge":
            store.merge("ann", *chance.sample(groups, 2))
        elif act == "split":
            store.split("ann", groups[0], f"split {step}", images)
        elif act == "rename":
            store.rename("ann", groups[0], f"name {step}")
        else:
            store.assign("ann", images, None if act == "none" else chance.choice([*groups, NONE, SKIPPED]))
        states.append((store.votes(), store.groups()))
    for state in reversed(states[:-1]):
        store.undo("ann")
        assert (store.votes(), store.groups()) == state
    for state in states[1:]:
        store.redo("ann")
        assert (store.votes(), store.groups()) == state
    store.close()


KILLED = """
import os, signal, sys
from matex_tf.features.label.store import Store
store = Store(sys.argv[1], [f"{n}.png" for n in range(20)])
group = store.new_group("ann", "water").group
for image in range(20):
    store.assign("ann", [image], group)
    print(image, flush=True)
    if image == 12:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed(tmp_path):
    """What was answered is there."""
    path = str(tmp_path / "labels.sqlite")
    ran = subprocess.run([sys.executable, "-c", KILLED, path], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL
    store = Store(path, NAMES)
    assert set(store.votes()) == {int(line) for line in ran.stdout.split()}
    store.undo("ann")
    assert 12 not in store.votes()
    store.close()


def test_the_file(tmp_path, store):
    """It is this user's alone; one server has it at a time; another kind of file is refused and stays as it is."""
    path = str(tmp_path / "labels.sqlite")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(StoreError, match="in use by another"):
        Store(path, NAMES)
    text = tmp_path / "text.sqlite"
    text.write_text("something else entirely" * 100)
    with pytest.raises(StoreError, match="is not a file of labels"):
        Store(str(text), NAMES)
    assert text.read_text() == "something else entirely" * 100
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("create table mine (a)")
    with pytest.raises(StoreError, match="something else"):
        Store(str(other), NAMES)


def kept(path):
    """The token in a file."""
    store = Store(str(path), NAMES)
    store.close()
    return store.token, store.notes


def test_a_file_that_others_could_read(tmp_path):
    """It is this user's alone from then on, and has a new token; a file of another kind keeps its mode."""
    path = tmp_path / "labels.sqlite"
    token, notes = kept(path)
    assert kept(path) == (token, ()) and notes == ()
    for mode in (0o644, 0o640, 0o604, 0o660):
        path.chmod(mode)
        new, (note,) = kept(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and new != token and "has a new token" in note
        token = new
    with sqlite3.connect(path) as db:
        db.execute("delete from about where name = 'token of'")  # an older one, which may be a copy
    assert kept(path)[0] != token
    other = tmp_path / "other.sqlite"
    other.write_text("something else")
    other.chmod(0o644)
    with pytest.raises(StoreError, match="is not a file of labels"):
        Store(str(other), NAMES)
    assert stat.S_IMODE(other.stat().st_mode) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user(tmp_path):
    """It is refused, by a link too, and so is a journal that somebody else has put beside; a copy has another token."""
    path = tmp_path / "labels.sqlite"
    token, _ = kept(path)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "own.sqlite").write_bytes(path.read_bytes())
    with sqlite3.connect(tmp_path / "own.sqlite") as db:
        db.execute("update about set value = '65533' where name = 'token of'")
    (tmp_path / "own.sqlite").chmod(0o600)
    os.chown(path, 65533, 65533)
    for name in ("labels.sqlite", "link"):
        with pytest.raises(StoreError, match="belongs to user 65533, who knows the token"):
            Store(str(tmp_path / name), NAMES)
    assert kept(tmp_path / "own.sqlite")[0] != token
    journal = tmp_path / "own.sqlite-journal"
    journal.write_bytes(b"")
    os.chown(journal, 65533, 65533)
    with pytest.raises(StoreError, match="own.sqlite-journal belongs to user 65533"):
        Store(str(tmp_path / "own.sqlite"), NAMES)


def test_what_cannot_be_opened(tmp_path):
    """A link to nothing, a directory, a pipe, a place that is not there: each with a message."""
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("dangling", "is a link to nowhere, which is missing"),
        ("", "is not a file"),
        ("pipe", "is not a file"),
        ("no/labels", r"cannot be opened \(No such file"),
        ("pipe/labels", r"cannot be opened \(Not a directory"),
    ):
        with pytest.raises(StoreError, match=message):
            Store(f"{tmp_path}/{name}", NAMES)
    assert not (tmp_path / "nowhere").exists()


def test_images_come_and_go(tmp_path):
    """Labels belong to names: more images, other places and missing ones change none of them."""
    path = str(tmp_path / "labels.sqlite")
    store = Store(path, ["a", "b", "c"], "pictures")
    store.assign("ann", [0, 2], store.new_group("ann", "water").group)
    store.close()
    store = Store(path, ["0", "a", "b"], "pictures")
    assert store.votes() == {1: {"ann": 1}}
    store.close()
    with pytest.raises(StoreError, match="has the labels of pictures, not of others"):
        Store(path, ["a"], "others")
