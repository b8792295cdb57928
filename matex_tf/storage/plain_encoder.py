"""Plain Python values as bytes and back: JSON for what they are, NumPy's .npy for arrays. Nothing of it is a program.

In the JSON, None, booleans, text, whole numbers of 64 bits and finite floats stand for themselves, and a list for a
list. An object has one key, which says what its value stands for: `{"tuple": [1, 2]}`. Lists, dicts, arrays and
whatever else can change are numbered as they come, so that one that stands in two places is one again when it is read:
`{"again": 3}`. Of an array the JSON has `{"ndarray": ""}`; the arrays themselves follow it, in that order.
"""

from __future__ import annotations

import base64
import collections
import io
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from matex_tf.errors import MatexError
from matex_tf.storage.plain_decoder import FACTORIES, GENERATORS, LENGTH, Malformed, load, loads

__all__ = ["Malformed", "Name", "NotPlain", "dump", "dumps", "holds", "load", "loads"]

_DEEPEST = 100
_LONG_BYTES = 1 << 10  # from here on bytes are written as an array


class NotPlain(MatexError):
    """A value is, or holds, something that is none of the plain ones; says what and where."""


@dataclass(frozen=True)
class Name:
    """Stands for something that whoever reads can make of its name, and of a plain value."""

    name: str
    value: Any = None


def _refuse(value: Any) -> Any:
    raise NotPlain(f"a {type(value).__name__}")


def dump(value: Any, file: BinaryIO, other: Callable[[Any], Any] = _refuse) -> None:
    """Write a value to a file.

    Args:
        value: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, OrderedDict,
            defaultdict, Counter, deque; arrays and scalars of NumPy that hold no Python objects; generators of random
            numbers of Python and NumPy. Of these types exactly: what a subclass adds would be lost.
        other: gives a plain value, or a `Name`, for anything else; raises NotPlain where there is none.

    Raises:
        NotPlain: the value holds something else.
    """
    writer = _Writer(other)
    text = json.dumps(writer.put(value, "", 0), allow_nan=False, separators=(",", ":")).encode()
    file.write(LENGTH.pack(len(text)))
    file.write(text)
    for array in writer.arrays:
        np.lib.format.write_array(file, array, allow_pickle=False)


def dumps(value: Any, other: Callable[[Any], Any] = _refuse) -> bytes:
    """A value as bytes. Arguments and errors: see `dump`."""
    file = io.BytesIO()
    dump(value, file, other)
    return file.getvalue()


def holds(value: Any, name: str, other: Callable[[Any], Any] = _refuse) -> str:
    """What a value has that is not plain, such as "name[3] is a Thread"; empty where it can be written.

    Args:
        value: see `dump`.
        name: what the answer calls the value.
        other: see `dump`.
    """
    try:
        _Writer(other).put(value, name, 0)
    except NotPlain as error:
        return str(error)
    return ""


class _Writer:
    """Makes JSON of a value.

    Attributes:
        arrays: to be written after it.
    """

    def __init__(self, other: Callable[[Any], Any]):
        self.arrays: list[np.ndarray] = []
        self._other = other
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no two have the same id

    def put(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 63 else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is complex:
            return {"complex": [repr(value.real), repr(value.imag)]}
        if kind is bytes:
            return {"bytes": self._bytes(value)}
        if kind is Name:
            return {"name": [value.name, self.put(value.value, where, depth + 1)]}
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value), where)}
        if depth > _DEEPEST:
            raise NotPlain(f"{where[:80]}… is nested more than {_DEEPEST} deep")
        if kind in (tuple, frozenset):
            return {kind.__name__: self._items(value, where, depth)}
        if kind not in _CHANGING:
            return self._put_other(value, where, depth)
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        written = _CHANGING[kind](self, value, where, depth)
        return written if kind is list else {"ndarray" if kind is np.memmap else kind.__name__: written}

    def _put_other(self, value: Any, where: str, depth: int) -> Any:
        try:
            stand_in = self._other(value)
        except NotPlain as error:
            raise NotPlain(f"{where} is {error}" if where else str(error)) from None
        return self.put(stand_in, where, depth + 1)

    def _items(self, value: Any, where: str, depth: int) -> list[Any]:
        return [self.put(item, f"{where}[{place}]", depth + 1) for place, item in enumerate(value)]

    def _bytes(self, value: bytes) -> Any:
        if len(value) < _LONG_BYTES:
            return base64.b64encode(value).decode()
        self.arrays.append(np.frombuffer(value, np.uint8))
        return None

    def _array(self, value: np.ndarray, where: str) -> str:
        """The name of an array's type, where .npy does not know that."""
        if value.dtype.hasobject:
            raise NotPlain(f"{where} is an array of Python objects" if where else "an array of Python objects")
        if value.dtype.kind == "V" and value.dtype.type is not np.void:  # bfloat16 and its kin
            self.arrays.append(value.view(f"u{value.dtype.itemsize}"))
            return value.dtype.name
        self.arrays.append(value)
        return ""

    def _of_dict(self, value: dict[Any, Any], where: str, depth: int) -> Any:
        return [
            [self.put(key, f"a key of {where}", depth + 1), self.put(item, f"{where}[{key!r:.40}]", depth + 1)]
            for key, item in value.items()
        ]

    def _of_defaultdict(self, value: collections.defaultdict[Any, Any], where: str, depth: int) -> Any:
        factory = None if value.default_factory is None else value.default_factory.__name__
        if factory is not None and FACTORIES.get(factory) is not value.default_factory:
            raise NotPlain(f"{where} is a defaultdict of {factory}" if where else f"a defaultdict of {factory}")
        return [factory, self._of_dict(value, where, depth)]

    def _of_generator(self, value: np.random.Generator, where: str, depth: int) -> Any:
        made_of: Any = value.bit_generator
        seeds = made_of.seed_seq if hasattr(made_of, "seed_seq") else made_of._seed_seq
        if type(made_of).__name__ not in GENERATORS or type(seeds) is not np.random.SeedSequence:
            raise NotPlain(f"{where} is a generator of {type(made_of).__name__}")
        return [self.put(seeds.state, where, depth + 1), self.put(made_of.state, where, depth + 1)]


#: What can change, and how it is written.
_CHANGING: dict[type[Any], Callable[[_Writer, Any, str, int], Any]] = {
    **dict.fromkeys((list, set), _Writer._items),
    **dict.fromkeys((dict, collections.OrderedDict, collections.Counter), _Writer._of_dict),
    bytearray: lambda writer, value, where, depth: writer._bytes(bytes(value)),
    collections.deque: lambda writer, value, where, depth: [value.maxlen, writer._items(value, where, depth)],
    collections.defaultdict: _Writer._of_defaultdict,
    **dict.fromkeys((np.ndarray, np.memmap), lambda writer, value, where, depth: writer._array(value, where)),
    random.Random: lambda writer, value, where, depth: writer.put(value.getstate(), where, depth + 1),
    np.random.RandomState: lambda writer, value, where, depth: writer.put(
        value.get_state(legacy=False), where, depth + 1
    ),
    np.random.Generator: _Writer._of_generator,
}
