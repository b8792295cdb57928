"""What people have said of images: a SQLite file in which every action is on disk before it is answered.

Actions are only ever added. An undo is an action too, which puts back what another one changed. The tables `labels` and
`groups` are what the actions come to, kept with them in one transaction.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import stat
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf.features.label.actions import NONE, SKIPPED, TABLES, VERSION, Action, Change, StoreError, plain
from matex_tf.storage.private_directory import owner

MOST_GROUPS = 200


def _take(path: str) -> bool:
    """Have the file, empty and for this user alone where there was none; whether others can read it.

    One that is there is not opened: to close it again would end the locks of this process on it.

    Raises:
        StoreError: it cannot be made, is not a plain file, or it or its journal, which is read back, is another user's.
    """
    try:
        if os.path.islink(path) and not os.path.exists(path):
            there = os.readlink(path)
            raise StoreError(f"{path} is a link to {there}, which is missing: give another file as --labels.")
        for one in (path, f"{path}-journal"):
            found = os.stat(one) if os.path.lexists(one) else None
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise StoreError(f"{one} is not a file: give another one as --labels.")
            if found is not None and found.st_uid != os.geteuid():
                raise StoreError(
                    f"{one} belongs to {owner(found.st_uid)}, who knows the token in it, and could change the labels: "
                    "give a file of your own as --labels, such as a copy."
                )
        if not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return bool(os.stat(path).st_mode & 0o077)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened ({error.strerror}): give another file as --labels.") from None


class Store:
    """A file of labels, open. Threads may share it.

    Args:
        path: of the file; made, for this user alone, where there is none.
        names: of the images, in their order. Images are known by their names from then on.
        of: what they are images of, the same each time.

    Raises:
        StoreError: the file is no such file, belongs to somebody else, or another server has it.

    Attributes:
        token: what whoever asks the server must know. It is drawn anew where others may have read it.
        notes: what should be known of the file.
    """

    def __init__(self, path: str, names: Sequence[str], of: str = ""):
        self.path, self._lock = path, threading.RLock()
        self.notes: tuple[str, ...] = ()
        seen = _take(path)
        try:
            self._db = sqlite3.connect(path, timeout=2, isolation_level=None, check_same_thread=False)
            # No write-ahead log: that needs shared memory, which the file systems of clusters do not have.
            self._db.execute("pragma locking_mode = exclusive")
            self._db.execute("pragma journal_mode = delete")
            self._db.execute("pragma synchronous = full")
            self._db.execute("begin exclusive")
            if not self._db.execute("select 1 from sqlite_master limit 1").fetchone():
                self._make()
            self._check(of)
            self._know(names)
            self._renew(seen)
            self._db.execute("commit")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(f"{path} is in use by another matex-tf label: open the page of that one.") from None
            raise StoreError(f"{path} cannot be opened ({error}): give another file as --labels.") from None
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path} is not a file of labels ({error}): give another one as --labels.") from None
        self.token = str(self.about("token"))

    def _make(self) -> None:
        for statement in TABLES.split(";"):
            self._db.execute(statement)
        self._db.execute("insert into groups values (?, 'none of these', 0, 0), (?, 'skipped', 0, 0)", (NONE, SKIPPED))
        about = {"made by": "matex-tf label", "version": VERSION}
        self._db.executemany("insert into about values (?, ?)", about.items())

    def _check(self, of: str) -> None:
        tables = {name for (name,) in self._db.execute("select name from sqlite_master where type = 'table'")}
        if "about" not in tables or self.about("made by") != "matex-tf label":
            raise sqlite3.DatabaseError("it holds something else")
        if self.about("version") != VERSION:
            raise sqlite3.DatabaseError(f"it is of version {self.about('version')}, and this is {VERSION}")
        if (before := self.about("of")) is not None and before != of:
            raise StoreError(f"{self.path} has the labels of {before}, not of {of}: give another file as --labels.")
        self.remember("of", of)

    def _renew(self, seen: bool) -> None:
        """Draw a token where there is none, where others could read it, and where it is that of another user's file."""
        mine = str(os.geteuid())
        known = self.about("token") is not None
        if known and self.about("token of") == mine and not seen:
            return
        if seen:
            os.chmod(self.path, 0o600)
            self.notes = (f"others could read {self.path}: it is for you alone now, and has a new token",)
        self.remember("token", secrets.token_urlsafe(24))
        self.remember("token of", mine)

    def _know(self, names: Sequence[str]) -> None:
        """Give new images a number; `ids` is then the number of each image in the file."""
        known = dict(self._db.execute("select name, id from images"))
        new = [(name,) for name in names if name not in known]
        self._db.executemany("insert into images (name) values (?)", new)
        if new:
            known = dict(self._db.execute("select name, id from images"))
        self.names = list(names)
        self._ids = [known[name] for name in names]
        self._places = {number: place for place, number in enumerate(self._ids)}

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def about(self, name: str) -> str | None:
        """A value that is kept with the labels, by its name."""
        with self._lock:
            found = self._db.execute("select value from about where name = ?", (name,)).fetchone()
        return found[0] if found else None

    def remember(self, name: str, value: str) -> None:
        """Keep `value` with the labels by its `name`, in the place of an earlier one; see `about`."""
        with self._lock:
            self._db.execute("insert or replace into about values (?, ?)", (name, value))

    # What there is

    def groups(self) -> list[dict[str, Any]]:
        """The groups that people made, in their order: id and name."""
        with self._lock:
            rows = self._db.execute("select id, name from groups where not gone and id > 0 order by place, id")
            return [{"id": number, "name": name} for number, name in rows]

    def people(self) -> list[str]:
        """Who has done anything."""
        with self._lock:
            return [name for (name,) in self._db.execute("select name from people order by id")]

    def votes(self, images: Iterable[int] | None = None) -> dict[int, dict[str, int]]:
        """What people say of images: for each, a group for each person; of all that anybody has labelled by default."""
        with self._lock:
            text = "select image, people.name, grouped from labels join people on people.id = person"
            found: dict[int, dict[str, int]] = {}
            rows: Iterable[Any]
            if images is None:
                rows = self._db.execute(text)
            else:
                found = {image: {} for image in images}
                rows = self._rows(text + " where image in ({})", [self._ids[image] for image in found])
            for number, person, group in rows:
                if number in self._places:
                    found.setdefault(self._places[number], {})[person] = group
            return found

    def _rows(self, text: str, numbers: Sequence[int]) -> Iterable[Any]:
        for begin in range(0, len(numbers), 500):
            part = numbers[begin : begin + 500]
            yield from self._db.execute(text.format(",".join("?" * len(part))), part)

    def history(self, image: int) -> list[dict[str, Any]]:
        """All that was done to an image, the last first."""
        with self._lock:
            rows = self._db.execute(
                "select actions.at, people.name, actions.kind, changes.after from changes join actions on"
                " actions.id = action join people on people.id = actions.person where image = ?"
                " order by action desc limit 50",
                (self._ids[image],),
            )
            return [dict(zip(("at", "person", "kind", "group"), row, strict=True)) for row in rows]

    # What people do

    def assign(self, person: str, images: Sequence[int], group: int | None, kind: str = "assign") -> Change:
        """Put images into a group.

        Args:
            person: the name of who does it.
            images: their places among `names`.
            group: the id of the group, or `NONE` or `SKIPPED`; None takes this person's label away.
            kind: what the action is called in the history.

        Raises:
            StoreError: there is no such group, or image.
        """
        with self._lock, self._action(person, kind, {"group": group}) as act:
            self._require_group(group)
            numbers = self._numbers(images)
            now = {image: found for image, _, *found in self._labels(numbers, f"person = {act.person}")}
            act.put([(number, act.person, *now.get(number, (None, None)), group) for number in numbers])
            return act.change

    def new_group(self, person: str, name: str, images: Sequence[int] = ()) -> Change:
        """Make a group, and put images into it.

        Args:
            person: the name of who does it.
            name: of the group.
            images: their places among `names`.

        Raises:
            StoreError: it cannot have this name, there are too many groups, or there is no such image.
        """
        with self._lock, self._action(person, "new group", {}) as act:
            made = self._make_group(act, name)
            now: dict[int, Any] = dict.fromkeys(self._numbers(images), (None, None))
            now |= {image: found for image, _, *found in self._labels(list(now), f"person = {act.person}")}
            act.put([(number, act.person, *found, made) for number, found in now.items()])
            return act.change

    def rename(self, person: str, group: int, name: str) -> Change:
        """Give the group of the id `group` the name `name`; `person` does it.

        Raises:
            StoreError: there is no such group, or it cannot have this name.
        """
        with self._lock:
            name = self._free_name(name, besides=group)
            with self._action(person, "rename", {"group": group, "before": self._name(group), "name": name}) as act:
                self._db.execute("update groups set name = ? where id = ?", (name, group))
                act.change.groups = True
                return act.change

    def merge(self, person: str, group: int, into: int) -> Change:
        """Put all that anybody has put into `group` into the group `into`, and let it be gone; `person` does it.

        Raises:
            StoreError: there is no such group, or both are one.
        """
        if group == into:
            raise StoreError("a group cannot be merged with itself.")
        with self._lock, self._action(person, "merge", {"group": group, "into": into}) as act:
            self._name(group), self._name(into)
            rows = self._db.execute("select image, person, grouped, action from labels where grouped = ?", (group,))
            act.put([(*row, into) for row in rows.fetchall()])
            self._db.execute("update groups set gone = 1 where id = ?", (group,))
            act.change.groups = True
            return act.change

    def split(self, person: str, group: int, name: str, images: Sequence[int]) -> Change:
        """Put some images of a group, whoever put them there, into a new one.

        Args:
            person: the name of who does it.
            group: the id of the group.
            name: of the new one.
            images: their places among `names`; those that are not in the group stay where they are.

        Raises:
            StoreError: there is no such group or image, or the new one cannot be made.
        """
        with self._lock, self._action(person, "split", {"from": group}) as act:
            self._name(group)
            made = self._make_group(act, name)
            rows = self._labels(self._numbers(images), f"grouped = {int(group)}")
            act.put([(*row, made) for row in rows])
            return act.change

    def _make_group(self, act: Action, name: str) -> int:
        name = self._free_name(name)
        if len(self.groups()) >= MOST_GROUPS:
            raise StoreError(f"there can be {MOST_GROUPS} groups: merge some first.")
        place = self._db.execute("select coalesce(max(place), 0) + 1 from groups").fetchone()[0]
        made = self._db.execute("insert into groups (name, place) values (?, ?)", (name, place)).lastrowid
        assert made is not None
        act.detail |= {"group": made, "name": name}
        act.change.group, act.change.groups = made, True
        return made

    def _labels(self, numbers: Sequence[int], which: str) -> list[tuple[int, int, int, int]]:
        """Labels of images: image, person, group and action."""
        text = f"select image, person, grouped, action from labels where {which} and image in ({{}})"
        return list(self._rows(text, numbers))

    def undo(self, person: str) -> Change:
        """Put back what this person did last and has not undone.

        Raises:
            StoreError: there is nothing, or others have gone on from it.
        """
        return self._put_back(person, "undo", "kind not in ('undo', 'redo') and undone_by is null")

    def redo(self, person: str) -> Change:
        """Do again what this person has undone last, if nothing was done since."""
        return self._put_back(person, "redo", "kind = 'undo' and undone_by is null")

    def _put_back(self, person: str, kind: str, which: str) -> Change:
        with self._lock:
            who = self._person(person)
            found = self._db.execute(
                f"select id, kind, detail, undoes from actions where person = ? and {which} order by id desc limit 1",
                (who,),
            ).fetchone()
            if kind == "redo" and found:
                later = "select 1 from actions where person = ? and id > ? and kind not in ('undo', 'redo')"
                found = None if self._db.execute(later, (who, found[0])).fetchone() else found
            if not found:
                raise StoreError(f"there is nothing to {kind}.")
            number, what, detail, undoes = found
            with self._action(person, kind, json.loads(detail) | {"of": what}, undoes=number) as act:
                self._db.execute("update actions set undone_by = ? where id = ?", (act.change.action, number))
                if kind == "redo":  # what was undone is done, and can be undone again
                    self._db.execute("update actions set undone_by = null where id = ?", (undoes,))
                self._restore(number, act)
                self._restore_group(json.loads(detail), kind, act)
                return act.change

    def _restore(self, number: int, act: Action) -> None:
        """Put back the labels that an action has changed, where nobody has changed them since."""
        rows = self._db.execute(
            "select changes.image, changes.person, labels.grouped, labels.action, before from changes left join labels"
            " on labels.image = changes.image and labels.person = changes.person"
            " where changes.action = ? and labels.grouped is after",
            (number,),
        ).fetchall()
        act.put(rows)

    def _restore_group(self, detail: dict[str, Any], kind: str, act: Action) -> None:
        what, group = detail.get("of", act.detail["of"]), detail.get("group")
        again = kind == "redo"
        act.detail["of"] = what
        if what == "rename":
            name = detail["name"] if again else detail["before"]
            self._db.execute("update groups set name = ? where id = ?", (self._free_name(name, besides=group), group))
        elif what == "merge":
            if not again:
                self._free_name(*self._db.execute("select name from groups where id = ?", (group,)).fetchone())
            self._db.execute("update groups set gone = ? where id = ?", (int(again), group))
        elif what in ("new group", "split"):
            if self._db.execute("select 1 from labels where grouped = ?", (group,)).fetchone() and not again:
                raise StoreError(f"others have put images into {detail['name']}: merge it instead.")
            self._db.execute("update groups set gone = ? where id = ?", (int(not again), group))
        else:
            return
        act.change.groups = True

    # Helpers

    def _action(self, person: str, kind: str, detail: dict[str, Any], undoes: int | None = None) -> Action:
        return Action(self._db, lambda: self._person(person), kind, detail, undoes, self._votes_of)

    def _votes_of(self, numbers: Iterable[int]) -> dict[int, dict[str, int]]:
        return self.votes(self._places[number] for number in numbers if number in self._places)

    def _person(self, name: str) -> int:
        name = plain(name, "the name of a person")
        self._db.execute("insert or ignore into people (name) values (?)", (name,))
        return int(self._db.execute("select id from people where name = ?", (name,)).fetchone()[0])

    def _numbers(self, images: Sequence[int]) -> list[int]:
        try:
            if min(images, default=0) < 0:
                raise IndexError
            return [self._ids[image] for image in dict.fromkeys(images)]
        except (IndexError, TypeError):
            raise StoreError(f"there is no such image: there are {len(self._ids)}.") from None

    def _name(self, group: int) -> str:
        found = self._db.execute("select name from groups where id = ? and not gone and id > 0", (group,)).fetchone()
        if found is None:
            raise StoreError("there is no such group any more.")
        return str(found[0])

    def _require_group(self, group: int | None) -> None:
        if group not in (None, NONE, SKIPPED):
            self._name(group)

    def _free_name(self, name: str, besides: int | None = None) -> str:
        name = plain(name, "the name of a group")
        taken = self._db.execute("select id from groups where name = ? and not gone", (name,)).fetchone()
        if taken and taken[0] != besides:
            raise StoreError(f"there is a group {name} already.")
        return name
