"""A reader of pickles that allows plain containers and NumPy arrays, and nothing else.

A pickle is a program. This one may make lists, dicts, tuples, text, bytes and numbers; and call a few functions, none
of which is the real one: they take what a true pickle of an array gives them, and look at it before memory is asked
for.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from matex_tf.errors import DataError, quoted

#: Instructions that make objects of other classes, take them from elsewhere, or reach outside of the file.
_FORBIDDEN = {
    "PERSID", "BINPERSID", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER",
    "READONLY_BUFFER",
}  # fmt: skip
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}


def load(data: bytes) -> Any:
    """What a pickle holds; text of Python 2 stays bytes.

    Raises:
        DataError: it is damaged, or wants something that is not allowed.
    """
    try:
        _check(data)
        return _plain(_Unpickler(io.BytesIO(data), encoding="bytes").load())
    except DataError:
        raise
    except Exception as error:  # a damaged pickle is a wrong program: it can fail in any way
        text = " ".join((str(error) or type(error).__name__).split())
        raise DataError(f"the pickle is damaged ({text[:200]})") from None


def _check(data: bytes) -> None:
    """Look at every instruction before one is run.

    The unpickler believes sizes: an instruction to remember something at place 4,000,000,000 costs 64 GB. What is taken
    from the file is bounded by its length, which `genops` sees to.
    """
    puts = 0
    for opcode, argument, place in pickletools.genops(data):
        if opcode.name in _FORBIDDEN:
            raise DataError(f"the pickle has the instruction {opcode.name} at byte {place}, which is not allowed")
        if opcode.name in _PUT or opcode.name == "MEMOIZE":
            puts += 1
            if opcode.name in _PUT and int(argument or 0) > 2 * puts + 1024:
                raise DataError(f"the pickle is damaged: at byte {place} it remembers its {puts}. thing as {argument}")


class _Dtype:
    """Stands for numpy.dtype: keeps its name and byte order."""

    def __init__(self, name: Any, *_: Any):
        self.name = name.decode("ascii") if isinstance(name, bytes) else str(name)
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else str(order)

    def real(self) -> np.dtype:
        dtype = np.dtype(self.name)
        if dtype.kind not in "biuf" or self.order not in "|<>=":
            raise DataError(f"the pickle has an array of type {self.name}, where numbers were expected")
        return dtype if self.order == "|" else dtype.newbyteorder(self.order)  # type: ignore[arg-type]


class _Array:
    """Stands for an array until its state has come."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.array = _from_bytes(raw, dtype, shape, "F" if fortran else "C")


def _from_bytes(raw: Any, dtype: Any, shape: Any, order: str = "C") -> np.ndarray:
    if not isinstance(dtype, _Dtype) or not isinstance(raw, (bytes, bytearray)):
        raise DataError("the pickle has an array that is not made of bytes and a type")
    return np.frombuffer(raw, dtype.real()).reshape([int(size) for size in shape], order="F" if order == "F" else "C")


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: str = "C", *_: Any) -> np.ndarray:
    return _from_bytes(raw, dtype, shape, order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _scalar(dtype: Any, raw: bytes) -> Any:
    return _from_bytes(raw, dtype, (1,))[0]


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """How pickles of protocol 2 by Python 3 hold bytes."""
    if str(encoding) not in ("latin1", "latin-1", "utf-8"):
        raise DataError(f"the pickle wants text encoded as {quoted(encoding)}, which is not allowed")
    return text.encode("latin1" if "latin" in encoding else "utf-8")


def _no_bytes() -> bytes:
    """How pickles of protocol 2 by Python 3 hold no bytes."""
    return b""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): None,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
}
for _module in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_module}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_module}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_module}.numeric", "_frombuffer"] = _frombuffer


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(f"the pickle wants {module}.{name}, and only arrays of numbers are allowed")
        return _ALLOWED[module, name]


def _plain(value: Any) -> Any:
    """A dict with arrays in place of what stood for them."""
    if not isinstance(value, dict):
        raise DataError(f"the pickle holds a {type(value).__name__}, where a dict was expected")
    return {key: one.array if isinstance(one, _Array) else one for key, one in value.items()}
