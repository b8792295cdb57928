"""`sqlite3.connect`: one rank has the database, the others a private copy in memory, in which they do the same.

Each rank runs every statement, so each finds what it wrote; what reaches the file is one rank's. Committing and closing
are meetings. The copies are made when the connection is, before anybody writes; a database of more than
`opened.LARGEST_COPY` bytes is not copied but opened by every rank, which is said.

A database that a library opens (SQLAlchemy, and by that Optuna) is such a library's store (`stores`).

Relies on: `sqlite3.connect`, `sqlite3.dbapi2`, `Connection.backup`, `commit`, `close`, `executescript`, public.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.patches.files import callers, once, takeover
from matex_tf.patches.files.handles import kinds, opened, stores
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import taken, wrap
from matex_tf.state import notes


def install(module: ModuleType) -> None:
    """Patch sqlite3."""
    wrap(module, "connect", _connect)
    module.dbapi2.connect = module.connect


def _connect(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    database, rest, named = taken(args, kwargs, database=None)
    path = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ""
    if path in ("", ":memory:") or named.get("uri"):
        return wrapped(*args, **kwargs)
    where = callers.caller()
    if not where:
        return wrapped(stores.place("sqlite3", path, False, lambda *paths: _copy(wrapped, *paths)), *rest, **named)
    call = opened.call_of("sqlite3", where, path)
    import sqlite3

    kind = named.pop("factory", rest[4] if len(rest) > 4 else sqlite3.Connection)
    if len(rest) > 4:
        rest = (*rest[:4], _meeting(kind), *rest[5:])
    else:
        named["factory"] = _meeting(kind)
    size = -1  # of the database where ranks have come together

    def act() -> Any:
        connection = wrapped(database, *rest, **named)
        connection.execute("PRAGMA schema_version").close()  # says what is wrong with the file
        return connection

    def tell(connection: Any) -> int:
        nonlocal size
        size = os.path.getsize(path)
        return size

    def elsewhere(sent: int) -> Any:
        nonlocal size
        size = sent
        if size > opened.LARGEST_COPY:
            return wrapped(*args, **kwargs)
        copy = wrapped(":memory:", *rest, **named)
        if size:
            _fill(wrapped, path, copy)
        return copy

    connection = once.do(call, act, tell, elsewhere, lambda: wrapped(*args, **kwargs))
    if size > opened.LARGEST_COPY:
        opened.log_too_large(path)
    elif size >= 0:
        notes.put(connection, call)
        kinds.meet_after("copy", call)
        takeover.watch(connection, path, call.folder)
    return connection


def _copy(wrapped: Any, path: str, private: str) -> None:
    if os.path.exists(path):
        copy = wrapped(private)
        _fill(wrapped, path, copy)
        copy.close()


def _fill(wrapped: Any, path: str, copy: Any) -> None:
    """Let a database have what another one has."""
    source = wrapped(path)
    try:
        source.backup(copy)
    finally:
        source.close()


class _Meets:
    """A connection whose commits and whose end are meetings."""

    def commit(self) -> None:
        super().commit()  # type: ignore[misc]
        kinds.meet_after("commit", notes.found(self, Call))

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        kinds.meet_after("close", notes.drop(self, Call))

    def __exit__(self, *error: Any) -> Any:
        result = super().__exit__(*error)  # type: ignore[misc]
        kinds.meet_after("commit", notes.found(self, Call))
        return result


def _meeting(kind: type) -> type:
    return type(kind.__name__, (_Meets, kind), {})
