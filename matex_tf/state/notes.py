"""What is remembered about an object that is not ours: beside it and not on it, and for as long as it lives.

Keras, TensorFlow and Python give their objects to what is patched, and nothing of ours with them. What we know of such
an object is a note: of a class of its own, which says what it is, and of which an object has one. Objects are told
apart by identity, whatever they say of `==`. A note holds nothing that holds its object, or both would live for ever;
one that may (a call of the script's, a tensor of the same graph), or that is needed as its object ends, is `Inside`.
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


class Inside:
    """A note that is kept in its object, all of this kind in one attribute, and that copies have as well."""

    __slots__ = ()


_ATTRIBUTE = "_matex_notes"


class _Notes:
    """Notes inside of an object, by class: no container, in which Keras would look for layers. A pickle of the object
    has an empty dict in their place, and can be read where this package is not installed."""

    __slots__ = ("by_class",)

    def __init__(self, by_class: dict[type[Any], Any] | None = None):
        self.by_class = by_class or {}

    def __reduce__(self) -> Any:
        return dict, ()


def _inside(one: Any) -> dict[type[Any], Any]:
    try:
        held = one.__dict__.get(_ATTRIBUTE)  # quicker than `getattr`, for which a tensor calls a method of its own
    except AttributeError:  # a graph has attributes, and none of this name
        held = getattr(one, _ATTRIBUTE, None)
    return held.by_class if isinstance(held, _Notes) else {}


_all: dict[type[Any], dict[int, _Noted]] = {}  # by the class of the note and the id of the object


def _forget(noted: _Noted) -> None:
    if noted.others.get(noted.number) is noted:
        del noted.others[noted.number]


def _noted(one: Any, kind: type[Any], note: Any) -> _Noted:
    made = _Noted(one, _forget)
    made.note, made.number, made.others = note, id(one), _all.setdefault(kind, {})
    return made


def of(one: Any, kind: type[_Note], make: Callable[[], _Note] | None = None) -> _Note:
    """The note of a class on an object, which gets one if it has none.

    Args:
        one: the object. It must take weak references, or attributes if the note is `Inside`.
        kind: the class.
        make: gives the note of an object that has none; None: the class does, without arguments.
    """
    note = found(one, kind)
    if note is None and issubclass(kind, Inside):
        put(one, note := kind() if make is None else make())
    elif note is None:
        made = _noted(one, kind, kind() if make is None else make())
        note = cast(_Note, made.others.setdefault(id(one), made).note)
    return note


def found(one: Any, kind: type[_Note]) -> _Note | None:
    """The note on the object `one` of the class `kind`; None if there is none."""
    if issubclass(kind, Inside):
        return _inside(one).get(kind)
    noted = _all.get(kind, {}).get(id(one))
    return None if noted is None or noted() is not one else noted.note


def has(one: Any, kind: type[Any]) -> bool:
    """Whether the object `one` has a note of the class `kind`."""
    return found(one, kind) is not None


def put(one: Any, note: Any) -> None:
    """Give the object `one` a `note`, in the place of another note of its class."""
    if isinstance(note, Inside):
        # Past what an object does when an attribute is set; anew, as a copy of the object may have the same.
        object.__setattr__(one, _ATTRIBUTE, _Notes({**_inside(one), type(note): note}))
        return
    drop(one, type(note))
    made = _noted(one, type(note), note)
    made.others[id(one)] = made


def drop(one: Any, kind: type[_Note]) -> _Note | None:
    """Take the note of the class `kind` off the object `one`; returns it, or None if there is none."""
    if issubclass(kind, Inside):
        left = dict(_inside(one))
        note = left.pop(kind, None)
        if note is not None:
            object.__setattr__(one, _ATTRIBUTE, _Notes(left))
        return note
    noted = _all.get(kind, {}).pop(id(one), None)
    return None if noted is None or noted() is not one else noted.note


class _Kept(list[Any], Inside):
    """What lives as long as an object."""


def keep(one: Any, other: Any) -> None:
    """Let `other` live as long as `one`."""
    of(one, _Kept).append(other)


def clear(kind: type[Any]) -> None:
    """Take the notes of this class, none that are `Inside`, off all objects."""
    _all.pop(kind, None)


def having(kind: type[Any]) -> list[Any]:
    """The objects that have a note of this class, none that is `Inside`; the last to get it at the end."""
    return [one for noted in list(_all.get(kind, {}).values()) if (one := noted()) is not None]
