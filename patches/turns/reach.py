"""What code that makes batches can reach and the rest of the script can too, and whether making one has changed it.

Where nothing has changed, a batch may be made by one rank alone: no other rank misses what was drawn, counted or kept.
Looked at are the states of the process's random numbers, and what the code can reach: names of its modules, what it
closes over, and the objects that it was given. A file, or what lies deeper in objects, is not seen.

Relies on (TensorFlow 2.16 to 2.21, private): `context.context()._rng`.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from matex_tf.core import mismatch
from matex_tf.patches.common import seeds

#: How many functions deep, and objects in objects, what makes a batch is looked at.
_DEEP = 3
#: How many things in a list, or attributes of an object, are looked at.
_MANY = 64
#: How many numbers of a variable.
_MUCH = 1 << 20
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
#: Packages whose functions leave nothing behind but what `_of_process` knows.
_KNOWN = ("keras.", "numpy.")
#: Modules whose objects hand on what other code gives, or wait for it.
_HANDING_ON = ("queue", "_queue", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "socket", "_io")
#: Packages by which the ranks of a job speak to each other.
_BETWEEN_RANKS = ("mpi4py", "horovod", "matex_tf")
#: What patches leave at a model.
_LEFT_BY_PATCHES = "matex_tf.patches."


class _Code(NamedTuple):
    """What a function or a generator runs, and where its names lead."""

    code: types.CodeType
    globals: Mapping[str, Any]
    closure: Mapping[str, Any]

    def names(self) -> Iterator[tuple[tuple[int, str], Any]]:
        """What its names, and those of the functions and comprehensions within it, lead to."""
        codes = [self.code]
        while codes:
            code = codes.pop()
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            for name in code.co_names:
                if name in self.globals:
                    yield (id(self.globals), name), self.globals[name]
                elif name.partition(".")[0] in _BETWEEN_RANKS:  # imported where it is used
                    yield (id(sys.modules), name), types.ModuleType(name)
        for name, value in self.closure.items():
            yield (id(self.code), name), value


class Reach:
    """What some code can reach, as it is when this is made.

    Args:
        codes: gives the functions and generators.
        given: gives the objects that were handed to them, by any key.
    """

    def __init__(self, codes: Callable[[], Iterable[Any]], given: Callable[[], Mapping[Any, Any]]):
        self._codes, self._given = codes, given
        self._before = self._state()

    def has_changed(self) -> bool:
        """Whether any of it is other than it was."""
        return self._state() != self._before

    def why_every_rank(self, made: str) -> str:
        """Why every rank has to run the code; "" where it need not.

        Args:
            made: what it has made by now, in words.
        """
        changed = f"making {made} draws random numbers, or changes what other code can see"
        return self.needs_every_rank() or (changed if self.has_changed() else "")

    def needs_every_rank(self) -> str:
        """Why it has to be run on every rank: what it can reach takes all of them. "" where nothing does."""
        for value in self._values():
            package = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
            if package.partition(".")[0] in _BETWEEN_RANKS and not package.startswith(_LEFT_BY_PATCHES):
                return f"it can reach {package}, by which ranks speak to each other"
        return ""

    def goes_on_with(self) -> str:
        """Why nobody can tell what it gives before it does: it reads on in what other code has begun. "" where not."""
        for value in self._values():
            kind = type(value)
            if isinstance(value, Iterator) or kind.__module__.partition(".")[0] in _HANDING_ON:
                return f"it goes on with a {kind.__name__} that other code can see"
        return ""

    def _values(self) -> Iterator[Any]:
        """What it can reach, and the attributes of that."""
        for found in self._found().values():
            yield found
            yield from _parts(found).values()

    def _found(self) -> dict[Any, Any]:
        found = dict(self._given())
        codes = [*self._codes()]
        for _ in range(_DEEP):
            reached = dict(pair for one in codes if (code := _code(one)) is not None for pair in code.names())
            found |= reached
            codes = list(reached.values())
        return found

    def _state(self) -> list[Any]:
        return [_of_process(), {key: _of(value, _DEEP) for key, value in self._found().items()}]


def of_object(data: Any) -> Reach:
    """What the methods of an object can reach, and what it holds."""
    return Reach(lambda: _methods(data), lambda: vars(data))


def of_callable(function: Any, args: Iterable[Any] = ()) -> Reach:
    """What a function, a method or an object that can be called can reach. Args: args: what it is given."""
    given: dict[Any, Any] = dict(enumerate(args))
    while isinstance(function, functools.partial):
        given |= {(id(function), name): one for name, one in (*enumerate(function.args), *function.keywords.items())}
        function = function.func
    if isinstance(function, types.MethodType):
        given["self"] = function.__self__
    if isinstance(function, types.FunctionType):
        given |= {(name, "default"): one for name, one in enumerate(function.__defaults__ or ())}
        given |= {(name, "default"): one for name, one in (function.__kwdefaults__ or {}).items()}
    elif not isinstance(function, (type, types.MethodType)):
        given["self"] = function
    codes = [function, *_methods(function if isinstance(function, type) else given.get("self"))]
    return Reach(lambda: codes, lambda: given)


def of_generator(generator: types.GeneratorType[Any, Any, Any]) -> Reach:
    """What a generator can reach: what it closes over, and what it was given or has kept by now.

    What it makes from now on, such as random generators of its own, is out of reach of any other code.
    """
    chain = [*_chain(generator, _DEEP)]
    kept = {
        (id(one), name): value
        for one in chain
        for name, value in _locals(one).items()
        if name not in one.gi_code.co_freevars and not isinstance(value, _PLAIN)  # a name of its own that counts
    }
    methods = [method for value in kept.values() for method in _methods(value)]
    return Reach(lambda: [*chain, *methods], lambda: kept)


def _chain(generator: types.GeneratorType[Any, Any, Any], deep: int) -> Iterator[types.GeneratorType[Any, Any, Any]]:
    """A generator, and those that it was given to read from."""
    yield generator
    for value in _locals(generator).values() if deep else ():
        if isinstance(value, types.GeneratorType):
            yield from _chain(value, deep - 1)


def _locals(generator: types.GeneratorType[Any, Any, Any]) -> dict[str, Any]:
    return dict(inspect.getgeneratorlocals(generator))


def _methods(value: Any) -> list[types.FunctionType]:
    """The methods of an object or of a class, as far as they are no library's."""
    kind = value if isinstance(value, type) else type(value)
    kinds = [kind for kind in kind.__mro__ if not _is_library(kind.__module__)]
    return [one for kind in kinds for one in vars(kind).values() if isinstance(one, types.FunctionType)]


