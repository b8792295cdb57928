"""What is remembered about an object that is not ours: beside it and not on it, and for as long as it lives.

Keras, TensorFlow and Python give their objects to what is patched, and nothing of ours with them. What we know of such
an object is a note: of a class of its own, which says what it is, and of which an object has one. Objects are told
apart by identity, whatever they say of `==`. A note holds nothing that holds its object, or both would live for ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Note = TypeVar("_Note")


class _Noted(weakref.ref[Any]):
    """An object that has a note, the object's id, and the place of all that have one of this class."""

    __slots__ = ("note", "number", "others")
    note: Any
    number: int
    others: dict[int, _Noted]


_all: dict[type[Any], dict[int, _Noted]] = {}  # by the class of the note and the id of the object


def _forget(noted: _Noted) -> None:
    if noted.others.get(noted.number) is noted:
        del noted.others[noted.number]


def _noted(one: Any, kind: type[Any], note: Any) -> _Noted:
    made = _Noted(one, _forget)
    made.note, made.number, made.others = note, id(one), _all.setdefault(kind, {})
    return made


def of(one: Any, kind: type[_Note], make: Callable[[], _Note] | None = None) -> _Note:
    """The note of this class on an object; if there is none, made by `make`, or without arguments."""
    note = found(one, kind)
    if note is None:
        made = _noted(one, kind, kind() if make is None else make())
        note = cast(_Note, made.others.setdefault(id(one), made).note)
    return note


def found(one: Any, kind: type[_Note]) -> _Note | None:
    """The note of this class on an object; None if there is none."""
    noted = _all.get(kind, {}).get(id(one))
    return None if noted is None or noted() is not one else noted.note


def has(one: Any, kind: type[Any]) -> bool:
    """Whether an object has a note of this class."""
    return found(one, kind) is not None


def put(one: Any, note: Any) -> None:
    """Note this on an object, in the place of another note of its class."""
    drop(one, type(note))
    made = _noted(one, type(note), note)
    made.others[id(one)] = made


def drop(one: Any, kind: type[_Note]) -> _Note | None:
    """Take the note of this class off an object; returns it, or None if there is none."""
    noted = _all.get(kind, {}).pop(id(one), None)
    return None if noted is None or noted() is not one else noted.note


def clear(kind: type[Any]) -> None:
    """Take the notes of this class off all objects."""
    _all.pop(kind, None)


def having(kind: type[Any]) -> list[Any]:
    """The objects that have a note of this class, the last to get it at the end."""
    return [one for noted in list(_all.get(kind, {}).values()) if (one := noted()) is not None]
