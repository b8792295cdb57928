"""What code that makes batches can reach and the rest of the script can too, and whether making one has changed it.

If nothing has changed, a batch may be made by one rank alone: no other rank misses what was drawn, counted or kept.
Looked at are all random generators of the process, wherever they are, and what the code can reach (`digest`): names of
its modules, what it closes over, and the objects that it was given. What cannot be compared counts as changed.

Relies on (TensorFlow 2.16 to 2.21, private): `context.context()._rng`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from tensorflow.python.eager import context

from matex_tf.core import mismatch
from matex_tf.launch import garbage
from matex_tf.patches.common import seeds
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import digest

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class Reach:
    """What some code can reach, as it is when this is made.

    Args:
        things: functions, and objects that were handed to them.
    """

    def __init__(self, *things: Any):
        self._things = things
        self._generators = _generators_of_process()
        self._drawn = _drawn(self._generators)
        self._before = digest.of(*things)

    def why_every_rank(self, made: str) -> Why:
        """Why every rank has to run the code; empty if it need not.

        Args:
            made: what it has made by now, in words.
        """
        if self._before.between_ranks:
            return Reason.SPEAKS(what=self._before.between_ranks)
        if _drawn(self._generators) != self._drawn:
            return Reason.DRAWS(made=made)
        now = self._before if self._before.why else digest.of(*self._things)
        if now.why:
            return Reason.CANNOT_COMPARE(what=now.why)
        return Reason.CHANGES(made=made) if now != self._before else NOTHING

    def goes_on_with(self) -> Why:
        """Why nobody can tell what it gives before it does: it reads on in what other code has begun. Empty if not."""
        if self._before.goes_on:
            return Reason.GOES_ON(kind=self._before.goes_on)
        return Reason.CANNOT_COMPARE(what=self._before.why) if self._before.why else NOTHING


def of_generator(generator: types.GeneratorType[Any, Any, Any]) -> Reach:
    """What a generator can reach: what it closes over, and what it was given or has kept by now.

    What it makes from now on, such as random generators of its own, is out of reach of any other code.
    """
    return Reach(*_of_generator(generator))


def _of_generator(generator: types.GeneratorType[Any, Any, Any]) -> Iterator[Any]:
    if generator.gi_frame is None:
        return
    yield digest.Code(generator)
    for name, value, own in _locals(generator):
        if own:
            yield from _of_own_iterator(value)
        elif name not in generator.gi_code.co_freevars and not isinstance(value, _PLAIN):  # or a name of its own counts
            yield value


def _of_own_iterator(iterator: Any) -> Iterator[Any]:
    """What an iterator reads from that nobody but a generator holds."""
    if isinstance(iterator, types.GeneratorType):
        yield from _of_generator(iterator)
        return
    for held in gc.get_referents(iterator):
        if isinstance(held, Iterator):
            yield from _of_own_iterator(held)
        elif not isinstance(held, type):
            yield held


def _locals(generator: types.GeneratorType[Any, Any, Any]) -> Iterator[tuple[str, Any, bool]]:
    """The names of a generator, what they stand for, and whether that is an iterator which nothing else holds."""
    names, values, counts = _counted(generator)
    for name, value, count in zip(names, values, counts, strict=True):
        yield name, value, isinstance(value, Iterator) and count <= _held_once()


def _counted(generator: types.GeneratorType[Any, Any, Any]) -> tuple[list[str], list[Any], list[int]]:
    """The names of a generator, their values, and how many references there are to each."""
    found = dict(inspect.getgeneratorlocals(generator))
    names, values = [*found], [*found.values()]
    del found
    return names, values, [sys.getrefcount(values[place]) for place in range(len(values))]


@functools.cache
def _held_once() -> int:
    """How many references `_counted` finds to what only a generator holds."""
    alone: Any = (value for value in iter([1]))
    return _counted(alone)[2][0]


def _torch() -> Any:
    """PyTorch, if the process has all of it: another thread may be importing it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Generator") and hasattr(torch, "random") else None


def _generators_of_process() -> list[Any]:
    """All generators of random numbers that there are; also that of the names of temporary files."""
    import keras

    kinds: tuple[type, ...] = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    kinds = (*kinds, keras.random.SeedGenerator)
    if (torch := _torch()) is not None:
        kinds = (*kinds, torch.Generator)
    # Those of the process may have been made before it was forked, or before imports, where `gc.freeze` hides them.
    of_process = [random.random.__self__, np.random.rand.__self__]  # type: ignore[attr-defined]
    of_process += garbage.older_generators()
    found = {id(one): one for one in (*of_process, *gc.get_objects()) if issubclass(type(one), kinds)}
    return [one for one in found.values() if type(one) is not random.SystemRandom]


def of_process() -> int:
    """A checksum over the random generators that all code of the process shares."""
    return mismatch.checksum(repr(_drawn([random.random.__self__, np.random.rand.__self__])))  # type: ignore[attr-defined]


def _drawn(generators: Iterable[Any]) -> list[Any]:
    """The states of generators, and of those that TensorFlow keeps."""
    eager = getattr(context.context(), "_rng", None)
    torch = _torch()
    return [
        *map(_state_of, generators),
        eager.getstate() if isinstance(eager, random.Random) else None,
        [np.array(state).tolist() for state in seeds.generator_states()],  # of tf.random.Generator
        None if torch is None else torch.random.get_rng_state().numpy().tobytes(),
    ]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    if isinstance(generator, np.random.BitGenerator):
        return repr(generator.state)
    if hasattr(generator, "get_state"):
        return generator.get_state().numpy().tobytes()
    return np.array(generator.state).tolist()
