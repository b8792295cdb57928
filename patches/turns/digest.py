"""A checksum over all that an object holds: the objects in it however deep, and the code that it runs with its names.

It is made by pickle, which goes through C objects and cycles too. Functions and classes of the script, which pickle
knows by their names alone, go in by what they close over, the names that their code looks up, and their attributes;
instances of such classes by all of their attributes, whatever their `__getstate__` leaves out. Code of libraries goes
in by name, and their objects by what they themselves say is their state. What pickle cannot take cannot be compared.
"""

from __future__ import annotations

import _thread
import abc
import dis
import functools
import gc
import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf.core import mismatch
from matex_tf.patches.common import sharing_report

#: Packages by which the ranks of a job speak to each other.
_BETWEEN_RANKS = ("mpi4py", "horovod", "matex_tf")
#: What patches leave at a model.
_LEFT_BY_PATCHES = "matex_tf.patches."
#: Modules whose objects hand on what other code gives, or wait for it.
_HANDING_ON = ("queue", "_queue", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "socket", "_io")
#: Attributes of a class that say nothing of what its objects do.
_OF_CLASSES = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__slots__", "__annotations__", "__dataclass_fields__",
    "__dataclass_params__", "__orig_bases__", "__parameters__", "__match_args__", "__type_params__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__", *vars(abc.ABC),
}  # fmt: skip
#: Methods of a data set that make no batch.
_BETWEEN_EPOCHS = {"__init__", "__len__", "on_epoch_begin", "on_epoch_end"}
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
#: Bytes of an array up to which all of it is looked at in one go; and of the blocks that larger ones are added up in.
_SMALL, _BLOCK = 1 << 16, 1 << 14
#: Bytes of a file that is mapped to be written to, up to which it is read.
_MAPPED = 1 << 30


class CannotCompare(Exception):
    """Nobody can tell whether an object has changed. Its text says which, and why."""


class Digest(NamedTuple):
    """What `of` has found.

    Attributes:
        checksum: over all of it.
        why: what cannot be compared, and why, in words; "" if all can.
        between_ranks: a package by which ranks speak to each other; "" without one.
        goes_on: the class of an iterator, or of an object that hands on what other code gives; "" without one.
    """

    checksum: int
    why: str
    between_ranks: str
    goes_on: str


def of(*values: Any) -> Digest:
    """What some values hold, as far as they can be taken apart."""
    pickler, why = _Pickler(), ""
    try:
        pickler.dump(values)
    except CannotCompare as error:
        why = str(error)
    except Exception as error:  # classes may do anything when they are pickled
        why = f"a {pickler.last}, which cannot be compared ({error})"
    return Digest(pickler.checksum, why, pickler.between_ranks, pickler.goes_on)


class _Held:
    """What stands in the digest for an object that is taken apart here."""

    def __init__(self, *kind: Any):
        pass