@functools.cache
def _is_library(module: str) -> bool:
    """Whether a module is Python's or an installed package's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return module == "builtins" or (file is not None and any(file.startswith(place + os.sep) for place in places))


def _code(value: Any) -> _Code | None:
    if isinstance(value, types.GeneratorType):
        known = _locals(value)
        closure = {name: known[name] for name in value.gi_code.co_freevars if name in known}
        return None if value.gi_frame is None else _Code(value.gi_code, value.gi_frame.f_globals, closure)
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, types.FunctionType) or (value.__module__ or "").startswith(_KNOWN):
        return None
    closure = {}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # which has no value yet
            continue
    return _Code(value.__code__, value.__globals__, closure)


def _of_process() -> list[Any]:
    """The states of Python's, NumPy's, Keras' and TensorFlow's random numbers."""
    keras_seed = seeds.keras_generator(make=False)
    eager = getattr(context.context(), "_rng", None)
    return [
        random.getstate(),
        repr(np.random.get_state(legacy=False)),
        None if keras_seed is None else np.array(keras_seed.state).tolist(),
        eager.getstate() if isinstance(eager, random.Random) else None,
        [np.array(state).tolist() for state in seeds.generator_states()],  # of tf.random.Generator
    ]


def _of(value: Any, deep: int) -> Any:
    """What of a value may change, to be compared; None where nobody can tell."""
    import keras

    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, keras.random.SeedGenerator):
        return np.array(value.state).tolist()
    if isinstance(value, keras.Layer):
        return [mismatch.checksum(np.ravel(one)[:_MUCH]) for one in value.variables]  # a model may be trained
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple, dict, set)):
        values = [*value.values()] if isinstance(value, dict) else [*value]
        return len(values), [_of(one, deep - 1) for one in values[:_MANY]] if deep else None
    return {name: _of(one, deep - 1) for name, one in _parts(value).items()} if deep else None


def _parts(value: Any) -> dict[str, Any]:
    """The attributes of an object, as far as they are looked at."""
    if isinstance(value, (type, types.FunctionType, types.ModuleType, np.ndarray, tf.Tensor)):
        return {}
    return dict([*getattr(value, "__dict__", {}).items()][:_MANY])
