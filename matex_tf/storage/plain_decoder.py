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
    """Makes a value of JSON, and of the arrays that follow it in a file."""

    def __init__(self, file: BinaryIO, named: Callable[[str, Any], Any]):
        self._file, self._named = file, named
        self._made: list[Any] = []

    def get(self, said: Any) -> Any:
        if said is None or type(said) in (bool, int, float, str):
            return said
        if type(said) is list:
            made: list[Any] = []
            self._made.append(made)
            made.extend(map(self.get, said))
            return made
        ((kind, inner),) = said.items()
        if kind not in _KINDS:
            raise ValueError(f"{kind!r:.80} is not a kind of value")
        return getattr(self, f"_{kind}")(inner)

    def _int(self, inner: str) -> int:
        return int(inner, 16)

    def _float(self, inner: str) -> float:
        return float(inner)

    def _complex(self, inner: list[str]) -> complex:
        return complex(*map(float, inner))

    def _bytes(self, inner: str | None) -> bytes:
        return self._array("").tobytes() if inner is None else base64.b64decode(inner)

    def _name(self, inner: list[Any]) -> Any:
        return self._named(inner[0], self.get(inner[1]))

    def _scalar(self, inner: str) -> Any:
        return self._array(inner)[()]

    def _tuple(self, inner: list[Any]) -> Any:
        return tuple(map(self.get, inner))

    def _frozenset(self, inner: list[Any]) -> Any:
        return frozenset(map(self.get, inner))

    def _again(self, inner: int) -> Any:
        return self._made[inner]

    def _array(self, name: str) -> np.ndarray:
        """The next array of the file, of a type that .npy knows, or of the one that has this name."""
        array = np.lib.format.read_array(self._file, allow_pickle=False)
        if not name:
            return array
        import ml_dtypes  # TensorFlow and Keras need it

        kind = getattr(ml_dtypes, name)
        if not (isinstance(kind, type) and issubclass(kind, np.generic)):
            raise ValueError(f"{name!r:.80} is not a type of an array")
        return array.view(kind)

    def _changing(self, empty: Any) -> Any:
        self._made.append(empty)
        return empty

    def _ndarray(self, inner: str) -> Any:
        return self._changing(self._array(inner))

    def _bytearray(self, inner: Any) -> Any:
        return self._changing(bytearray(self._bytes(inner)))

    def _set(self, inner: list[Any]) -> Any:
        made = self._changing(set())
        made.update(map(self.get, inner))
        return made

    def _deque(self, inner: Any) -> Any:
        made = self._changing(collections.deque(maxlen=inner[0]))
        made.extend(map(self.get, inner[1]))
        return made

    def _dict(self, inner: list[Any]) -> Any:
        return self._fill(self._changing({}), inner)

    def _OrderedDict(self, inner: list[Any]) -> Any:
        return self._fill(self._changing(collections.OrderedDict()), inner)

    def _Counter(self, inner: list[Any]) -> Any:
        return self._fill(self._changing(collections.Counter()), inner)

    def _defaultdict(self, inner: Any) -> Any:
        factory = None if inner[0] is None else FACTORIES[inner[0]]
        return self._fill(self._changing(collections.defaultdict(factory)), inner[1])

    def _fill(self, made: Any, inner: list[Any]) -> Any:
        for key, item in inner:
            place = self.get(key)
            made[place] = self.get(item)
        return made

    def _Random(self, inner: Any) -> Any:
        made = self._changing(random.Random())
        made.setstate(self.get(inner))
        return made

    def _RandomState(self, inner: Any) -> Any:
        made = self._changing(np.random.RandomState())
        made.set_state(self.get(inner))
        return made

    def _Generator(self, inner: Any) -> Any:
        place = len(self._made)
        self._made.append(None)
        seeds, state = self.get(inner[0]), self.get(inner[1])
        if state["bit_generator"] not in GENERATORS:
            raise ValueError("there is no such generator")
        made_of = getattr(np.random, state["bit_generator"])(np.random.SeedSequence(**seeds))
        made_of.state = state
        self._made[place] = np.random.Generator(made_of)
        return self._made[place]


#: What a value of JSON can stand for, by the methods above.
_KINDS = {
    *("int", "float", "complex", "bytes", "name", "scalar", "tuple", "frozenset", "again", "set", "dict", "bytearray"),
    *("deque", "OrderedDict", "Counter", "defaultdict", "ndarray", "Random", "RandomState", "Generator"),
}
