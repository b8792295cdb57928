"""One action on a file of labels: its tables, the transaction that it is, and what it has changed."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf.errors import MatexError

#: Groups of every file, beside those that people make: what an image is put in that is of no group, or hard to tell.
NONE, SKIPPED = 0, -1
NAME_LENGTH = 80
VERSION = "1"

TABLES = """
create table about (name text primary key, value text not null);
create table images (id integer primary key, name text not null unique);
create table people (id integer primary key, name text not null unique);
create table groups (id integer primary key, name text not null, place real not null, gone integer not null default 0);
create table actions (id integer primary key autoincrement, at text not null, person integer not null references people,
    kind text not null, detail text not null, undoes integer references actions, undone_by integer references actions);
create table changes (action integer not null references actions, image integer not null, person integer not null,
    before integer, before_action integer, after integer);
create index changes_of on changes (action);
create table labels (image integer not null, person integer not null, grouped integer not null,
    action integer not null references actions, primary key (image, person));
create index labels_in on labels (grouped);
"""


class StoreError(MatexError):
    """An action cannot be done; says why, for people."""


@dataclass
class Change:
    """What an action has changed: images with what they are now, and whether groups are others."""

    action: int
    kind: str
    images: dict[int, dict[str, int]] = field(default_factory=dict)  # image to group by person
    groups: bool = False
    group: int | None = None  # that was made


class Action:
    """A transaction: all of an action is on disk, or nothing of it. A context manager.

    Args:
        person: the number of who does it.
        detail: what is kept of it, for its undo.
        undoes: the number of the action that it undoes.
        votes: what people say of images, by the numbers that these have in the file.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        person: Callable[[], int],
        kind: str,
        detail: dict[str, Any],
        undoes: int | None,
        votes: Callable[[Iterable[int]], dict[int, dict[str, int]]],
    ):
        self._db, self._who, self._votes = db, person, votes
        self.kind, self.detail, self._undoes = kind, detail, undoes
        self._changed: list[int] = []

    def __enter__(self) -> Action:
        self._db.execute("begin immediate")
        try:
            self.person = self._who()
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            made = self._db.execute(
                "insert into actions (at, person, kind, detail, undoes) values (?, ?, ?, ?, ?)",
                (at, self.person, self.kind, "{}", self._undoes),
            ).lastrowid
        except BaseException:
            self._db.execute("rollback")
            raise
        assert made is not None
        self.change = Change(made, self.kind)
        return self

    def put(self, rows: Sequence[tuple[int, int, int | None, int | None, int | None]]) -> None:
        """Change labels: image, person, group and action before, group after."""
        number = self.change.action
        self._db.executemany("insert into changes values (?, ?, ?, ?, ?, ?)", [(number, *row) for row in rows])
        gone = [(image, person) for image, person, _, _, after in rows if after is None]
        kept = [(image, person, after, number) for image, person, _, _, after in rows if after is not None]
        self._db.executemany("delete from labels where image = ? and person = ?", gone)
        self._db.executemany("insert or replace into labels values (?, ?, ?, ?)", kept)
        self._changed += [row[0] for row in rows]

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._db.execute("rollback")
            return
        text = json.dumps(self.detail)
        self._db.execute("update actions set detail = ? where id = ?", (text, self.change.action))
        self._db.execute("commit")
        self.change.images = self._votes(self._changed)


def agreed(votes: dict[str, int]) -> tuple[int | None, bool]:
    """What people say of an image together: the group that most say, None where there is none; and whether all agree.

    Who has skipped an image says nothing of it, for this person alone. A tie has no group.
    """
    said = Counter(group for group in votes.values() if group != SKIPPED)
    if not said:
        return None, True
    (first, count), *others = said.most_common()
    return (None if others and others[0][1] == count else first), not others


def plain(name: Any, what: str) -> str:
    """A name that can be shown: text of some length, in one line.

    Args:
        name: what was given: spaces and ends of lines become one space each.
        what: what the name is of, for the error.

    Raises:
        StoreError: it is none.
    """
    text = " ".join(name.split()) if isinstance(name, str) else ""
    if not text or len(text) > NAME_LENGTH or not text.isprintable():
        raise StoreError(f"{what} has 1 to {NAME_LENGTH} characters that can be shown.")
    return text