class _Pickler(pickle.Pickler):
    """Adds up what it is given in place of writing it."""

    def __init__(self) -> None:
        super().__init__(self, protocol=5, buffer_callback=self._of_buffer)
        self.checksum, self.last = 0, "thing"
        self.between_ranks = self.goes_on = ""

    def write(self, content: Any) -> int:
        """Take what a file would be given."""
        view = memoryview(content).cast("B")
        self.checksum = mismatch.checksum(view, self.checksum)
        return view.nbytes

    def _of_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        content = np.frombuffer(buffer.raw(), np.uint8)
        whole = content.size - content.size % _BLOCK if content.size > _SMALL else 0
        # Sums of blocks take a tenth of the time of a checksum, and only a change of order in a block escapes them.
        sums = content[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(1, dtype=np.uint64)
        self.checksum = mismatch.checksum(content[whole:], mismatch.checksum(sums, self.checksum))
        return False

    def reducer_override(self, value: Any) -> Any:
        """What stands for a value in the digest."""
        kind = type(value)
        if kind is _Held or value is _Held:
            return NotImplemented
        self._note(value, kind)
        self.last = getattr(value, "__qualname__", kind.__name__)
        for known, take_apart in _KNOWN.items():
            if issubclass(kind, known):
                return take_apart(value)
        if issubclass(kind, type):
            return NotImplemented if _goes_by_name(value) else _of_class(value)
        if (found := _of_other_package(value, kind)) is not None:
            return found
        return NotImplemented if _goes_by_name(kind) else _of_instance(value, kind)

    def _note(self, value: Any, kind: type) -> None:
        module = _module_of(kind)
        if kind is types.ModuleType:
            module = value.__name__
        elif kind is types.FunctionType or issubclass(kind, type):
            module = _module_of(value)
        if module.partition(".")[0] in _BETWEEN_RANKS and not module.startswith((_LEFT_BY_PATCHES, __name__)):
            self.between_ranks = module
        if module.partition(".")[0] in _HANDING_ON or isinstance(value, Iterator):
            self.goes_on = self.goes_on or kind.__name__
        if kind is Code or (kind is types.FunctionType and not is_library(module)):
            code = value.code if kind is Code else value.__code__
            names = [one.partition(".")[0] for part in _codes(code) for one in part.co_names]
            self.between_ranks = next((one for one in names if one in _BETWEEN_RANKS), self.between_ranks)


def _module_of(kind: Any) -> str:
    name = getattr(kind, "__module__", "")
    return name if isinstance(name, str) else ""


class Code:
    """What a generator runs, to be looked at by the names that it looks up and what it closes over.

    Args:
        generator: one that has not ended.
    """

    def __init__(self, generator: types.GeneratorType[Any, Any, Any]):
        frame = generator.gi_frame
        assert frame is not None
        self.code, self.names = generator.gi_code, frame.f_globals
        holders = (generator, frame)
        cells = [one for holder in holders for one in gc.get_referents(holder) if type(one) is types.CellType]
        self.closure = cells[len(cells) - len(self.code.co_freevars) :]  # in front of them are those of its own names


def _held(name: str, state: Any) -> Any:
    """For pickle: an object with a state; it may stand in its own state again."""
    return _Held, (name,), state


def _of_code(code: types.CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """What the names lead to that some code looks up, and those of the functions and comprehensions within it."""
    found: dict[str, Any] = {}
    for one in _codes(code):
        for name in _looked_up(one):
            if name in names:
                value = found[name] = names[name]
                if isinstance(value, types.ModuleType):
                    found |= _of_module(value, one)
    return found


def _of_module(module: types.ModuleType, code: types.CodeType) -> dict[str, Any]:
    """Of a module of the script what some code may take from it."""
    found: dict[str, Any] = {}
    pending = [module]
    while pending:
        one = pending.pop()
        if is_library(one.__name__):
            continue
        for name in code.co_names:
            if name in vars(one) and f"{one.__name__}.{name}" not in found:
                value = found[f"{one.__name__}.{name}"] = vars(one)[name]
                pending += [value] if isinstance(value, types.ModuleType) else []
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _looked_up(code: types.CodeType) -> tuple[str, ...]:
    """The names of its module, or of Python, that some code looks up."""
    ops = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    return tuple({one.argval: None for one in dis.get_instructions(code) if one.opname in ops})


def _of_function(function: types.FunctionType) -> Any:
    if is_library(function.__module__) and "<" not in function.__qualname__:
        return NotImplemented
    cells = [_content(cell) for cell in function.__closure__ or ()]
    names = {} if is_library(function.__module__) else _of_code(function.__code__, function.__globals__)
    state = (function.__defaults__, function.__kwdefaults__, cells, names, vars(function))
    return _held(function.__qualname__, state)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # which has no value yet
        return None


def _goes_by_name(kind: type) -> bool:
    return is_library(_module_of(kind)) and "<locals>" not in kind.__qualname__


def _of_class(kind: type) -> Any:
    import keras

    left_out = _OF_CLASSES | _BETWEEN_EPOCHS if issubclass(kind, keras.utils.PyDataset) else _OF_CLASSES
    state = {
        name: value
        for name, value in vars(kind).items()
        if name not in left_out and not isinstance(value, _DESCRIPTORS)
    }
    return _held(kind.__qualname__, (kind.__bases__, state))


def _of_instance(value: Any, kind: type) -> Any:
    """An object of a class of the script's own."""
    state: list[Any] = [kind, getattr(value, "__dict__", None)]
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else slots
        names = [f"_{base.__name__.lstrip('_')}{one}" if _is_mangled(one) else one for one in slots]
        state.append([getattr(value, name, None) for name in names if name not in ("__dict__", "__weakref__")])
    for held in (list, tuple, set, frozenset, dict):
        if isinstance(value, held):
            state.append(dict(value) if held is dict else [*value])
    of_c = [base for base in kind.__mro__ if not base.__flags__ & _HEAP and base not in _CONTAINERS]
    of_library = [base for base in kind.__mro__ if _goes_by_name(base) and "__reduce__" in vars(base)]
    if of_c or [base for base in of_library if base not in _CONTAINERS]:
        state += [
            [*part] if isinstance(part, Iterator) else part
            for part in value.__reduce_ex__(5)
            if not isinstance(part, types.BuiltinFunctionType)
        ]
    return _held(kind.__qualname__, state)


#: The flag of a class that is not built in.
_HEAP = 1 << 9
_CONTAINERS = (object, list, tuple, set, frozenset, dict, int, float, complex, str, bytes)


def _is_mangled(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _of_file(file: Any) -> Any:
    if isinstance(file, (io.BytesIO, io.StringIO)):
        return NotImplemented
    if file.writable():
        raise CannotCompare(f"a file that is written to ({getattr(file, 'name', '')})")
    return _held("file", (str(file.name), file.closed or file.tell()))


def _of_array(array: np.ndarray) -> Any:
    """An array that nobody can write to is what it was if it lies where it lay; others go in by what they hold."""
    mapped, frozen = False, True
    one: Any = array
    while isinstance(one, np.ndarray):
        mapped, frozen = mapped or isinstance(one, np.memmap), frozen and not one.flags.writeable
        one = one.base
    if frozen and (mapped or array.nbytes > _SMALL) and not array.dtype.hasobject:
        place = array.__array_interface__
        return _held("array", (place["data"], place["shape"], place["strides"], str(array.dtype)))
    if mapped and array.nbytes > _MAPPED:
        raise CannotCompare("a large file that is mapped to be written to (open it with mode='r')")
    return NotImplemented


def _of_other_package(value: Any, kind: type) -> Any:
    """Objects of packages that need not be installed, and those of Keras; None of others."""
    package = _module_of(kind).partition(".")[0]
    if package == "h5py" and kind.__name__ in ("File", "Group", "Dataset") and value.file.mode == "r":
        return _held("h5py", (value.file.filename, value.name))
    if package == "torch" and kind.__name__ == "Generator":
        return _held("torch", value.get_state().numpy())
    if package == "multiprocessing" and kind.__name__ == "SharedMemory":
        return _held("memory", bytes(value.buf))
    if package == "tensorflow" and hasattr(kind, "python_function"):
        return _held("function", (value.python_function,))
    import keras

    if isinstance(value, (keras.Layer, keras.Optimizer, keras.Metric)):
        kept = [np.asarray(one) for one in value.variables]  # a model may be trained
        return _held("variables", (kept, getattr(value, "optimizer", None)))
    if isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        return _held("seeds", np.array(value.state))
    if isinstance(value, keras.Variable):
        return _held("variable", np.asarray(value))
    return None


def _refuse(value: Any) -> Any:
    raise CannotCompare(f"a {type(value).__name__}, which works by itself")


def _of_tensor(tensor: Any) -> Any:
    return _held("tensor", tensor.numpy() if hasattr(tensor, "numpy") else tensor.name)


#: By class: how it is taken apart.
_KNOWN: dict[Any, Any] = {
    Code: lambda one: _held(one.code.co_name, (_of_code(one.code, one.names), one.closure)),
    types.FunctionType: _of_function,
    types.ModuleType: lambda one: _held(one.__name__, None),
    types.MethodType: lambda one: _held("method", (one.__func__, one.__self__)),
    types.MappingProxyType: lambda one: _held("mapping", dict(one)),
    types.CodeType: lambda one: _held(one.co_name, None),
    types.CellType: lambda one: _held("cell", (_content(one),)),
    type(functools.lru_cache(len)): lambda one: _held("cached", (one.__wrapped__,)),
    functools.cached_property: lambda one: _held("property", (one.func,)),
    property: lambda one: _held("property", (one.fget, one.fset)),
    staticmethod: lambda one: _held("static", (one.__func__,)),
    classmethod: lambda one: _held("class", (one.__func__,)),
    io.IOBase: _of_file,
    _thread.LockType: lambda one: _held("lock", None),
    _thread.RLock: lambda one: _held("lock", None),
    threading.Thread: _refuse,
    weakref.ref: lambda one: _held("reference", (one(),)),
    np.ndarray: _of_array,
    tf.Variable: _of_tensor,
    tf.Tensor: _of_tensor,
}


@functools.cache
def is_library(module: str | None) -> bool:
    """Whether a module is Python's, an installed package's, or this project's."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if module is None or module == "builtins" or module.partition(".")[0] == "matex_tf":
        return True
    if file is None:
        return module in sys.builtin_module_names
    return not sharing_report.of_the_script(file)
