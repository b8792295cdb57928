"""Reads what `plain_encoder` writes. Types are made by their names in a list here, and arrays without pickle."""

from __future__ import annotations

import base64
import collections
import io
import json
import random
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from matex_tf.errors import MatexError

LENGTH = struct.Struct("<Q")  # of the JSON
GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
#: What a defaultdict may make.
FACTORIES = {kind.__name__: kind for kind in (list, dict, set, int, float, str, tuple)}


class Malformed(MatexError):
    """Bytes are not what `dump` writes."""


def _no_name(name: str, value: Any) -> Any:
    raise Malformed(f"it names {name[:80]!r}, which is not known")


def load(file: BinaryIO, named: Callable[[str, Any], Any] = _no_name) -> Any:
    """The value that `dump` was given.

    Args:
        named: makes what a `Name` stands for, of its name and its value.

    Raises:
        Malformed: `dump` has not written this.
    """
    try:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        text = file.read(length)
        said = json.loads(text.decode())
        return _Reader(file, named).get(said)
    except (MatexError, OSError, MemoryError):
        raise
    except Exception as error:  # the parser of .npy raises many kinds
        raise Malformed(f"it is not in the format of plain values ({error})") from None


def loads(data: bytes, named: Callable[[str, Any], Any] = _no_name) -> Any:
    """The value that `dumps` was given, from its bytes, `data`. Arguments and errors: see `load`."""
    return load(io.BytesIO(data), named)


class _Reader:
    """Makes a value of JSON, and of the arrays that follow it in a file.

    Attributes:
        named: see `load`.
        made: what can change, in the order in which it was written.
    """

    def __init__(self, file: BinaryIO, named: Callable[[str, Any], Any]):
        self._file, self.named = file, named
        self.made: list[Any] = []

    def get(self, said: Any) -> Any:
        if said is None or type(said) in (bool, int, float, str):
            return said
        if type(said) is list:
            return self.filled([], lambda made: made.extend(map(self.get, said)))
        ((kind, inner),) = said.items()
        if kind not in _KINDS:
            raise ValueError(f"{kind!r:.80} is not a kind of value")
        return _KINDS[kind](self, inner)

    def array(self, name: str) -> np.ndarray:
        """The next array of the file, of a type that .npy knows, or of the one that has this name."""
        array = np.lib.format.read_array(self._file, allow_pickle=False)
        if not name:
            return array
        import ml_dtypes  # TensorFlow and Keras need it

        kind = getattr(ml_dtypes, name)
        if not (isinstance(kind, type) and issubclass(kind, np.generic)):
            raise ValueError(f"{name!r:.80} is not a type of an array")
        return array.view(kind)

    def bytes(self, inner: str | None) -> bytes:
        return self.array("").tobytes() if inner is None else base64.b64decode(inner)

    def filled(self, empty: Any, fill: Callable[[Any], object] = lambda made: None) -> Any:
        """What can stand in several places, also in itself: it is known before it is filled."""
        self.made.append(empty)
        fill(empty)
        return empty

    def pairs(self, empty: Any, inner: list[Any]) -> Any:
        self.made.append(empty)
        for key, item in inner:
            place = self.get(key)
            empty[place] = self.get(item)
        return empty

    def generator(self, inner: Any) -> Any:
        place = len(self.made)
        self.made.append(None)
        seeds, state = self.get(inner[0]), self.get(inner[1])
        if state["bit_generator"] not in GENERATORS:
            raise ValueError("there is no such generator")
        made_of = getattr(np.random, state["bit_generator"])(np.random.SeedSequence(**seeds))
        made_of.state = state
        self.made[place] = np.random.Generator(made_of)
        return self.made[place]


#: What a value of JSON can stand for.
_KINDS: dict[str, Callable[[_Reader, Any], Any]] = {
    "int": lambda reader, inner: int(inner, 16),
    "float": lambda reader, inner: float(inner),
    "complex": lambda reader, inner: complex(*map(float, inner)),
    "bytes": _Reader.bytes,
    "name": lambda reader, inner: reader.named(inner[0], reader.get(inner[1])),
    "scalar": lambda reader, inner: reader.array(inner)[()],
    "tuple": lambda reader, inner: tuple(map(reader.get, inner)),
    "frozenset": lambda reader, inner: frozenset(map(reader.get, inner)),
    "again": lambda reader, inner: reader.made[inner],
    "ndarray": lambda reader, inner: reader.filled(reader.array(inner)),
    "bytearray": lambda reader, inner: reader.filled(bytearray(reader.bytes(inner))),
    "set": lambda reader, inner: reader.filled(set(), lambda made: made.update(map(reader.get, inner))),
    "deque": lambda reader, inner: reader.filled(
        collections.deque(maxlen=inner[0]), lambda made: made.extend(map(reader.get, inner[1]))
    ),
    "dict": lambda reader, inner: reader.pairs({}, inner),
    "OrderedDict": lambda reader, inner: reader.pairs(collections.OrderedDict(), inner),
    "Counter": lambda reader, inner: reader.pairs(collections.Counter(), inner),
    "defaultdict": lambda reader, inner: reader.pairs(
        collections.defaultdict(None if inner[0] is None else FACTORIES[inner[0]]), inner[1]
    ),
    "Random": lambda reader, inner: reader.filled(random.Random(), lambda made: made.setstate(reader.get(inner))),
    "RandomState": lambda reader, inner: reader.filled(
        np.random.RandomState(), lambda made: made.set_state(reader.get(inner))
    ),
    "Generator": _Reader.generator,
}
